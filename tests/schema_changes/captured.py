"""Runs scripts against a database, step by step, and compares what they come to with what has landed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pymysql
import pytest

from connector.schema import TableName
from tests.schema_changes.script import Script
from tests.support.agent.captured import CapturedDatabase
from tests.support.landing.cuts import Table
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database


class Place:
    """The schemas of all scripts in one database, and the sessions that run their steps."""

    def __init__(self, database: Database | MysqlDatabase, scripts: Sequence[Script]) -> None:
        self.database, self.scripts = database, scripts
        self._sessions: dict[str, Any] = {}

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.database, Database)

    def namespace(self, script: Script) -> str:
        """The schema, or the database, of a script."""
        return script.name if self.is_postgres else f"{self.database.name[:12]}_{script.name}"[:60]

    def __enter__(self) -> Place:
        for script in self.scripts:
            quote = '"' if self.is_postgres else "`"
            kind = "SCHEMA" if self.is_postgres else "DATABASE"
            self.database.execute(f"CREATE {kind} {quote}{self.namespace(script)}{quote}")
            for statement in script.before:
                self.run(script, statement)
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close()
        if not self.is_postgres:
            names = self.database.execute("SHOW DATABASES LIKE '" + self.database.name[:12] + "\\_%'")
            for (name,) in names:
                if name != self.database.name:
                    self.database.execute(f"DROP DATABASE `{name}`")

    def run(self, script: Script, step: str) -> None:
        """Run one step in the script's own session."""
        text = step.replace("$NAMESPACE", self.namespace(script))
        try:
            if self.is_postgres:
                self._run_postgres(script, text)
            else:
                self._run_mysql(script, text)
        except Exception as error:
            raise AssertionError(f"{script.name}: {error}\n{text}") from error

    def _run_postgres(self, script: Script, text: str) -> None:
        connection = self._sessions.setdefault("all", None) or self.database.connect()
        self._sessions["all"] = connection
        with connection.cursor() as cursor:
            cursor.execute(f'SET search_path TO "{self.namespace(script)}"')
            cursor.execute(text)

    def _run_mysql(self, script: Script, text: str) -> None:
        if script.name not in self._sessions:
            self._sessions[script.name] = self.database.connect()
            self._sessions[script.name].select_db(self.namespace(script))
        with self._sessions[script.name].cursor() as cursor:
            for statement in text.split(";\n"):
                _again_after_deadlock(lambda s=statement: cursor.execute(s))

    def tables(self, script: Script) -> list[str]:
        """The tables of a script that are there now, as the agent names them."""
        found = self.database.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = "
            f"'{self.namespace(script)}' AND table_type = 'BASE TABLE'"
        )
        return [name for (name,) in found]

    def rows(self, script: Script, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and rows of a table, as the source has them."""
        columns = self.database.columns(str(TableName(self.namespace(script), table)))
        quote = '"' if self.is_postgres else "`"
        name = f"{quote}{self.namespace(script)}{quote}.{quote}{table}{quote}"
        only = "ONLY " if self.is_postgres and not self._is_partitioned(script, table) else ""
        return list(columns), self.database.rows(f"SELECT {', '.join(columns.values())} FROM {only}{name}")

    def _is_partitioned(self, script: Script, table: str) -> bool:
        return self._holds(script, table, "relkind = 'p'")

    def is_partition(self, script: Script, table: str) -> bool:
        """Whether a table's rows are captured as those of its root."""
        return self._holds(script, table, "relispartition")

    def _holds(self, script: Script, table: str, what: str) -> bool:
        return bool(
            self.database.execute(
                f"SELECT 1 FROM pg_class WHERE {what} AND relname = %s AND relnamespace = %s::regnamespace",
                (table, f'"{self.namespace(script)}"'),
            )
        )


def _again_after_deadlock(action: Callable[[], Any]) -> None:
    for _ in range(20):
        try:
            action()
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1205, 1213):
                raise
        else:
            return


def captured_place(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CapturedDatabase:
    """Capture all scripts' tables."""
    tables = [f"{place.namespace(script)}.*" for script in place.scripts]
    return CapturedDatabase(place.database, folder, monkeypatch, tables=tables)


def rows_of(
    table: Table, columns: Sequence[str], key: Sequence[str], source: Sequence[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """The landed rows that are there; what no event carried, and a merge asks for, as in the source."""
    places = [columns.index(name) for name in key]
    by_key = {tuple(as_text(row[n]) for n in places): dict(zip(columns, row, strict=True)) for row in source}
    found = []
    for row, _ in map(table.row, list(table.events)):
        if row is not None:
            whole = by_key.get(tuple(as_text(row[name]) for name in key), {}) | row
            found.append(tuple(whole.get(c) for c in columns))
    return found


def as_text(value: Any) -> str:
    """A value so spelled that the source's and the landed one are the same."""
    if isinstance(value, (float, np.floating)):
        return repr(float(np.float32(value))) if float(np.float32(value)) == value else repr(float(value))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "{" + ",".join("NULL" if v is None else as_text(v) for v in value) + "}"
    return str(value)
