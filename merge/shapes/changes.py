"""Appends the log to `changes`: every landed change once, as it landed.

A position is one event of one table, so it identifies a change. Files may be read twice, land twice, or be
joined by compaction, and a merge may be killed or begin at an older manifest. So nothing is assumed about
what the Delta table already has: events are reduced to one row per position, and a MERGE inserts those whose
position is missing, from the lowest position read on. It updates and deletes nothing (`delta.appendOnly`).
If before-images land, each change has its own (`_before`).

`_cdc` comes first, so that Delta's statistics cover the position however wide the table is. Neither dumped
rows nor deletes found by a dump of keys are changes. Truncates are rows whose columns are null. The table's
key plays no part.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.landing.format import BEFORE, CDC, CDC_FIELDS
from connector.landing.manifest import LandedFile
from connector.position import Position
from connector.schema import TableSchema
from merge.apply import Written, commit_settings
from merge.lake.commits import Mark
from merge.lake.target import Target
from merge.landing_zone import LandingZone
from merge.plan import NOTHING
from merge.shapes.creation import create_shape_sql
from merge.spark.session_settings import applied_settings
from merge.sql_formatting import listed, position, position_literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from merge.shapes.before_images import OldRows

OF_CHUNKS = ("low_lsn", "high_lsn", "dump", "chunk")
CHANGE_FIELDS = {name: type_ for name, type_ in CDC_FIELDS if name not in OF_CHUNKS}
"""The fields of `_cdc` in a table of changes."""

CHANGE_TYPE = "struct<" + ",".join(f"{name}:{type_}" for name, type_ in CHANGE_FIELDS.items()) + ">"


def landed_changes(
    landing: LandingZone,
    files: Sequence[LandedFile],
    schemas: Mapping[str, TableSchema],
    columns: Mapping[str, str],
    old: OldRows | None = None,
    after: Position = NOTHING,
) -> DataFrame:
    """Return one row for each position in log files: `_cdc` with `CHANGE_FIELDS`, the columns, `_before`.

    Only of positions after `after`.
    """
    cdc = F.col(CDC)
    events = landing.events(files, schemas, columns, old=old)
    if any(file.first <= after for file in files):
        events = events.where(f"(_cdc.epoch, _cdc.lsn, _cdc.seq) > {position_literal(after)}")
    fields = F.struct(*[cdc[name].alias(name) for name in CHANGE_FIELDS])
    names = [*columns, BEFORE] if old else list(columns)
    row = F.struct(fields.alias(CDC), *[F.col(quoted(name)) for name in names])
    at = [cdc[name].alias(name) for name in ("epoch", "lsn", "seq")]
    once = events.groupBy(*at).agg(F.first(row).alias("row"))
    return once.select(*[F.col("row")[name].alias(name) for name in [CDC, *names]])


def append_changes(
    spark: SparkSession, target: Target, source: DataFrame, lowest: Position, mark: Mark
) -> Written:
    """Insert the changes that a table lacks in one commit, durable on return; all are at or after `lowest`.

    Like `merge.apply.apply`, writes nothing if another job has brought the table further.
    """
    view = f"deltatide_{uuid.uuid4().hex}"
    source.createOrReplaceTempView(view)
    try:
        with applied_settings(spark, commit_settings(target, mark)):
            written = spark.sql(append_sql(target, view, source.columns, lowest)).collect()
    finally:
        spark.catalog.dropTempView(view)
    return Written(inserted=written[0].asDict().get("num_inserted_rows") if written else None)


def append_sql(target: Target, view: str, names: Sequence[str], lowest: Position) -> str:
    """Build the MERGE that only inserts; the literal bounds let Delta skip files of older changes."""
    values = ", ".join(f"source.{quoted(name)}" for name in names)
    return f"""
        MERGE INTO {target.name} AS target USING {view} AS source
        ON {position("source")} = {position("target")}
            AND (target._cdc.epoch > {lowest.epoch}
                OR (target._cdc.epoch = {lowest.epoch} AND target._cdc.lsn >= {lowest.lsn}L))
        WHEN NOT MATCHED THEN INSERT ({listed(names)}) VALUES ({values})"""


create_sql = partial(
    create_shape_sql, first={CDC: CHANGE_TYPE}, last={}, properties={"delta.appendOnly": "true"}
)
"""Builds the statement that creates a table of changes."""
