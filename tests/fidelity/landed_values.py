"""The landed values of a table with every type, separately for dump and log.

The table has a column for each case (``c0``, ``c1`` ...), and a row for each index into the lists of values.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from connector.landing.format import CDC, DUMP, UPDATE
from connector.schema import TableName
from tests.fidelity.literals import Literals
from tests.support.agent.captured import CapturedDatabase
from tests.support.landing.cuts import manifests_in


class Cell(NamedTuple):
    """A landed value, formatted so that NaN equals itself and 0 is not -0, and its text in ``_cdc.raw``."""

    value: str
    raw: str | None

    @classmethod
    def of(cls, value: Any, raw: str | None) -> Cell:
        """Format a value; a datetime without the class of its time zone."""
        return cls(value.isoformat() if isinstance(value, datetime) else repr(value), raw)


def column_of(index: int) -> str:
    """Return the name of a case's column."""
    return f"c{index}"


def rows_of_cases(cases: Sequence[Literals]) -> list[list[str | None]]:
    """Return the values to write, row by row; None where a case has no more."""
    lists = [case.all for case in cases]
    longest = max(map(len, lists))
    return [[values[n] if n < len(values) else None for values in lists] for n in range(longest)]


def landed_cells(captured: CapturedDatabase, table: TableName, op: str) -> dict[int, dict[str, Cell]]:
    """Return cells by ``id`` and column, from the events of one operation: `DUMP` or `UPDATE`."""
    assert op in (DUMP, UPDATE)
    found: dict[int, dict[str, Cell]] = {}
    for manifest in manifests_in(captured.store):
        for file in manifest.files:
            if file.table == table:
                data = captured.store.read(file.path)
                assert data is not None
                rows = pq.read_table(io.BytesIO(data)).to_pylist()
                found |= {row["id"]: cells_of(row) for row in rows if row[CDC]["op"] == op}
    return found


def cells_of(row: dict[str, Any]) -> dict[str, Cell]:
    """Return the cells of a landed row or of a Delta table's row."""
    raw = dict(row[CDC]["raw"] or {})
    assert not row[CDC].get("unchanged"), "a value was left out of the log"
    return {name: Cell.of(v, raw.get(name)) for name, v in row.items() if name not in (CDC, "id", "n")}


def differences(
    expected: dict[int, dict[str, Cell]],
    found: dict[int, dict[str, Cell]],
    cases: Sequence[Literals],
    reported: str,
) -> list[str]:
    """Return one line for each cell that is not as expected."""
    lines = []
    for id_, cells in expected.items():
        other = found.get(id_, {})
        for index, case in enumerate(cases):
            want, got = cells[column_of(index)], other.get(column_of(index))
            if want != got:
                lines.append(f"{case.type}: expected {want}, {reported} has {got}")
    return lines
