"""Finds the cut that a manifest, a position or a commit time names.

A manifest names its own cut, exact or not. A position or a time names the last exact cut at or before it: an
inexact cut is not the source at any moment, and a later one would show what had not happened yet.

Commit times are not in the log's order: MariaDB's are of a statement's beginning, and any session may set
them. So a cut may have commits of later times than its last commit says; an earlier cut shows that.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError
from connector.position import Moment, in_utc, parse_position
from merge.lake.control_table import cuts
from merge.sql_formatting import timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

LIST = "list the cuts: deltatide cuts"


def moment_of(
    config: Config, manifest: int | None, position: str | None, committed_at: datetime | str | None
) -> Moment | None:
    """Return the moment that one of these names; None (the newest cut) if none is given."""
    given = [value for value in (manifest, position, committed_at) if value is not None]
    if len(given) > 1:
        raise ConfigurationError(
            "manifest, position and committed_at name one cut each", hint="name only one of them"
        )
    if manifest is not None:
        return Moment(str(manifest), manifest=int(manifest))
    if position is not None:
        try:
            return Moment(position, position=parse_position(position, config.source.kind))
        except ValueError as error:
            raise ConfigurationError(str(error), hint="write it as deltatide cuts shows it") from None
    if isinstance(committed_at, datetime):
        return Moment(committed_at.isoformat(), committed_at=in_utc(committed_at))
    if committed_at is not None and (moment := Moment.parse(committed_at, "")).committed_at is not None:
        return moment
    if committed_at is not None:
        raise ConfigurationError(f"{committed_at!r} is not a time", hint="write 2026-11-21T10:00:00Z")
    return None


def find_cut(spark: SparkSession, config: Config, moment: Moment | None) -> Row:
    """Return the cut of a moment, as a row of `merge.cuts`; None: the newest cut.

    `ConfigurationError` if there is none, or if ``deltatide maintain`` has given it up.
    """
    frame = cuts(spark, config)
    row = _named(frame, moment).orderBy("manifest", ascending=False).first()
    if row is None:
        raise _no_cut(moment)
    if row["gone"]:
        raise ConfigurationError(
            f"the cut of manifest {row['manifest']} is gone: deltatide maintain removed its versions of"
            f" {', '.join(row['gone'])}",
            hint="choose a newer cut: deltatide cuts; lake.retention_days sets how long they stay",
        )
    return row


def _named(frame: DataFrame, moment: Moment | None) -> DataFrame:
    """Return the cuts at or before a moment; the newest of them is its cut."""
    if moment is None:
        return frame
    if moment.manifest is not None:
        return frame.where(F.col("manifest") == moment.manifest)
    exact = frame.where("exact")
    if moment.position is not None:
        return exact.where(_at_or_before(frame, *moment.position))
    return _committed_by(frame, exact, timestamp(moment.committed_at))


def _committed_by(frame: DataFrame, exact: DataFrame, time: str) -> DataFrame:
    """Return the exact cuts up to a commit time, and before the first cut whose commit time is later.

    A cut that was merged by that time does not count as later: everything in it had happened. So one commit
    time far in the future does not hide all cuts after it.
    """
    later = frame.where(f"source_committed_at > {time} AND merged_at > {time}")
    first = later.agg(F.min("manifest")).first()
    found = exact.where(f"source_committed_at <= {time}")
    return found if first is None or first[0] is None else found.where(F.col("manifest") < first[0])


def _at_or_before(frame: DataFrame, epoch: int | None, boundary: int) -> Column:
    if epoch is None:
        newest = frame.agg(F.max("epoch")).first()
        epoch = newest[0] if newest is not None and newest[0] is not None else 0
    known = F.lit(epoch).alias("epoch"), F.lit(boundary).cast("bigint").alias("position")
    return F.struct("epoch", "position") <= F.struct(*known)  # Spark 3.5 compares structs of the same names


def _no_cut(moment: Moment | None) -> ConfigurationError:
    if moment is None:
        return ConfigurationError("no cut was recorded yet", hint="merge first: deltatide merge")
    if moment.manifest is not None:
        return ConfigurationError(f"no cut of manifest {moment.manifest} was recorded", hint=LIST)
    return ConfigurationError(
        f"no exact cut at or before {moment.text} was recorded", hint=f"{LIST}; name one by its manifest"
    )
