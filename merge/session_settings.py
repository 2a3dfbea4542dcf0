"""A merge's own Spark session, and its settings; those that a platform refuses are skipped.

Delta takes what a commit carries (manifest, fence) from the session's settings: in a shared session, other
commits would carry them too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from connector.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For few rows: compiling Java code for each query costs more than the rest of a small merge."""

COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""For many rows: Spark's own defaults."""


STRICT = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""A file that can't be read is an error, whatever the caller's session does: no row is missed."""

PLAIN = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
"""SQL is taken literally, and values stay as landed, whatever the caller's session sets.

Substitution, on by default in Spark, would turn ``${env:AWS_SECRET_ACCESS_KEY}`` in a name or key of the
source into the driver's secret, in the lake, and other such texts into empty ones. INT96, Spark's default for
a timestamp, is deprecated: other readers take it for nanoseconds, which overflow before 1677 and after 2262.
"""

UNMARKED: Mapping[str, str | None] = {
    "spark.databricks.delta.write.txnAppId": None,
    "spark.databricks.delta.write.txnVersion": None,
}
"""A caller's own marks: Delta would mistake our second cut for a duplicate and skip it."""

NOT_COPIED = "spark.databricks.delta.lastCommitVersionInSession"


class Sessions:
    """A merge's own sessions, with the same settings: one for each table that is merged at a time.

    `first` also reads what all tables share. Others are opened when they are needed.
    """

    def __init__(self, first: SparkSession, most: int, another: Callable[[], SparkSession]) -> None:
        self.first = first
        self.most = most
        self._free, self._opened, self._another = [first], 1, another
        self._changed = threading.Condition()

    @contextmanager
    def lend(self) -> Iterator[SparkSession]:
        """Return a session that no other thread uses during the block; wait for one if all are in use."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._opened < self.most)
            if not self._free:
                self._free += self._open()
            self._changed.wait_for(lambda: self._free)
            session = self._free.pop()
        try:
            yield session
        finally:
            with self._changed:
                self._free.append(session)
                self._changed.notify()

    def _open(self) -> list[SparkSession]:
        """Open another session; if the platform has no more, those that are open must do."""
        try:
            session = self._another()
        except PySparkException:
            self.most = self._opened
            return []
        self._opened += 1
        return [session]


@contextmanager
def own_sessions(spark: SparkSession, most: int, settings: Mapping[str, str | None]) -> Iterator[Sessions]:
    """Return up to `most` sessions with the caller's settings and current catalog, and `settings` on top.

    Nobody else sees their changes. If the platform has no second session, the only one is `spark` itself,
    whose settings are changed and restored.
    """
    separate = hasattr(spark, "newSession") or hasattr(spark, "cloneSession")
    with ExitStack() as stack:

        def another() -> SparkSession:
            session = stack.enter_context(_own_session(spark)) if separate else spark
            stack.enter_context(applied_settings(session, settings))
            return session

        yield Sessions(another(), most if separate else 1, another)


@contextmanager
def _own_session(spark: SparkSession) -> Iterator[SparkSession]:
    if hasattr(spark, "newSession"):
        yield _new_session(spark)
        return
    connected: Any = spark
    clone = connected.cloneSession()  # Spark Connect
    try:
        yield clone
    finally:
        with suppress(Exception):
            clone.client.release_session()
            clone.client.close()


def _new_session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    known = own.conf.getAll
    for name, value in spark.conf.getAll.items():
        if known.get(name) != value and name != NOT_COPIED:
            _set(own, name, value)
    catalog = spark.catalog.currentCatalog()
    if own.catalog.currentCatalog() != catalog:
        own.catalog.setCurrentCatalog(catalog)
    return own


@contextmanager
def applied_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Apply settings to a session during the block; None: unset."""
    before = {name: _get(spark, name) for name in settings}
    try:
        for name, value in settings.items():
            _set(spark, name, value)
        yield
    finally:
        for name, old in before.items():
            _set(spark, name, old)


_plain_lock = threading.RLock()


@contextmanager
def plain_settings(spark: SparkSession) -> Iterator[None]:
    """Apply `PLAIN` to a caller's session while frames are built in it, in one thread at a time."""
    with (
        _plain_lock,
        applied_settings(spark, {name: value for name, value in PLAIN.items() if _get(spark, name) != value}),
    ):
        yield


def check_strict(spark: SparkSession) -> None:
    """Refuse a caller's session that would silently skip files that can't be read."""
    for name, value in STRICT.items():
        if (_get(spark, name) or value).lower() != value:
            raise ConfigurationError(
                f"{name} is true in this session: files that can't be read would be skipped silently",
                hint=f'spark.conf.set("{name}", "{value}")',
            )


def _get(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def _set(spark: SparkSession, name: str, value: str | None) -> None:
    with suppress(PySparkException):
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
