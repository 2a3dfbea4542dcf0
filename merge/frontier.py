"""The control table: one row for each cut, and with it how far each table has come.

Invariants:

- Rows are only appended. A row names all tables known at its manifest, each with the manifest it is at and
  the Delta version that holds that state.
- A row is written after the tables it names: a crash before it leaves tables ahead of their frontier, and the
  next run applies the same events again, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import SourceMismatchError
from connector.manifest import Manifest
from merge.read import is_missing
from merge.sql import text, timestamp
from merge.target import lake_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = {
    "source": "string",
    "manifest": "bigint",
    "epoch": "int",
    "position": "bigint",
    "source_committed_at": "timestamp",
    "merged_at": "timestamp",
    "exact": "boolean",
    "tables": "map<string, struct<version: bigint, manifest: bigint>>",
}

ROWS_READ = 20
"""Every row names all tables, so the newest would do; jobs that run side by side may each be one ahead."""


@dataclass(frozen=True)
class Place:
    """Where a table is: the last manifest applied, and the Delta version of that state (None: no table)."""

    manifest: int
    version: int | None = None


@dataclass(frozen=True)
class Frontier:
    """How far a source has been merged. A table that no row names came into being after `newest`."""

    newest: int = 0
    epoch: int = 0
    position: int = 0
    exact: bool = True
    places: Mapping[str, Place] = field(default_factory=dict)

    def of(self, table: str) -> Place:
        """Give the place of a table."""
        return self.places.get(table, Place(self.newest))

    def check(self, manifest: Manifest) -> None:
        """Refuse a landing zone whose manifest `newest` isn't the one that was merged."""
        if (manifest.epoch, manifest.position) != (self.epoch, self.position):
            raise SourceMismatchError(
                f"manifest {self.newest} of source {manifest.source.name!r} is at"
                f" {manifest.epoch}/{manifest.position}, the lake has merged {self.epoch}/{self.position}",
                hint="the landing zone was replaced; choose another lake.url or source.name for it",
            )


def cuts_table(config: Config) -> str:
    """Spell the control table in SQL."""
    return lake_table(config, "_deltatide/cuts", "_deltatide_cuts")


def read_frontier(spark: SparkSession, config: Config) -> Frontier:
    """Read how far the configured source has been merged."""
    try:
        rows = spark.sql(
            f"SELECT * FROM {cuts_table(config)} WHERE source = {text(config.source.name)} "
            f"ORDER BY manifest DESC, merged_at DESC LIMIT {ROWS_READ}"
        ).collect()
    except AnalysisException as error:
        if is_missing(error):
            return Frontier()
        raise
    return frontier_of(rows)


def frontier_of(rows: list[Row]) -> Frontier:
    """Join rows, newest manifest first: for each table the greatest manifest over the rows that name it."""
    if not rows:
        return Frontier()
    places: dict[str, Place] = {}
    for row in rows:
        for table, place in row["tables"].items():
            known = places.get(table)
            if known is None or place["manifest"] > known.manifest:
                places[table] = Place(place["manifest"], place["version"])
    newest = rows[0]
    return Frontier(newest["manifest"], newest["epoch"], newest["position"], newest["exact"], places)


def append_cut(
    spark: SparkSession, config: Config, manifest: Manifest, places: Mapping[str, Place], *, exact: bool
) -> None:
    """Record a cut; durable on return. Creates the control table when it is not there yet."""
    entries = ", ".join(
        f"{text(table)}, named_struct('version', {_bigint(at.version)}, 'manifest', {_bigint(at.manifest)})"
        for table, at in sorted(places.items())
    )
    insert = (
        f"INSERT INTO {cuts_table(config)} SELECT {text(config.source.name)}, {manifest.number}L, "
        f"{manifest.epoch}, {manifest.position}L, {timestamp(manifest.source_committed_at)}, "
        f"{timestamp(datetime.now(timezone.utc))}, {str(exact).lower()}, "
        f"CAST(map({entries}) AS {COLUMNS['tables']})"
    )
    try:
        spark.sql(insert)
    except AnalysisException as error:
        if not is_missing(error):
            raise
        create_cuts(spark, config)
        spark.sql(insert)


def create_cuts(spark: SparkSession, config: Config) -> None:
    """Create the control table; Delta compacts its many small files by itself."""
    columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {cuts_table(config)} ({columns}) USING DELTA "
        "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')"
    )


def cuts(spark: SparkSession, config: Config) -> DataFrame:
    """Give all cuts of the configured source, newest first; columns as `COLUMNS`.

    A row with `exact` is the state of all tables at one position of the source: read each table with
    ``VERSION AS OF tables[name].version``.
    """
    try:
        frame = spark.table(cuts_table(config))
        return frame.where(f"source = {text(config.source.name)}").orderBy(
            "manifest", "merged_at", ascending=False
        )
    except AnalysisException as error:
        if is_missing(error):
            return spark.createDataFrame([], ", ".join(f"{n} {t}" for n, t in COLUMNS.items()))
        raise


def _bigint(number: int | None) -> str:
    return "CAST(NULL AS BIGINT)" if number is None else f"{number}L"
