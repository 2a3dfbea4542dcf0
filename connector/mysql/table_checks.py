"""What keeps single tables from being captured exactly, each with the statement that mends it. Reads only.

Rights are tried out (`refusals`), not read from SHOW GRANTS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from connector.config import SourceConfig, TableConfig
from connector.errors import PreconditionError
from connector.mysql.capturing import captures
from connector.mysql.catalog import TableFacts, layout_of, noted_columns, primary_key, qualified
from connector.mysql.connection import quote, row, rows, text_of
from connector.mysql.journal import Journal
from connector.mysql.server import Server
from connector.schema import TableName
from connector.source import Finding


@dataclass(frozen=True)
class Place:
    """What every look needs."""

    connection: Connection[Any]
    connect: Callable[[], Connection[Any]]
    server: Server
    config: SourceConfig
    tables: Mapping[str, TableConfig]
    journal: Journal
    found: Sequence[TableFacts]
    variables: Mapping[str, str]
    user: str

    def variable(self, name: str) -> str | None:
        """Give a global variable; None where this server has none of that name."""
        return self.variables.get(name)


def check_tables(place: Place) -> Iterator[Finding]:
    """Look at the captured tables, and at names that stand for none."""
    yield from _patterns(place)
    yield from _views(place)
    for facts in place.found:
        looks = (_readable, lambda _, facts: _kept(facts), _key, _virtual, _cascades)
        problems = [problem for look in looks if (problem := look(place, facts))]
        yield from problems or [Finding(f"table {facts.table}", "ok", "can be captured")]


def _patterns(place: Place) -> Iterator[Finding]:
    """Report names and patterns that match no table, and settings of tables that are not captured."""
    for pattern in place.config.tables:
        one = place.config.model_copy(update={"tables": [pattern], "exclude": []})
        if not any(one.captures(facts.table) for facts in place.found):
            yield Finding(
                f"tables {pattern}", "failed", f"no table matches that {place.user} may see",
                "correct source.tables, create the table, or GRANT SELECT on it",
            )  # fmt: skip
    names = {str(facts.table) for facts in place.found}
    for name in sorted(place.tables.keys() - names):
        yield Finding(f'[tables."{name}"]', "warning", "is not among the captured tables", "correct its name")


def _views(place: Place) -> Iterator[Finding]:
    found = rows(
        place.connection,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'VIEW'",
    )
    for namespace, name in found:
        table = TableName(namespace, name)
        if captures(place.config, table):
            named = str(table) in place.config.tables
            yield Finding(
                f"table {table}", "failed" if named else "warning", "is a view, never in the log",
                "add it to source.exclude",
            )  # fmt: skip


def _readable(place: Place, facts: TableFacts) -> Finding | None:
    with refusals() as denied:
        rows(place.connection, f"SELECT * FROM {qualified(facts.table)} LIMIT 0")
    if not denied:
        return None
    grant = f"GRANT SELECT ON {qualified(facts.table)} TO {place.user};"
    return Finding(f"table {facts.table}", "failed", denied[0], grant)


def _kept(facts: TableFacts) -> Finding | None:
    """Look at what keeps the rows: a snapshot is a snapshot in a transactional engine only."""
    name, spelled = f"table {facts.table}", qualified(facts.table)
    if facts.kind == "SYSTEM VERSIONED":
        return Finding(
            name, "failed", "is system-versioned: its log carries rows of the past too",
            f"ALTER TABLE {spelled} DROP SYSTEM VERSIONING; or add it to source.exclude",
        )  # fmt: skip
    if facts.engine not in ("InnoDB", "ROCKSDB"):
        return Finding(
            name, "failed", f"is kept by {facts.engine}, which has no snapshots",
            f"ALTER TABLE {spelled} ENGINE = InnoDB; or add it to source.exclude",
        )  # fmt: skip
    return None


def _key(place: Place, facts: TableFacts) -> Finding | None:
    name = f"table {facts.table}"
    layout = layout_of(place.connection, facts.table, place.tables)
    if layout is None or layout.schema is None:
        problem = layout.problem if layout else None
        reason = problem.reason if problem else "it is gone"
        return Finding(name, "failed", reason, problem.hint if problem else None)
    key = layout.schema.key
    if key == primary_key(place.connection, facts.table):
        return None
    indexes = _unique_indexes(place.connection, facts.table)
    fitting = [nullable for columns, nullable in indexes if sorted(columns) == sorted(key)]
    listed = ", ".join(map(quote, key))
    if not fitting:
        return Finding(
            name, "failed", f"its configured key ({', '.join(key)}) has no unique index",
            f"ALTER TABLE {qualified(facts.table)} ADD UNIQUE ({listed});",
        )  # fmt: skip
    if all(fitting):
        return Finding(
            name, "failed", f"a column of its configured key ({', '.join(key)}) may be null",
            f"ALTER TABLE {qualified(facts.table)} MODIFY each of {listed} with NOT NULL",
        )  # fmt: skip
    return None


def _virtual(place: Place, facts: TableFacts) -> Finding | None:
    """Look for virtual columns that partial row images of MariaDB leave out, though they have changed."""
    image = place.variable("binlog_row_image")
    if not place.server.mariadb or image == "FULL":
        return None
    noted = noted_columns(place.connection, facts.table)
    names = ", ".join(name for name, column in noted.items() if column.virtual)
    if not names:
        return None
    return Finding(
        f"table {facts.table}", "failed",
        f"has virtual columns ({names}), which a log with binlog_row_image = {image} leaves out",
        "SET GLOBAL binlog_row_image = FULL;",
    )  # fmt: skip


_CASCADE = re.compile(
    r"^\s*CONSTRAINT `((?:[^`]|``)*)` FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)",
    re.MULTILINE,
)


def _cascades(place: Place, facts: TableFacts) -> Finding | None:
    """Look for foreign keys that change rows by themselves: InnoDB does so below the log.

    MySQL does it above the log since 9.6, unless told otherwise.
    """
    native = place.variable("innodb_native_foreign_keys")
    if not place.server.mariadb and place.server.release >= (9, 6) and native in (None, "OFF"):
        return None
    definition = None
    with refusals():
        definition = row(place.connection, f"SHOW CREATE TABLE {qualified(facts.table)}")
    names = _CASCADE.findall(str(definition[1])) if definition else []
    if not names:
        return None
    listed = ", ".join(names)
    return Finding(
        f"table {facts.table}", "failed",
        f"its foreign keys ({listed}) change rows without a trace in the log (CASCADE, SET NULL)",
        f"ALTER TABLE {qualified(facts.table)} DROP FOREIGN KEY `{names[0]}`; and add it again with ON DELETE"
        " RESTRICT ON UPDATE RESTRICT; or add the table to source.exclude",
    )  # fmt: skip


def _unique_indexes(connection: Connection[Any], table: TableName) -> list[tuple[list[str], bool]]:
    """Give the columns of each unique index, and whether one of them may be null."""
    found = rows(connection, f"SHOW INDEX FROM {qualified(table)} WHERE Non_unique = 0")
    indexes: dict[str, tuple[list[str], bool]] = {}
    for _, _, name, _, column, _, _, _, _, nullable, *_ in found:
        columns, some = indexes.get(name, ([], False))
        indexes[name] = [*columns, column], some or nullable == "YES"
    return list(indexes.values())


class refusals:  # noqa: N801
    """Try something out: gathers the server's refusals instead of raising them."""

    def __enter__(self) -> list[str]:
        self._reasons: list[str] = []
        return self._reasons

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (pymysql.OperationalError, pymysql.ProgrammingError, PreconditionError)):
            self._reasons.append(text_of(error))
            return True
        return False
