"""A merge's own Spark sessions: a pool of copies of the caller's session.

Delta takes a commit's manifest and fence from the session's settings. In a shared session, other commits
would carry them too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import PySparkException

from connector.config import Config
from merge.key_pruning import PUSHED_LISTS
from merge.spark.log_store import IDEMPOTENT
from merge.spark.session_settings import (
    MERGING,
    UNMARKED,
    all_settings,
    applied_settings,
    set_setting,
    unset_meanings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")

MOST_PARALLEL = 8
"""Default limit of tables merged at a time: more gain little, and each takes memory in the driver."""

NOT_COPIED = "spark.databricks.delta.lastCommitVersionInSession"


class SessionPool:
    """A merge's own sessions, with the same settings: one for each table that is merged at a time.

    `first` also reads what all tables share. Others are opened on demand.
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

    def for_each(
        self, items: Sequence[Item], do: Callable[[SparkSession, Item], None], stop: threading.Event
    ) -> None:
        """Call `do` with each item and a session, one per session at a time, until `stop` is set.

        An error is raised when the items under way have ended; no others are begun.
        """
        broken = threading.Event()

        def begin(item: Item) -> None:
            if stop.is_set() or broken.is_set():
                return
            try:
                with self.lend() as session:
                    do(session, item)
            except BaseException:
                broken.set()
                raise

        with ThreadPoolExecutor(min(self.most, max(1, len(items))), "deltatide-merge") as threads:
            for _ in threads.map(begin, items):
                pass

    def _open(self) -> list[SparkSession]:
        """Open another session; if the platform allows no more, use only those that are open."""
        try:
            session = self._another()
        except PySparkException:
            self.most = self._opened
            return []
        self._opened += 1
        return [session]


def offers_own_sessions(spark: SparkSession) -> bool:
    """Return whether a merge gets sessions of its own; else it uses the caller's."""
    return _offers(spark, "newSession") or _offers(spark, "cloneSession")


def merging_sessions(spark: SparkSession, config: Config) -> AbstractContextManager[SessionPool]:
    """Return the sessions for merges of a source, as many as it merges tables at a time."""
    parallel = config.merge.parallel or min(MOST_PARALLEL, 2 * (os.cpu_count() or 1))
    return own_session_pool(spark, parallel, {**MERGING, **UNMARKED, **IDEMPOTENT, **PUSHED_LISTS})


@contextmanager
def own_session_pool(
    spark: SparkSession, most: int, settings: Mapping[str, str | None]
) -> Iterator[SessionPool]:
    """Lend up to `most` sessions with the caller's settings and current catalog, and `settings` on top.

    What changes the meaning of expressions is unset.
    Nobody else sees their changes. If the platform has no second session, lend `spark` itself: change its
    settings and restore them.
    """
    separate = offers_own_sessions(spark)
    with ExitStack() as stack:

        def another() -> SparkSession:
            session = stack.enter_context(_own_session(spark)) if separate else spark
            stack.enter_context(applied_settings(session, {**unset_meanings(session), **settings}))
            return session

        yield SessionPool(another(), most if separate else 1, another)


@contextmanager
def _own_session(spark: SparkSession) -> Iterator[SparkSession]:
    if _offers(spark, "newSession"):
        yield _new_session(spark)
        return
    connected: Any = spark  # Spark Connect
    spark.version  # noqa: B018 - the server knows no session, to be cloned, before its first request
    clone = connected.cloneSession()
    try:
        yield clone
    finally:
        for close in (clone.client.release_session, clone.client.close):
            with suppress(Exception):
                close()
        # The session's finalizer would close it again, in the midst of whatever call garbage collection
        # interrupts. In Spark 4.1, that waits for requests of other sessions, and they for that call.
        clone.client.close = lambda: None


def _offers(spark: SparkSession, method: str) -> bool:
    """Return whether a kind of session has a method; a Connect session of Spark 3.5 raises if asked."""
    return hasattr(type(spark), method)


def _new_session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    known = all_settings(own)
    for name, value in all_settings(spark).items():
        if known.get(name) != value and name != NOT_COPIED:
            set_setting(own, name, value)
    catalog = spark.catalog.currentCatalog()
    if own.catalog.currentCatalog() != catalog:
        own.catalog.setCurrentCatalog(catalog)
    return own
