"""Rows whose key a column can't hold (infinity, NaN): one row each, through all that a merge does."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge import apply, live, merge_once
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

NAME = "public.prices"
PRICES = schema_of(
    NAME, ("id", "valid_to", "n"), id="int", valid_to="timestamp", n="decimal(6,2)", v="string"
)
DAY = datetime(2026, 1, 31, tzinfo=timezone.utc)
ONE = Decimal("1.00")


def row(id_: int, valid_to: Any, n: Any, **values: Any) -> dict[str, Any]:
    """A row as it lands, with its raw texts beside it."""
    texts = {name: x for name, x in (("valid_to", valid_to), ("n", n)) if isinstance(x, str)}
    return {
        "id": id_, "valid_to": None if isinstance(valid_to, str) else valid_to,
        "n": None if isinstance(n, str) else n, **values, "raw": texts,
    }  # fmt: skip


def event(op: str, lsn: int, seq: int, *key: Any, unchanged: tuple[str, ...] = (), **values: Any) -> Event:
    found = row(*key, **values)
    raw = found.pop("raw")
    return Event(op, lsn, seq, found, unchanged, raw or None)


class Zone:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.landed = Landed.local(folder / "landing")
        self.landed.table(PRICES)
        self.config = config_of(str(folder / "landing"), str(folder / "lake"))

    def merge(self, position: int, *found: Event | Chunk) -> list[tuple[Any, ...]]:
        """Land and merge; the rows of the table, which `live` has shown too."""
        log = [e for e in found if isinstance(e, Event)]
        files = [self.landed.log(PRICES, log)] if log else []
        files += [self.landed.chunk(PRICES, c) for c in found if isinstance(c, Chunk)]
        self.landed.commit(position, files)
        shown = self.rows(live(self.spark, self.config, NAME))
        report = merge_once(self.spark, self.config)
        assert not report.failed, report.failed
        merged = self.rows(self.spark.table(f"delta.`{self.folder}/lake/public/prices`"))
        assert shown == merged
        return merged

    @staticmethod
    def rows(frame: Any) -> list[tuple[Any, ...]]:
        formatted = "coalesce(_cdc.raw['valid_to'], date_format(valid_to, 'y-MM-dd'))"
        found = frame.selectExpr(
            "id",
            formatted,
            "coalesce(_cdc.raw['n'], string(n))",
            "v",
            "coalesce(array_size(map_keys(_cdc.raw)), 0)",
        )
        return sorted((tuple(r) for r in found.collect()), key=repr)


def test_rows_whose_key_no_column_can_hold_are_distinguished_everywhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "LARGE_BYTES", 0)  # bounds of the keys, always
    zone = Zone(spark, tmp_path)
    open_, low = (1, "infinity", ONE), (1, "-infinity", ONE)
    first = zone.merge(
        10,
        event("insert", 5, 0, *open_, v="open"),
        event("insert", 5, 2, *low, v="low"),
        event("insert", 5, 4, 1, DAY, ONE, v="day"),
        event("insert", 5, 6, 1, "infinity", "NaN", v="nan"),
    )
    assert first == [
        (1, "-infinity", "1.00", "low", 1), (1, "2026-01-31", "1.00", "day", 0),
        (1, "infinity", "1.00", "open", 1), (1, "infinity", "NaN", "nan", 2),
    ]  # fmt: skip
    # The common case: the open end gets its date (delete and insert), and another open row begins.
    closed = datetime(2026, 6, 1, tzinfo=timezone.utc)
    moved = zone.merge(
        20,
        event("delete", 15, 0, *open_),
        event("insert", 15, 1, 1, closed, ONE, v="open"),
        event("update", 15, 2, 1, "infinity", "NaN", v=None, unchanged=("v",)),
        event("insert", 15, 4, 2, "infinity", ONE, v="next"),
    )
    assert [r[:4] for r in moved] == [
        (1, "-infinity", "1.00", "low"), (1, "2026-01-31", "1.00", "day"), (1, "2026-06-01", "1.00", "open"),
        (1, "infinity", "NaN", "nan"), (2, "infinity", "1.00", "next"),
    ]  # fmt: skip
    # A full dump without `low` and with a row changed before it: one ghost goes, and what was merged stays.
    zone.landed.full_dump(NAME, 1, 24, started_in=3)
    seen = [row(1, DAY, ONE, v="day"), row(1, closed, ONE, v="dumped"), row(1, "infinity", "NaN", v="nan")]
    swept = zone.merge(30, Chunk(24, 25, [*seen, row(2, "infinity", ONE, v="next")]))
    assert [r[:4] for r in swept] == [
        (1, "2026-01-31", "1.00", "day"), (1, "2026-06-01", "1.00", "dumped"),
        (1, "infinity", "NaN", "nan"), (2, "infinity", "1.00", "next"),
    ]  # fmt: skip
    # Rows that no event carries whole are asked for by the source's own text.
    partial = event("update", 36, 0, 3, "infinity", "NaN", v=None, unchanged=("v",))
    deleted = zone.merge(40, event("delete", 35, 0, 2, "infinity", ONE), partial)
    assert [r[:2] for r in deleted] == [
        (1, "2026-01-31"), (1, "2026-06-01"), (1, "infinity"), (3, "infinity"),
    ]  # fmt: skip
    (request,) = tmp_path.glob("landing/shop/requests/missing-*.json/part-*")
    assert '"keys": [["3", "infinity", "NaN"]]' in request.read_text()
    assert zone.merge(60, Event("truncate", 55, 0, {}), event("insert", 55, 2, *open_, v="new")) == [
        (1, "infinity", "1.00", "new", 1)
    ]
