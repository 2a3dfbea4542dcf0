"""The agent as a process: preconditions, lease, capture, graceful shutdown.

Order: the store is probed and the source checked before anything is written; the lease is taken before the
newest manifest is read; it is released after the last commit. Losing the lease ends capture at once, and even
an agent that has not noticed cannot commit: the manifest is the fence. One thing precedes the checks: a
server that writes no log is recorded as a gap as soon as it is seen, whatever else then ends the start.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connector.capture.loop import Capture
from connector.capture.manifest_history import ManifestHistory, check_identity
from connector.capture.retry import retrying
from connector.config import Config
from connector.control.live_agent import LiveAgent
from connector.control.server import serving
from connector.errors import (
    ConfigurationError,
    DeltatideError,
    FencedError,
    LogOffError,
    OperatorError,
    PreconditionError,
    TransientError,
)
from connector.figures.progress import Progress
from connector.figures.source_load import LoadGauge
from connector.landing.lease import Lease
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.signals import reloaded_by_signal, stopped_by_signals
from connector.source import Finding, Source, unfit_tables
from connector.store.factory import open_store
from connector.store.observed import ObservedStore
from connector.store.probe import probe
from connector.store.protocol import Store

log = logging.getLogger(__name__)

STALE_SECONDS = 2.0
"""After waiting longer than this for the lease, configuration and source are looked at again."""

HANDOVER_SECONDS = 5.0
"""How long an agent that handed over leaves the lease to others before it may take it back."""


def open_source(config: Config) -> Source:
    """Open the source that the configuration names. Connects only on first use."""
    if config.source.kind == "postgres":
        from connector.postgres.source import PostgresSource

        return PostgresSource(config.source, config.tables)
    from connector.mysql.source import MysqlSource

    return MysqlSource(config.source, config.tables)


def open_gauge(config: Config) -> LoadGauge:
    """Open what measures the load of the configured source, over a connection of its own."""
    if config.source.kind == "postgres":
        from connector.postgres.load import PostgresGauge

        return PostgresGauge(config.source)
    from connector.mysql.server import MysqlGauge

    return MysqlGauge(config.source)


def check(config: Config) -> list[Finding]:
    """Check every precondition of source and landing zone, and report all of them. Leaves nothing behind."""
    store = open_store(config.landing, config.source.name, patient=False)
    try:
        landing_zone = _check_landing(store)
    except TransientError as error:
        landing_zone = Finding("landing zone", "failed", str(error), error.hint)
    newest = functools.partial(newest_manifest, store) if landing_zone.state != "failed" else None
    try:
        return [landing_zone, *_check_source(config, newest)]
    except TransientError as error:
        return [landing_zone, Finding("source", "failed", str(error), error.hint)]


def _check_source(
    config: Config,
    newest: Callable[[], Manifest | None] | None,
    on_log_off: Callable[[Source], None] | None = None,
) -> list[Finding]:
    """Check the source and, if `newest` can be read, that the landing zone belongs to it.

    `on_log_off` is called before all else if the server writes no log, which nothing shows later. A named
    table that is missing was dropped if anything has landed; otherwise its name is wrong.
    `TransientError` if the source or the landing zone does not answer.
    """
    findings: list[Finding] = []
    source = open_source(config)
    try:
        findings += _check_logging(source, on_log_off)
        findings += source.check()
        landed = newest() if newest is not None else None
        if landed is None:
            findings = [dataclasses.replace(f, dropped=False) for f in findings]
        if newest is not None:
            findings.append(_check_identity(landed, source))
    except TransientError:
        raise
    except DeltatideError as error:
        findings.append(Finding("source", "failed", str(error), error.hint))
    finally:
        source.close()
    return findings


def _check_logging(source: Source, on_log_off: Callable[[Source], None] | None) -> list[Finding]:
    try:
        source.ensure_logging()
    except LogOffError as error:
        if on_log_off is not None:
            on_log_off(source)
        return [Finding("log", "failed", str(error), error.hint)]
    return []


def _check_landing(store: Store) -> Finding:
    """Probe the store; `TransientError` if it does not answer."""
    try:
        probe(store)
    except OperatorError as error:
        return Finding("landing zone", "failed", str(error), error.hint)
    return Finding("landing zone", "ok", f"{store.url} is writable and honors conditional creates")


def _check_identity(newest: Manifest | None, source: Source) -> Finding:
    if newest is None:
        return Finding("history", "ok", "a new one begins")
    try:
        check_identity(newest.source, source.identity(newest))
    except OperatorError as error:
        return Finding("history", "failed", str(error), error.hint)
    return Finding("history", "ok", f"resumes after manifest {newest.number}")


def run(
    config: Config, load_config: Callable[[], Config] | None = None, *, standby: bool = False
) -> Progress:
    """Run the agent until SIGTERM or Ctrl-C (a graceful end), or until an error stops it (raised).

    At SIGHUP it takes over what `load_config` returns (`Config.reloaded`).
    Waits for a store or a database that does not answer, at startup too. Its HTTP side answers from the
    beginning to the end.

    As a `standby` it waits for as long as another agent is active. It stands by again when it is asked to
    hand over, when another one has taken over, and when it could not read the log for half the length of the
    lease, so that one that can may go on.
    """
    store = ObservedStore(open_store(config.landing, config.source.name))
    live = LiveAgent(config, store)
    stopped = threading.Event()
    with serving(live):
        while True:
            try:
                capture = _run_once(live, store, load_config, standby, stopped)
            except FencedError as error:
                if not standby or stopped.is_set():
                    raise
                log.warning("%s; standing by", error)
            else:
                if stopped.is_set() or not capture.handed_over:
                    return capture.progress
            live.stand_by()


def _run_once(
    live: LiveAgent,
    store: Store,
    load_config: Callable[[], Config] | None,
    standby: bool,
    stopped: threading.Event,
) -> Capture:
    """Check, wait for the lease, and capture until it is lost or handed over, or the agent is `stopped`."""
    config = live.config
    findings = _checked(config, store)
    live.stand_by()
    checked_at = time.monotonic()
    lease = _acquire_lease(config, store, standby=standby)
    source: Source | None = None
    capture: Capture | None = None
    try:
        if time.monotonic() - checked_at > STALE_SECONDS:
            config = _as_of_now(config, load_config)
            findings = retrying(threading.Event(), "the source")(_check_source, config, None)
            _raise_failures(findings)
        source = open_source(config)
        capture = Capture(
            source,
            store,
            config,
            term=lease.term,
            closes_fence=lease.expired,
            unfit=unfit_tables(findings),
            open_gauge=functools.partial(open_gauge, config),
            load_config=load_config,
            hands_over=standby,
        )
        live.activate(capture, lease)

        def stop(number: signal.Signals) -> None:
            log.info("%s: landing and committing what was read", number.name)
            stopped.set()
            capture.stop()

        renewing = renewing_lease(lease, capture, config.landing.lease_seconds)
        with stopped_by_signals(stop), reloaded_by_signal(capture.reload), renewing:
            capture.run()
    finally:
        if source is not None:
            source.close()
        lease.release(fenced=_fenced(capture, lease))
    if capture.handed_over and not stopped.is_set():
        live.stand_by()
        log.info("handed over; standing by")
        lease.wait_until_taken(HANDOVER_SECONDS)
    return capture


def _fenced(capture: Capture | None, lease: Lease) -> bool:
    """Return whether a manifest of this term is committed, after which no earlier agent can commit."""
    newest = capture.newest if capture is not None else None
    return newest is not None and newest.term >= lease.term


def _as_of_now(config: Config, load_config: Callable[[], Config] | None) -> Config:
    """Return what an agent that had run all along would have taken over of its file by now."""
    if load_config is None:
        return config
    try:
        return config.reloaded(load_config())[0]
    except ConfigurationError as error:
        log.error("the configuration stays as it was at the start: %s", error)
        return config


def _checked(config: Config, store: Store) -> list[Finding]:
    """Check store and source, waiting for those that do not answer; `PreconditionError` if they are unfit."""
    patiently = retrying(threading.Event())
    landing_zone = patiently(_check_landing, store)
    newest = functools.partial(patiently, newest_manifest, store) if landing_zone.state != "failed" else None
    asking_source = retrying(threading.Event(), "the source")
    record = functools.partial(_record_log_off, config, store) if newest is not None else None
    findings = [landing_zone, *asking_source(_check_source, config, newest, record)]
    _raise_failures(findings)
    return findings


def _acquire_lease(config: Config, store: Store, *, standby: bool = False) -> Lease:
    """Wait for the lease, and for a store that does not answer."""
    holder, seconds = uuid.uuid4().hex, config.landing.lease_seconds
    patiently = retrying(threading.Event())
    return patiently(Lease.acquire, store, seconds, log.info, holder=holder, standby=standby)


def _record_log_off(config: Config, store: Store, source: Source) -> None:
    """Record the gap of a server that writes no log, if its landing zone has a manifest; durable on return.

    An active agent will see it by itself. `SourceMismatchError` if it is another database's.
    """
    if retrying(threading.Event())(newest_manifest, store) is None:
        return
    try:
        lease = _acquire_lease(config, store)
    except FencedError as error:
        log.warning("the server writes no log, and %s", error)
        return
    try:
        manifest_history = ManifestHistory(store, lease.term)
        manifest_history.load(lambda landed: landed.source)
        manifest_history.note_log_off(source.identity)
    finally:
        lease.release()


def _raise_failures(findings: list[Finding]) -> None:
    """Raise if a failure concerns the whole source; a failure of one table quarantines that table."""
    failed = [f for f in findings if f.state == "failed" and f.table is None and not f.dropped]
    for finding in findings:
        if finding.state == "warning" or finding.dropped:
            log.warning("%s: %s", finding.name, finding.detail)
    if failed:
        lines = [f"{f.name}: {f.detail}" + (f"\n  -> {f.fix}" if f.fix else "") for f in failed]
        raise PreconditionError("\n".join(lines), hint="deltatide check shows the result of every check")


@contextmanager
def renewing_lease(lease: Lease, capture: Capture, lease_seconds: float) -> Iterator[None]:
    """Renew the lease three times per lease period, with the agent's figures in it.

    An agent that can't read the log for half of that hands over, if it is one of several.
    """
    done = threading.Event()

    def renew_until_done() -> None:
        while not done.wait(lease_seconds / 3):
            try:
                lease.renew(capture.progress.figures(capture.newest), fenced=_fenced(capture, lease))
                if capture.hands_over and capture.progress.lost_seconds > lease_seconds / 2:
                    log.warning("the log could not be read for %.1f s", capture.progress.lost_seconds)
                    capture.hand_over()
            except TransientError as error:
                log.warning("can't renew the lease, retrying: %s", error)
            except DeltatideError as error:
                capture.fail(error)
                return

    thread = threading.Thread(target=renew_until_done, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)
