"""Records which versions of the targets upkeep keeps: cuts that name older ones are gone.

Invariants:

- A row is written before VACUUM removes anything, so a cut is marked before it can't be read. If upkeep is
  killed in between, some marked cuts still could be: they are older than ``lake.retention_days`` anyway.
- Cuts are only appended (`merge.lake.control_table`), so this table records what is gone: each Delta table's
  id and oldest version kept. The history can't show it: it doesn't say what VACUUM removed, and on S3 Delta
  doesn't even log that VACUUM ran.
- Each row holds all tables of a source as one upkeep knew them, and concurrent ones append in any order. So
  the greatest versions among the newest rows count, and the latest beginning: what is gone never comes back.

VACUUM by others is not recorded here: `merge.as_of` then fails when the files are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from connector.config import Config
from connector.schema import TableName
from merge.lake.own_tables import create_own_table
from merge.lake.target import lake_table
from merge.landing_zone import is_missing
from merge.sql_formatting import text, timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UPKEEP_PATH = "_deltatide/upkeep"
COLUMNS = {
    "source": "string",
    "began_at": "timestamp",
    "recorded_at": "timestamp",
    "tables": "map<string, struct<id: string, oldest: bigint, vacuumed: bigint>>",
}

ROWS_READ = 20
"""One upkeep appends at most two rows, and only a few run at once."""


@dataclass(frozen=True)
class KeptTable:
    """The oldest version kept of the Delta table `id`; files replaced up to `vacuumed` were removed."""

    id: str
    oldest: int
    vacuumed: int = 0


@dataclass(frozen=True)
class Kept:
    """When upkeep of a source last began, in UTC (None: never), and what it kept."""

    began_at: datetime | None = None
    tables: Mapping[TableName, KeptTable] = field(default_factory=dict)

    def of(self, table: TableName, id_: str) -> KeptTable:
        """Return what is kept of a Delta table; everything, until upkeep has seen it."""
        known = self.tables.get(table)
        return known if known is not None and known.id == id_ else KeptTable(id_, 0)


def kept_table(config: Config) -> str:
    """Format the table in SQL."""
    return lake_table(config, UPKEEP_PATH, "_deltatide_upkeep")


def read_kept(spark: SparkSession, config: Config) -> Kept:
    """Read what upkeep of the configured source has recorded."""
    frame = _kept(spark, config)
    rows = [] if frame is None else frame.orderBy("recorded_at").collect()
    if not rows:
        return Kept()
    began_at = datetime.fromtimestamp(max(row["micros"] for row in rows) / 1e6, timezone.utc)
    # If a table was replaced, the id recorded last counts.
    tables = {
        TableName.parse(row["name"]): KeptTable(row["id"], row["oldest"], row["vacuumed"])
        for row in rows
        if row["name"] is not None
    }
    return Kept(began_at, tables)


def append_kept(
    spark: SparkSession, config: Config, tables: Mapping[TableName, KeptTable], began_at: datetime
) -> None:
    """Record when upkeep began and what it keeps; durable on return."""
    create_own_table(spark, config, kept_table(config), UPKEEP_PATH, COLUMNS)
    entries = ", ".join(
        f"{text(str(table))}, named_struct('id', {text(at.id)}, 'oldest', {at.oldest}L, "
        f"'vacuumed', {at.vacuumed}L)"
        for table, at in sorted(tables.items())
    )
    values = ", ".join([text(config.source.name), timestamp(began_at), timestamp(datetime.now(timezone.utc))])
    spark.sql(
        f"INSERT INTO {kept_table(config)} ({', '.join(COLUMNS)})"
        f" SELECT {values}, CAST(map({entries}) AS {COLUMNS['tables']})"
    )


def with_gone(spark: SparkSession, config: Config, cuts: DataFrame) -> DataFrame:
    """Add to cuts the column `gone`: the names of tables whose version in the cut upkeep has given up.

    ::

        manifest   tables                        gone
        7          {a: version 9, b: version 4}  []
        3          {a: version 5, b: version 4}  [a]       a is kept from version 8 on
    """
    frame = _kept(spark, config)
    if frame is None:
        return cuts.withColumn("gone", F.expr("CAST(array() AS array<string>)"))
    by_name_and_id = F.struct(F.concat_ws(" ", "name", "id"), "oldest")
    kept = frame.agg(F.map_from_entries(F.collect_list(by_name_and_id)).alias("kept"))
    gone = """array_sort(map_keys(map_filter(tables, (name, at) ->
        coalesce(at.version < kept[concat_ws(' ', name, at.id)], false))))"""
    return cuts.crossJoin(F.broadcast(kept)).withColumn("gone", F.expr(gone)).drop("kept")


def _kept(spark: SparkSession, config: Config) -> DataFrame | None:
    """Return what is kept of each Delta table of the configured source; None if nothing was recorded yet.

    `name` and `id` are null in one row if upkeep found no tables. `recorded_at`: the last row that names it.
    """
    try:
        frame = spark.table(kept_table(config))
        frame.schema  # noqa: B018 - Spark Connect looks for the table only now
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise
    of_source = frame.where(f"source = {text(config.source.name)}")
    newest = of_source.orderBy("recorded_at", ascending=False).limit(ROWS_READ)
    tables = newest.select("began_at", "recorded_at", F.explode_outer("tables").alias("name", "at"))
    return tables.groupBy("name", F.col("at.id").alias("id")).agg(
        F.max("at.oldest").alias("oldest"),
        F.max("at.vacuumed").alias("vacuumed"),
        F.max("recorded_at").alias("recorded_at"),
        F.unix_micros(F.max("began_at")).alias("micros"),
    )
