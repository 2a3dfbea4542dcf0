"""What has landed of a table of every type, from dump and log apart.

The table has a column for each case (``c0``, ``c1`` ...), and a row for each place in the lists of values.
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
from tests.support.captured import CapturedDatabase
from tests.support.cuts import manifests_in


class Cell(NamedTuple):
    """A landed value, spelled so that NaN equals itself and 0 is not -0, and its text in ``_cdc.raw``."""

    value: str
    raw: str | None

    @classmethod
    def of(cls, value: Any, raw: str | None) -> Cell:
        """Format a value; an instant in UTC, whatever class its zone is of."""
        return cls(value.isoformat() if isinstance(value, datetime) else repr(value), raw)


def column_of(index: int) -> str:
    """The name of a case's column."""
    return f"c{index}"


def rows_of_cases(cases: Sequence[Literals]) -> list[list[str | None]]:
    """The values to write, a row at a time; None where a case has no more."""
    lists = [case.all for case in cases]
    longest = max(map(len, lists))
    return [[values[n] if n < len(values) else None for values in lists] for n in range(longest)]


def landed_cells(captured: CapturedDatabase, table: TableName, op: str) -> dict[int, dict[str, Cell]]:
    """Cells by ``id`` and column, of the events of one operation: `DUMP` or `UPDATE`."""
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
    """The cells of a landed row, or of one of a Delta table."""
    raw = dict(row[CDC]["raw"] or {})
    assert not row[CDC].get("unchanged"), "a value was left out of the log"
    return {name: Cell.of(v, raw.get(name)) for name, v in row.items() if name not in (CDC, "id", "n")}


def differences(
    expected: dict[int, dict[str, Cell]],
    found: dict[int, dict[str, Cell]],
    cases: Sequence[Literals],
    told: str,
) -> list[str]:
    """A line for each cell that is not as expected."""
    lines = []
    for id_, cells in expected.items():
        other = found.get(id_, {})
        for index, case in enumerate(cases):
            want, got = cells[column_of(index)], other.get(column_of(index))
            if want != got:
                lines.append(f"{case.type}: expected {want}, {told} has {got}")
    return lines
