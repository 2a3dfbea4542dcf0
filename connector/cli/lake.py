"""What the lake's commands share: the configuration, a Spark session, graceful stops."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from connector.cli.printing import err
from connector.config import Config, load
from connector.errors import ConfigurationError, PreconditionError, TransientError
from connector.landing.manifest_store import newest_manifest
from connector.signals import STOPPING, SignalEvent, stopped_by_signals
from connector.store.factory import open_store


def lake_config(path: Path) -> Config:
    """Load a configuration that has a lake."""
    config = load(path)
    if config.lake is None:
        raise ConfigurationError(
            f"{path}: [lake] is missing", hint="add [lake] with url, or with catalog and schema"
        )
    return config


@contextmanager
def open_spark(config: Config, *, waits: bool = False, reads_landing: bool = True) -> Iterator[Any]:
    """Yield a session. Detect errors that would end the command before starting a session here.

    `waits`: wait for a store that does not answer. `reads_landing`: use the landing zone too, not just the
    lake.
    """
    try:
        from merge.spark.session import open_session, runs_on_platform
    except ModuleNotFoundError as error:
        raise PreconditionError(
            f"this command needs Spark: {error.name} is not installed", hint='pip install "deltatide[spark]"'
        ) from error
    from merge.spark.unreachable import legible

    # Spark logs a traceback for each SQL error; `legible` reports it in one line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if not os.environ.get("SPARK_REMOTE"):
        _look_ahead(config, waits=waits, reads_landing=reads_landing)
    if sys.stderr.isatty():
        err.print("starting Spark", end="\r")
    session = open_session(config)
    try:
        with legible(config):
            yield session
    except KeyboardInterrupt:  # in mid-work, Java ends with us; don't call it again
        raise
    except BaseException:
        with suppress(Exception):
            if not runs_on_platform():
                session.stop()
        raise
    if not runs_on_platform():
        session.stop()


def _look_ahead(config: Config, *, waits: bool, reads_landing: bool) -> None:
    """Raise one of our errors if an endpoint does not answer, or if manifests are too new.

    Other failures don't count: Spark may have rights that this process lacks.
    """
    from merge.spark.unreachable import check_configured_endpoint

    if not waits:
        check_configured_endpoint(config)
    if reads_landing:
        with suppress(TransientError, PreconditionError):
            newest_manifest(open_store(config.landing, config.source.name, patient=False))


class Stopping:
    """Ends a command gracefully: the first signal sets `event`, the second one exits at once.

    `repeats`: the command runs until it is stopped, so a signal is no failure.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self.event = SignalEvent()
        self.number = 0
        self._repeats = repeats

    @property
    def exit_code(self) -> int:
        """Return the exit status after a signal: 0 for a command that repeats, else what shells expect."""
        return 0 if self._repeats else 128 + self.number

    def end(self, number: int) -> None:
        """Ask the command to end after the table under way."""
        self.number = number
        self.event.set()
        for each in STOPPING:
            signal.signal(each, _abandon)

    def exit(self, number: int) -> NoReturn:
        """Exit now: nothing is under way yet. If a library drops the exception, `event` ends the command."""
        self.number = number
        self.event.set()
        sys.exit(self.exit_code)


@contextmanager
def stopping(
    config: Config, stop: Stopping, *, waits: bool = False, reads_landing: bool = True
) -> Iterator[Any]:
    """Yield a session like `open_spark`; from then on, signals end the command gracefully."""
    with (
        stopped_by_signals(stop.exit),  # while Spark starts
        open_spark(config, waits=waits, reads_landing=reads_landing) as spark,
        stopped_by_signals(stop.end),
    ):
        yield spark


def _abandon(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit at once on the second signal, without calling Spark again: it may be in a long call."""
    from merge.spark.gateway import kill_java

    err.print("interrupted: the tables under way are abandoned; the next run repeats them")
    kill_java()
    os._exit(128 + number)
