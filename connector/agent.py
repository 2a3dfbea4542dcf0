"""The agent as a process: preconditions, lease, capture, graceful end.

Order: the store is probed and the source checked before anything is written; the lease is taken before the
newest manifest is read; it is released after the last commit. A lease that is lost ends capture at once, and
even an agent that has not noticed cannot commit: the manifest is the fence.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from connector.capture import Capture, Progress
from connector.config import Config
from connector.errors import DeltatideError, PreconditionError, TransientError
from connector.ledger import check_identity
from connector.lease import Lease
from connector.source import Finding, Source
from connector.store import Store, newest_manifest, open_store, probe

log = logging.getLogger(__name__)


def open_source(config: Config) -> Source:
    """Open the source that the configuration names. Connects only when asked something."""
    from connector.postgres.source import PostgresSource

    return PostgresSource(config.source, config.tables)


def check(config: Config) -> list[Finding]:
    """Look at every precondition of source and landing zone and report all of them. Leaves nothing behind."""
    store = open_store(config.landing, config.source.name)
    findings = [_check_landing(store)]
    source = open_source(config)
    try:
        findings += source.check()
        findings.append(_check_identity(store, source))
    except DeltatideError as error:
        findings.append(Finding("source", "failed", str(error), error.hint))
    finally:
        source.close()
    return findings


def _check_landing(store: Store) -> Finding:
    try:
        probe(store)
    except DeltatideError as error:
        return Finding("landing zone", "failed", str(error), error.hint)
    return Finding("landing zone", "ok", f"{store.url} is writable and honours conditional creates")


def _check_identity(store: Store, source: Source) -> Finding:
    try:
        newest = newest_manifest(store)
        if newest is None:
            return Finding("history", "ok", "a new one will begin")
        check_identity(newest.source, source.identity())
    except DeltatideError as error:
        return Finding("history", "failed", str(error), error.hint)
    return Finding("history", "ok", f"goes on after manifest {newest.number}")


def run(config: Config) -> Progress:
    """Run the agent until SIGTERM or Ctrl-C (a graceful end), or until it can't go on (raised)."""
    _refuse_failures(check(config))
    store = open_store(config.landing, config.source.name)
    lease = Lease.acquire(store, config.landing.lease_seconds, on_wait=lambda text: log.info("%s", text))
    source = open_source(config)
    try:
        capture = Capture(source, store, config, term=lease.term)
        with _graceful(capture.stop), _renewed(lease, capture, config.landing.lease_seconds):
            capture.run()
        return capture.progress
    finally:
        source.close()
        _release(lease)


def _refuse_failures(findings: list[Finding]) -> None:
    failed = [f for f in findings if f.state == "failed"]
    for finding in findings:
        if finding.state == "warning":
            log.warning("%s: %s", finding.name, finding.detail)
    if failed:
        lines = [f"{f.name}: {f.detail}" + (f"\n  -> {f.mend}" if f.mend else "") for f in failed]
        raise PreconditionError("\n".join(lines), hint="deltatide check shows everything that was looked at")


@contextmanager
def _graceful(stop: Callable[[], None]) -> Iterator[None]:
    """End gracefully on SIGTERM and SIGINT; a second one ends at once."""

    def ask(number: int, _frame: FrameType | None) -> None:
        log.info("%s: landing and committing what was read", signal.Signals(number).name)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.default_int_handler)
        stop()

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _renewed(lease: Lease, capture: Capture, lease_seconds: float) -> Iterator[None]:
    """Renew the lease three times in its life, with the agent's figures in it."""
    done = threading.Event()

    def renew_for_ever() -> None:
        while not done.wait(lease_seconds / 3):
            try:
                lease.renew(status_of(capture.progress))
            except TransientError as error:
                log.warning("the lease could not be renewed, trying again: %s", error)
            except DeltatideError as error:
                capture.fail(error)
                return

    thread = threading.Thread(target=renew_for_ever, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)


def status_of(progress: Progress) -> dict[str, Any]:
    """Give the agent's figures as the lease carries them."""
    return {**vars(progress), "at": time.time()}


def _release(lease: Lease) -> None:
    try:
        lease.release()
    except DeltatideError as error:
        log.warning("the lease was not released, it ends by itself: %s", error)
