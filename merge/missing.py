"""Asks the agent for rows whose columns no event has carried yet: a dump of just these keys.

The request is an object in the landing zone, so a Spark job needs no way to reach the agent. It is written
before the merge that leaves the columns missing; a crash in between leaves a request too many, never too few.
Each request is an object of its own: two jobs that ask for the same rows don't write to the same place.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.landing import request_path
from connector.schema import array_of
from merge.apply import KEEPS, NEWER
from merge.changes import Layout
from merge.plan import TablePlan
from merge.read import LandingZone
from merge.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEYS_PER_REQUEST = 2_000
MOST_KEYS = 50_000
"""Beyond this many keys, a dump of the whole table costs the source less than one of keys."""


def request_missing(
    spark: SparkSession,
    landing: LandingZone,
    plan: TablePlan,
    source: DataFrame,
    layout: Layout,
    target: DataFrame,
) -> int:
    """Request a dump of the keys that `source` will leave with missing columns; give their number.

    A row that the dump under way is going to bring anyway is not asked for.
    """
    found = incomplete(source, layout, target, plan.dumping).limit(MOST_KEYS + 1).collect()
    keys = sorted([row[f"k{n}"] for n in range(len(layout.key))] for row in found)
    if len(keys) > MOST_KEYS:
        write_request(spark, landing, plan, None)
    else:
        for first in range(0, len(keys), KEYS_PER_REQUEST):
            write_request(spark, landing, plan, keys[first : first + KEYS_PER_REQUEST])
    return len(keys)


def incomplete(source: DataFrame, layout: Layout, target: DataFrame, dumping: bool) -> DataFrame:
    """Give the keys, as the source's text in columns ``k0``, ``k1``…, that stay or become incomplete."""
    lacking = source.where("size(_cdc.missing) > 0 AND _cdc.op <> 'delete'").alias("source")
    known = target.alias("target").select(
        *[F.col(f"target.{quoted(name)}") for name in layout.key], F.col("target._cdc").alias("_cdc")
    )
    same = [F.col(f"source.{quoted(n)}") == F.col(f"target.{quoted(n)}") for n in layout.key]
    joined = lacking.join(known.alias("target"), same, "left")
    # What the dump under way will bring need not be asked for: all but rows made anew without a column.
    anew = "source._cdc.since IS NOT NULL" if dumping else "true"
    still = "size(array_intersect(source._cdc.missing, coalesce(target._cdc.missing, array()))) > 0"
    wanted = (
        f"CASE WHEN target._cdc IS NULL THEN {anew} WHEN NOT {NEWER} THEN false"
        f" WHEN {KEEPS} THEN {'false' if dumping else still} ELSE {anew} END"
    )
    return joined.where(wanted).select(
        *[
            key_text(F.col(f"source.{quoted(n)}"), layout.columns[n]).alias(f"k{i}")
            for i, n in enumerate(layout.key)
        ]
    )


def missing_is_asked(landing: LandingZone) -> bool:
    """Tell whether a request of this kind waits that the agent has not taken up."""
    return landing.exists(request_path("missing-*").replace("%2A", "*"))


def key_text(value: Column, type_: str) -> Column:
    """Spell a key value as `connector.source.TableReader.open_keys` reads it.

    The session's time zone and settings must not matter: a text that finds no row leaves the row incomplete.
    """
    if type_ == "binary":
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    if type_ == "timestamp":
        micros = F.unix_micros(value).cast("decimal(18,0)")
        seconds = (micros * F.lit(Decimal("0.000001"))).cast("decimal(18,6)")
        since_1970 = F.make_dt_interval(F.lit(0), F.lit(0), F.lit(0), seconds)
        return F.concat((F.expr("TIMESTAMP_NTZ'1970-01-01'") + since_1970).cast("string"), F.lit("+00"))
    if element := array_of(type_):
        return _array_text(value, element)
    return value.cast("string")


def _array_text(value: Column, element: str) -> Column:
    def spelled(item: Column) -> Column:
        escaped = F.regexp_replace(key_text(item, element), r'(["\\])', r"\\$1")
        return F.coalesce(F.concat(F.lit('"'), escaped, F.lit('"')), F.lit("NULL"))

    return F.concat(F.lit("{"), F.array_join(F.transform(value, spelled), ","), F.lit("}"))


def write_request(
    spark: SparkSession, landing: LandingZone, plan: TablePlan, keys: Sequence[Sequence[str]] | None
) -> str:
    """Write one request (None: of the whole table) and give its id."""
    request_id = f"missing-{uuid.uuid4().hex[:16]}"
    body: dict[str, Any] = {
        "id": request_id,
        "kind": "dump",
        "tables": [plan.table],
        "reason": "missing",
        "requested_at": datetime.now(timezone.utc).isoformat(),
    }
    if keys is not None:
        body["keys"] = [list(key) for key in keys]
    frame = spark.range(1, numPartitions=1).select(F.lit(json.dumps(body)).alias("value"))
    frame.write.text(f"{landing.root}/{request_path(request_id)}")
    return request_id
