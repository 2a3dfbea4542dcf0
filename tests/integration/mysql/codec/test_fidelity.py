"""The fidelity matrix on real servers: the log's values are the dump's and the server's own texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.source import KeyRange
from tests.fidelity.literals import Literals, means
from tests.fidelity.mysql import LITERALS
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following

Cells = dict[int, list[tuple[Any, str | None]]]

HOSTILE = {
    "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,IGNORE_SPACE'",
    "time_zone": "'-11:30'",
    "character_set_results": "latin1",
    "character_set_client": "latin1",
    "character_set_connection": "latin1",
    "collation_connection": "utf8mb4_bin",
    "lc_time_names": "de_DE",
    "div_precision_increment": "0",
    "sql_select_limit": "1",
    "completion_type": "CHAIN",
    "sql_big_selects": "OFF",
    "max_join_size": "1",
    "sql_safe_updates": "ON",
    "group_concat_max_len": "4",
}


OURS = (
    "SET sql_select_limit = 18446744073709551615, sql_big_selects = ON, sql_safe_updates = OFF,"
    " completion_type = NO_CHAIN"
)
"""The test's own sessions begin like all others."""


@contextlib.contextmanager
def hostile(database: MysqlDatabase) -> Iterator[None]:
    """New sessions begin with settings that nobody wants; the test's own sets what it needs."""
    # MySQL 8.0 takes no other locale without its files.
    wanted = {n: value for n, value in HOSTILE.items() if n != "lc_time_names" or not database.is_old}
    before = {name: database.execute(f"SELECT @@global.{name}")[0][0] for name in wanted}
    try:
        database.execute(*(f"SET GLOBAL {name} = {value}" for name, value in wanted.items()))
        yield
    finally:
        values = {n: v if isinstance(v, int) else f"'{v}'" for n, v in before.items()}
        values["completion_type"] = "NO_CHAIN"
        database.execute(*(f"SET GLOBAL {name} = {value}" for name, value in values.items()))


def text_of(column: str, literals: Literals) -> str:
    """What to select for the server's own text of a column."""
    name = literals.type.partition("(")[0]
    if name == "bit":
        return f"CAST({column} + 0 AS CHAR)"
    spatial = "geometry point linestring polygon multipoint multilinestring multipolygon geometrycollection"
    if literals.landing == "binary" or name in {*spatial.split(), "vector"}:
        return f"HEX({column})"
    if literals.landing in ("float", "double"):
        return f"CAST({column} AS DOUBLE)"  # as text, MySQL cuts it at 22 characters
    return f"CAST({column} AS CHAR)"


def logged(rows: list[dict[str, Any]], columns: int) -> Cells:
    return {row["id"]: cells(row, dict(row["_cdc"]["raw"] or []), columns) for row in rows}


def cells(row: dict[str, Any], raw: dict[str, str], columns: int) -> list[tuple[Any, str | None]]:
    return [(row[f"c{n}"], raw.get(f"c{n}")) for n in range(columns)]


def dumped(source: MysqlSource, table: str, columns: int) -> Cells:
    tables, found = source.open_tables(), {}
    try:
        with tables.open_chunk(TableName.parse(table), KeyRange()) as chunk:
            names = [column.name for column in chunk.schema.columns]
            for some in chunk.rows():
                raws = [None] * len(some.columns[0]) if some.raw is None else some.raw.to_pylist()
                values = [column.to_pylist() for column in some.columns]
                for *row, raw in zip(*values, raws, strict=True):
                    named = dict(zip(names, row, strict=True))
                    found[named["id"]] = cells(named, dict(raw or []), columns)
    finally:
        tables.close()
    return found


@pytest.mark.every_release
def test_each_literal_is_the_same_from_log_dump_and_server(mariadb: MysqlDatabase) -> None:
    server = ("mysql" if mariadb.is_mysql else "mariadb") + ("-8.0" if mariadb.is_old else "")
    matrix = [literals for literals in LITERALS if literals.is_on(server)]
    columns = ", ".join(f"c{n} {literals.type}" for n, literals in enumerate(matrix))
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    count = max(len(literals.all) for literals in matrix)

    def literal(row: int, literals: Literals) -> str:
        return literals.all[row % len(literals.all)]

    def compare(turn: int, found: Cells) -> None:
        """Rows that hold, from the first on, literals from `turn` on."""
        texts = mariadb.execute(
            OURS, f"SELECT id, {', '.join(map(text_of, names, matrix))} FROM t ORDER BY id"
        )
        ours = dumped(source, f"{mariadb.name}.t", len(matrix))
        differing = [
            (literals.type, literal(key + turn, literals), log_cell, cell)
            for key in sorted(found.keys() & ours.keys())
            for literals, log_cell, cell in zip(matrix, found[key], ours[key], strict=True)
            if repr(log_cell) != repr(cell)
        ]
        assert (found.keys(), differing[:5]) == (ours.keys(), [])
        assert len(texts) == len(found) == count + 1
        for key, *row in texts:
            for literals, text, (value, raw) in zip(matrix, row, found[key], strict=True):
                if key == count:
                    assert (value, raw, text) == (None, None, None)
                    continue
                sql = literal(key + turn, literals)
                assert (literals.type, sql, raw is not None) == (literals.type, sql, sql in literals.raw)
                held = value if raw is None else raw
                assert means(held, text), (literals.type, sql, held, text)

    names = [f"c{n}" for n in range(len(matrix))]
    with hostile(mariadb):
        source = source_of(mariadb)
        with following(source) as log:
            (schema,) = source.tables().schemas
            assert [c.type for c in schema.columns[1:]] == [literals.landing for literals in matrix]
            rows = [f"({n}, {', '.join(literal(n, x) for x in matrix)})" for n in range(count)]
            mariadb.execute(
                OURS, f"INSERT INTO t VALUES {', '.join(rows)}", f"INSERT INTO t (id) VALUES ({count})"
            )
            compare(0, logged(read_all(mariadb, log), len(matrix)))
            changes = [
                ", ".join(f"c{m} = {literal(n + 1, x)}" for m, x in enumerate(matrix)) for n in range(count)
            ]
            mariadb.execute(OURS, *(f"UPDATE t SET {each} WHERE id = {n}" for n, each in enumerate(changes)))
            changed = logged(read_all(mariadb, log), len(matrix))
            compare(1, {count: [(None, None)] * len(matrix), **changed})
