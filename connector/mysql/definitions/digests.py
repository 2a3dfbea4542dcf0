"""Digests of all tables' columns and unique indexes, computed by the server, and the rows behind them.

Invariant: a digest is of the content of the very rows that a layout is built from, so equal digests are equal
rows. Nothing cheaper proves that on any release: times of creation have whole seconds; InnoDB's table ids
stay the same in an instant ALTER, which may rename columns; and statements may leave the log out.

`read_rows` returns each row with its own hash, so rows and digest are of one reading. A digest is incomplete,
and omitted, if the server cut it off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from connector.mysql.catalog import COLUMN_FIELDS, HAS_DEFAULT, INDEX_FIELDS, IS_VIRTUAL, conditions
from connector.schema import TableName


@dataclass(frozen=True)
class Part:
    """One part of a definition: where it is read, and what of it."""

    view: str
    fields: Sequence[str]
    order: str
    among: str = "1"

    @property
    def row_hash(self) -> str:
        """Build the hash of a row's fields; a null differs from any text.

        It is null if the server can't build it, as where HEX exceeds max_allowed_packet.
        """
        fields = (*self.fields, self.order)
        texts = ", ',', ".join(f"IF({field} IS NULL, '-', HEX({field}))" for field in fields)
        return f"SHA2(CONCAT({texts}), 256)"


COLUMNS = Part("columns", (*COLUMN_FIELDS, IS_VIRTUAL, HAS_DEFAULT), "ordinal_position")
INDEXES = Part("statistics", INDEX_FIELDS, "seq_in_index", "non_unique = 0")

_HASH_LENGTH = 64

_TABLE = "CAST(table_schema AS BINARY) AS namespace, CAST(table_name AS BINARY) AS name"
"""Names are grouped as bytes: for MariaDB, `T`, `t` and `ť` are one."""


@dataclass(frozen=True)
class Reading:
    """What was read by table. `complete`: what it lacks is not there; else it may have been locked."""

    by_table: Mapping[TableName, Any]
    complete: bool


def read_digests(connection: Connection[Any], part: Part, tables: Iterable[TableName]) -> Reading:
    """Read the digest of each table that has rows."""
    found: dict[TableName, str] = {}
    complete = True
    for selected, is_complete in _select(
        connection,
        part,
        tables,
        f"SELECT namespace, name, SHA2(hashes, 256), LENGTH(hashes) = parts * {_HASH_LENGTH + 1} - 1 FROM ("
        f"SELECT {_TABLE}, GROUP_CONCAT({part.row_hash} ORDER BY 1) AS hashes, COUNT(*) AS parts"
        " FROM {} GROUP BY 1, 2) AS of_table",
    ):
        found |= {table: digest for table, (digest, is_whole) in selected if is_whole}
        complete = complete and is_complete and all(is_whole for _, (_, is_whole) in selected)
    return Reading(found, complete)


def read_rows(connection: Connection[Any], part: Part, tables: Iterable[TableName]) -> Reading:
    """Read the rows of each table in order, with the row's hash as the last field."""
    found: dict[TableName, list[tuple[Any, ...]]] = {}
    complete = True
    fields = ", ".join((*part.fields, part.row_hash))
    statement = f"SELECT {_TABLE}, {fields} FROM {{}} ORDER BY 1, 2, {part.order}"
    for selected, is_complete in _select(connection, part, tables, statement):
        for table, row in selected:
            found.setdefault(table, []).append(row)
        complete = complete and is_complete
    return Reading(found, complete)


def digest_of(found: Sequence[Sequence[Any]]) -> str | None:
    """Return the digest that the server computes of these rows; None of no row, for which it has none.

    It is none of the server's if one of them has no hash.
    """
    hashes = ",".join(sorted(str(row[-1]) for row in found))
    return hashlib.sha256(hashes.encode()).hexdigest() if found else None


def _select(
    connection: Connection[Any], part: Part, tables: Iterable[TableName], statement: str
) -> Iterator[tuple[list[tuple[TableName, tuple[Any, ...]]], bool]]:
    """Yield some tables' rows, and whether the server omitted none; it warns of those that it can't open."""
    wanted = set(tables)
    for condition in conditions(wanted):
        source = f"information_schema.{part.view} WHERE ({condition}) AND {part.among}"
        with connection.cursor() as cursor:
            cursor.execute(statement.format(source))
            named = [(TableName(_text(s), _text(n)), tuple(row)) for s, n, *row in cursor.fetchall()]
            yield [each for each in named if each[0] in wanted], not cursor.warning_count


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
