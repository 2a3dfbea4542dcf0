"""Settings of a merge's sessions; those that a platform refuses are skipped."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from connector.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For few rows: compiling each query to Java costs more than the rest of a small merge."""

COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""For many rows: Spark's own defaults."""

ONE_TASK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""For few rows of a small table: replanning and starting more tasks costs more than it gains.

Delta's own queries of the table's log are no different: half of the time of a small task is spent reading the
task itself.
"""

PLANNED_ONCE = {"spark.sql.adaptive.enabled": "false"}
"""For queries of Delta's log, and others that few rows pass: replanning makes several jobs of one.

Delta reads a table's log in a number of tasks of its own, which replanning does not change.
"""

LISTED_KEYS = {**PLANNED_ONCE, "spark.sql.shuffle.partitions": "1"}
"""For merges of listed keys into a large table with deletion vectors: many rows are scanned, but none that is
shuffled has another key."""

LEAN = {
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
"""For merges: Spark and Delta leave out what nobody asks for.

Errors in a query don't name the line of code that built an expression: Spark takes a stack trace for each one
that is built, and Delta builds hundreds for each commit. The checksum file of a commit doesn't list the
table's data files: Delta reads that list nowhere, but queries a new table's state for it, and unless the time
zone is UTC, computes the state again after each commit to verify it.
"""

IN_PARTS = {"spark.sql.unionOutputPartitioning": "false"}
"""A union keeps the partitions of its parts. Since Spark 4.1, parts of one partition each make one in all: a
first load of any size was written by one task, to one file."""

UNCOMPACTED = {"spark.databricks.delta.autoCompact.enabled": "false"}
"""Delta does not compact a table's small files after a commit, whatever the table's properties say."""

OWN_COLUMNS = {"spark.databricks.delta.schema.autoMerge.enabled": "false"}
"""A MERGE adds no columns to its target, nor to `_cdc` the fields that only changes have: for these, the next
merge would refuse the table.
"""

REWRITTEN = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
"""Rewrite changed files instead of marking rows as deleted: cheaper for a small file, and readers find only
one."""

STRICT = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""Fail on unreadable files, whatever the caller's session does: no row is missed."""

LITERAL = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.retainGroupColumns": "true",
    "spark.sql.sources.useV1SourceList": "avro,csv,json,kafka,orc,parquet,text",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.legacy.createEmptyCollectionUsingStringType": "false",
}
"""SQL is taken literally, and values stay as landed, whatever the caller's session sets.

Substitution, on by default in Spark, would turn ``${env:AWS_SECRET_ACCESS_KEY}`` in a name or key of the
source into the driver's secret, in the lake, and other such texts into empty ones. INT96, Spark's default for
a timestamp, is deprecated: other readers take it for nanoseconds, which overflow before 1677 and after 2262.
"""

JUDGING = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
"""How a `where` is evaluated: the day of an instant depends on the zone, and the size of null on ANSI.

Else one job's condition would hold of other rows than the next one's. A caller's session has these only for
the moment in which a condition is analyzed: its own queries in other threads would be evaluated so, too.
"""

EVERY_DAY = {"spark.sql.datetime.java8API.enabled": "true"}
"""Spark hands Parquet the days and instants of a filter as they are.

By Java's former classes, its default, the days from October 5 to 14, 1582, which their calendar skips, become
others: a filter on one of them misses its rows. It counts when a query is run, so a caller's session has its
own.
"""

PLAIN = {**LITERAL, **JUDGING, **EVERY_DAY}
"""The settings of the merge's own sessions."""

MERGING = {**INTERPRETED, **LEAN, **IN_PARTS, **OWN_COLUMNS, **PLAIN, **STRICT}
"""What the merge's own sessions begin with."""

WHOLE_PLANS = {
    "spark.sql.debug.maxToStringFields": "100000",
    "spark.sql.maxPlanStringLength": str((1 << 31) - 16),
}
"""Have EXPLAIN print plans whole: all columns of a node, not only the first 25, and all nodes."""

UNFOLDED = {
    **WHOLE_PLANS,
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConstantFolding",
}
"""Have EXPLAIN print optimized plans whole, with constants as they were written."""

CROSSED = {"spark.sql.crossJoin.enabled": "true"}
"""Have Spark optimize a join whose condition is of one side alone, though a session refuses such queries."""

PARSER = "spark.sql.legacy.timeParserPolicy"
"""Unlike most settings, it counts when an expression is evaluated, not when it is analyzed."""

FORMER = "LEGACY"
"""The value of `PARSER` by which patterns are read leniently, and some otherwise."""

JSON = ("spark.sql.json.", "spark.sql.jsonGenerator.", "spark.sql.columnNameOfCorruptRecord")
"""Beginnings of the names of settings by which JSON is read and written, the last one CSV and XML, too. They
count at evaluation as well."""

MEANING = (
    "spark.sql.legacy.",
    "spark.sql.ansi.",
    "spark.sql.function.",
    "spark.sql.decimalOperations.",
    *JSON,
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.storeAssignmentPolicy",
)
"""Beginnings of the names of settings that change what expressions mean."""

# Spark Connect warns each user, though we set what has always been the default.
warnings.filterwarnings("ignore", r"The SQL config 'spark\.sql\.parser\.escapedStringLiterals' has been depr")

# So does PySpark, at each start of Python, of pandas 3, with which all our tests run.
warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)

ANY_VERSION = {"spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false"}
"""Delta refuses versions older than a week, since VACUUM may have removed their files, even if the table has
not changed since. We read them and see."""

UNMARKED: Mapping[str, str | None] = {
    "spark.databricks.delta.write.txnAppId": None,
    "spark.databricks.delta.write.txnVersion": None,
}
"""A caller's own marks: Delta would mistake our second cut for a duplicate and skip it."""


@contextmanager
def applied_settings(
    spark: SparkSession, settings: Mapping[str, str | None]
) -> Iterator[dict[str, str | None]]:
    """Apply settings to a session during the block (None: unset), leaving alone those that already match.

    Yield the session's own values of the others.
    """
    before = {name: get_setting(spark, name) for name in settings}
    changed = {name: value for name, value in settings.items() if before[name] != value}
    try:
        for name, value in changed.items():
            set_setting(spark, name, value)
        yield {name: before[name] for name in changed}
    finally:
        for name in changed:
            set_setting(spark, name, before[name])


REDACTED = "*********(redacted)"

_plain_lock = threading.RLock()

_replaced: ContextVar[Mapping[str, str | None]] = ContextVar("_replaced", default=MappingProxyType({}))
"""What `plain_settings` has changed in the caller's session: its own values."""


@contextmanager
def plain_settings(spark: SparkSession) -> Iterator[None]:
    """Apply `LITERAL` to a caller's session while frames are built in it, one thread at a time."""
    with _plain_lock, applied_settings(spark, LITERAL) as own:
        outer = _replaced.set({**own, **_replaced.get()})
        try:
            yield
        finally:
            _replaced.reset(outer)


@contextmanager
def judging_settings(spark: SparkSession) -> Iterator[dict[str, str | None]]:
    """Apply `JUDGING`, and Spark's own meaning of expressions, while a condition is analyzed.

    Yield the session's own values of what that changes, and of what `plain_settings` has changed. Over Spark
    Connect, what is unset counts as the server's default: Spark 4 has ANSI rules by default.
    """
    wanted = {**unset_meanings(spark), **JUDGING}
    if {name: get_setting(spark, name) for name in wanted} == wanted:
        yield dict(_replaced.get())  # none in the merge's own sessions
        return
    with _plain_lock:
        found = {name: _effective(spark, name) for name in wanted}
        with applied_settings(spark, wanted):
            changed = {name: value for name, value in found.items() if _effective(spark, name) != value}
            yield {**_replaced.get(), **changed}


def same_meaning(otherwise: Iterable[str]) -> str:
    """Return the calls by which a session gets what it has set otherwise than `judging_settings`."""
    return "; ".join(
        f'spark.conf.set("{name}", "{PLAIN[name]}")' if name in PLAIN else f'spark.conf.unset("{name}")'
        for name in otherwise
    )


def analyzes_late(spark: SparkSession) -> bool:
    """Return whether a frame is analyzed whenever it is used: over Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def unfolded_settings(spark: SparkSession) -> Iterator[bool]:
    """Apply `UNFOLDED` and `CROSSED`, one thread at a time; yields whether `UNFOLDED` was taken whole."""
    with _plain_lock, applied_settings(spark, UNFOLDED | CROSSED):
        yield all(get_setting(spark, name) == value for name, value in UNFOLDED.items())


@contextmanager
def whole_plans(spark: SparkSession) -> Iterator[None]:
    """Apply `WHOLE_PLANS`, one thread at a time."""
    with _plain_lock, applied_settings(spark, WHOLE_PLANS):
        yield


def unset_meanings(spark: SparkSession) -> dict[str, None]:
    """Return what is set in a session of `MEANING`, each to be unset."""
    return {name: None for name in all_settings(spark) if name.startswith(MEANING)}


def all_settings(spark: SparkSession) -> dict[str, str]:
    """Return a session's settings; before Spark 4 only those that are set, without secrets."""
    # Asked for once, not by `hasattr` before: it takes Java a call for each setting.
    if (known := getattr(spark.conf, "getAll", None)) is not None:
        return dict(known)
    settings = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    return {name: value for name, value in settings.items() if value != REDACTED}


def check_strict(spark: SparkSession) -> None:
    """Refuse a caller's session that would silently skip files that can't be read."""
    require_settings(spark, STRICT, "files that can't be read would be skipped silently")


def require_settings(spark: SparkSession, settings: Mapping[str, str], otherwise: str) -> None:
    """Refuse a session in which one of the settings is set otherwise; `otherwise`: what would happen then."""
    for name, value in settings.items():
        found = (get_setting(spark, name) or value).lower()
        if found != value:
            raise ConfigurationError(
                f"{name} is {found} in this session: {otherwise}", hint=f'spark.conf.set("{name}", "{value}")'
            )


def get_setting(spark: SparkSession, name: str) -> str | None:
    """Return a setting; None if it is unset or the platform does not know it."""
    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def _effective(spark: SparkSession, name: str) -> str | None:
    """Return a setting, over Spark Connect the server's default if it is unset; None if there is none."""
    own = get_setting(spark, name)
    if own is not None or not analyzes_late(spark):
        return own
    try:
        return spark.conf.get(name)
    except PySparkException:
        return None


def set_setting(spark: SparkSession, name: str, value: str | None) -> None:
    """Set or unset a setting, unless the platform refuses."""
    with suppress(PySparkException):
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
