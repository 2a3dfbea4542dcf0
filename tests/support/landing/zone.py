"""A hand-built landing zone with one table, and its lake."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake.exceptions import DeltaError, DeltaProtocolError
from pyspark.sql import DataFrame, SparkSession

from connector.config import Config
from merge import live, merge_once
from tests.support.landing.delta_rows import read_rows
from tests.support.landing.landed import Chunk, Event, Landed, config_of, schema_of

T = "public.orders"
ORDERS = schema_of(T, id="int", a="int", b="string")

CONSUMERS = "landing/shop/consumers"

_begun: dict[str, tuple[TemporaryDirectory[str], Path]] = {}
"""By what was landed, and how it is merged: copies of a lake and its consumer, and where they lay."""


class Zone:
    """A landing zone with one table, and its lake."""

    def __init__(self, spark: SparkSession, folder: Path, **tables: Any) -> None:
        self.spark, self.folder = spark, folder
        self.landed = Landed.local(folder / "landing")
        self.landed.table(ORDERS)
        self.config: Config = config_of(str(folder / "landing"), str(folder / "lake"), **tables)

    def log(self, position: int, *events: Event, epoch: int = 1) -> None:
        self.landed.commit(position, [self.landed.log(ORDERS, events)] if events else [], epoch=epoch)

    def chunk(self, position: int, *chunks: Chunk, epoch: int = 1) -> None:
        self.landed.commit(position, [self.landed.chunk(ORDERS, chunk) for chunk in chunks], epoch=epoch)

    def merge(self, **options: Any) -> Any:
        return merge_once(self.spark, self.config, **options)

    def begin(self, *events: Event) -> None:
        """Land the first manifest, at position 10, and merge it, if no test has; others get copies.

        For tests whose subject comes later: a first merge creates two tables and costs most.
        """
        self.log(10, *events)
        what = repr(events) + self.config.model_dump_json().replace(str(self.folder), "")
        if what not in _begun:
            assert self.merge().exact
            kept = TemporaryDirectory(prefix="deltatide-begun-")
            _begun[what] = kept, self.folder
            _copy(self.folder, Path(kept.name))
            return
        kept, former = _begun[what]
        _copy(Path(kept.name), self.folder)
        for record in [path for path in (self.folder / CONSUMERS).rglob("*") if path.is_file()]:
            if record.suffix == ".crc":
                record.unlink()  # Hadoop's checksums, of what is edited
            else:
                record.write_text(record.read_text().replace(str(former), str(self.folder)))

    def rows(self, columns: str = "id, a, b", table: str = "public/orders") -> list[tuple[Any, ...]]:
        """Return the rows of a Delta table by their first column, a number: read by delta-rs, if it can."""
        path = f"{self.folder}/lake/{table}"
        names = [name.strip() for name in columns.split(",")]
        if all(re.fullmatch(r"\w+(\.\w+)*", name) for name in names):
            try:
                return sorted(read_rows(path, names), key=lambda found: found[0])
            except (DeltaError, DeltaProtocolError):
                pass  # as of a table with a widened column
        return _sorted(self.spark.sql(f"SELECT {columns} FROM delta.`{path}`"))

    def live(self) -> list[tuple[Any, ...]]:
        return _sorted(live(self.spark, self.config, T).select("id", "a", "b"))

    def forget_cuts(self, after: int) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self.folder}/lake/_deltatide/cuts` WHERE manifest > {after}")

    def history(self) -> list[Any]:
        rows = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.folder}/lake/public/orders`").collect()
        return sorted(rows, key=lambda found: found["version"])

    def requests(self) -> list[dict[str, Any]]:
        parts = (self.folder / "landing/shop/requests").glob("*.json/part-*")
        return [json.loads(part.read_text()) for part in parts]


def _copy(folder: Path, to: Path) -> None:
    """Copy a lake and its record in the landing zone."""
    for part in ("lake", CONSUMERS):
        shutil.copytree(folder / part, to / part)


def _sorted(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Collect and sort; Spark would compute the frame twice, to find the ranges of its partitions."""
    return sorted((tuple(found) for found in frame.collect()), key=lambda found: found[0])


def insert(lsn: int, key: int, a: int | None = None, b: str = "x", **more: Any) -> Event:
    return Event("insert", lsn, 2 * key, {"id": key, "a": key if a is None else a, "b": b}, **more)


def update_of_a(lsn: int, key: int, a: int, **more: Any) -> Event:
    """Return an update that does not carry `b`."""
    return Event("update", lsn, 2 * key, {"id": key, "a": a}, unchanged=("b",), **more)


def delete(lsn: int, key: int, **more: Any) -> Event:
    return Event("delete", lsn, 2 * key, {"id": key}, **more)


def row(key: int, a: int, b: str = "x") -> dict[str, Any]:
    return {"id": key, "a": a, "b": b}
