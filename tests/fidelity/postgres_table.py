"""A PostgreSQL table with every type, captured by a role with hostile settings."""

from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest

from connector.landing.format import DUMP, UPDATE
from connector.schema import TableName
from tests.fidelity.landed_values import Cell, column_of, differences, landed_cells, rows_of_cases
from tests.fidelity.literals import Literals
from tests.fidelity.postgres import LITERALS
from tests.support.agent.captured import CapturedDatabase
from tests.support.servers.postgres import Database
from tests.unit.postgres.codec.reference_codec import decode

TABLE = TableName("public", "types")

HOSTILE = {
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'iso_8601'",
    "timezone": "'Asia/Kolkata'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "quote_all_identifiers": "on",
    "search_path": "public",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmlbinary": "'hex'",
    "client_encoding": "'LATIN1'",
    "default_transaction_isolation": "'serializable'",
    "statement_timeout": "'1min'",
}


class PostgresTypes:
    """The table, and the agent that captures it; `cases` are the types that the server has."""

    def __init__(self, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.cases = [case for case in LITERALS if self._has(case)]
        columns = [f"{column_of(n)} {case.type}" for n, case in enumerate(self.cases)]
        database.execute(f"CREATE TABLE types (id int PRIMARY KEY, n int, {', '.join(columns)})")
        self._insert()
        role = f"hostile_{database.name}"[:60]
        database.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'secret'")
        for name, value in HOSTILE.items():
            database.execute(f"ALTER ROLE {role} SET {name} = {value}")
        url = database.server.url(user=role, password="secret", database=database.name)
        self.captured = CapturedDatabase(database, folder, monkeypatch, url=url, tables=["public.types"])

    def _has(self, case: Literals) -> bool:
        """Return whether this server has the type, after running the statements that it requires."""
        if case.since > int(self.database.execute("SHOW server_version_num")[0][0]) // 10000:
            return False
        for statement in case.before:
            self.database.execute(statement)
        try:
            self.database.execute(f"SELECT CAST(%s AS {case.type}) IS NULL", (case.exact[0],))
        except psycopg2.errors.FeatureNotSupported:
            assert case.optional, case
            return False
        return True

    def _insert(self) -> None:
        names = [column_of(n) for n in range(len(self.cases))]
        marks = ", ".join(["%s"] * (len(names) + 2))
        for id_, row in enumerate(rows_of_cases(self.cases)):
            self.database.execute(
                f"INSERT INTO types (id, n, {', '.join(names)}) VALUES ({marks})", (id_, 0, *row)
            )

    def capture(self) -> None:
        """Dump the table, then update every row and land the updates."""
        with self.captured.running():
            self.captured.wait_settled()
            self.database.execute("UPDATE types SET n = 1")
            self.captured.wait_settled()

    def expected(self) -> dict[int, dict[str, Cell]]:
        """Return the expected cells, from the source's own text."""
        texts = [
            f"CASE WHEN num_nulls({column_of(n)}) = 0 THEN format('%s', {column_of(n)}) END"
            for n in range(len(self.cases))
        ]
        rows = self.database.execute(f"SELECT id, {', '.join(texts)} FROM types")
        return {id_: self._cells(values) for id_, *values in rows}

    def _cells(self, texts: list[str | None]) -> dict[str, Cell]:
        decoded = [decode(text, case.landing) for text, case in zip(texts, self.cases, strict=True)]
        return {column_of(n): Cell.of(value, raw) for n, (value, raw) in enumerate(decoded)}

    def problems(self) -> list[str]:
        """Return one line for each value in dump or log, or declared type, that is not as expected."""
        expected = self.expected()
        lines = differences(expected, landed_cells(self.captured, TABLE, DUMP), self.cases, "the dump")
        lines += differences(expected, landed_cells(self.captured, TABLE, UPDATE), self.cases, "the log")
        return lines + self._wrong_types() + self._wrong_places(expected)

    def _wrong_types(self) -> list[str]:
        from connector.control.source_view import SourceView

        layout = SourceView(self.captured.config).layouts(str(TABLE))[0]
        landed = {c.name: c.type for c in layout.schema.columns}
        return [
            f"{case.type} lands as {landed[column_of(n)]}, the case says {case.landing}"
            for n, case in enumerate(self.cases)
            if landed[column_of(n)] != case.landing
        ]

    def _wrong_places(self, expected: dict[int, dict[str, Cell]]) -> list[str]:
        """Report values in `_cdc.raw` that a case expects in the column, or the reverse."""
        return [
            f"{case.type}: {value} is {cell}"
            for n, case in enumerate(self.cases)
            for id_, value in enumerate(case.all)
            if ((cell := expected[id_][column_of(n)]).raw is not None) != (value in case.raw)
        ]
