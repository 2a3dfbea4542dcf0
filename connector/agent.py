"""The agent as a process: preconditions, lease, capture, graceful shutdown.

Order: the store is probed and the source checked before anything is written; the lease is taken before the
newest manifest is read; it is released after the last commit. Losing the lease ends capture at once, and even
an agent that has not noticed cannot commit: the manifest is the fence. One thing precedes the checks: a
server that writes no log is recorded as a gap as soon as it is seen, whatever else then ends the start.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from connector.capture.loop import Capture, Progress
from connector.capture.manifest_history import ManifestHistory, check_identity
from connector.capture.retry import retrying
from connector.config import Config
from connector.errors import (
    DeltatideError,
    LogOffError,
    OperatorError,
    PreconditionError,
    RequestError,
    TransientError,
)
from connector.landing.consumers import read_consumers
from connector.landing.layout_history import LayoutVersion, layout_history
from connector.landing.lease import Holder, Lease, read_lease
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.schema import TableName
from connector.signals import reloaded_by_signal, stopped_by_signals
from connector.source import Finding, Source, unfit_tables
from connector.source_load import LoadGauge
from connector.store.factory import open_store
from connector.store.probe import probe
from connector.store.protocol import Store

log = logging.getLogger(__name__)


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


def run(config: Config, load_config: Callable[[], Config] | None = None) -> Progress:
    """Run the agent until SIGTERM or Ctrl-C (a graceful end), or until an error stops it (raised).

    At SIGHUP it takes over what `load_config` returns (`Config.reloaded`).
    Waits for a store or a database that does not answer, at startup too.
    """
    store = open_store(config.landing, config.source.name)
    patiently = retrying(threading.Event())
    landing_zone = patiently(_check_landing, store)
    newest = functools.partial(patiently, newest_manifest, store) if landing_zone.state != "failed" else None
    asking_source = retrying(threading.Event(), "the source")
    record = functools.partial(_record_log_off, config, store) if newest is not None else None
    findings = [landing_zone, *asking_source(_check_source, config, newest, record)]
    _raise_failures(findings)
    source = open_source(config)
    lease = _acquire_lease(config, store)
    try:
        gauge = functools.partial(open_gauge, config)
        unfit = unfit_tables(findings)
        capture = Capture(
            source, store, config, term=lease.term, unfit=unfit, open_gauge=gauge, load_config=load_config
        )

        def stop(number: signal.Signals) -> None:
            log.info("%s: landing and committing what was read", number.name)
            capture.stop()

        if load_config is not None:
            capture.reload()  # the file may have changed while the lease was waited for
        renewing = renewing_lease(lease, capture, config.landing.lease_seconds)
        with stopped_by_signals(stop), reloaded_by_signal(capture.reload), renewing:
            capture.run()
        return capture.progress
    finally:
        source.close()
        lease.release()


def _acquire_lease(config: Config, store: Store) -> Lease:
    """Wait for the lease, and for a store that does not answer."""
    holder = uuid.uuid4().hex
    patiently = retrying(threading.Event())
    return patiently(Lease.acquire, store, config.landing.lease_seconds, log.info, holder=holder)


def _record_log_off(config: Config, store: Store, source: Source) -> None:
    """Record the gap of a server that writes no log, if its landing zone has a manifest; durable on return.

    `SourceMismatchError` if it is another database's.
    """
    if retrying(threading.Event())(newest_manifest, store) is None:
        return
    lease = _acquire_lease(config, store)
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
    """Renew the lease three times per lease period, with the agent's figures in it."""
    done = threading.Event()

    def renew_until_done() -> None:
        while not done.wait(lease_seconds / 3):
            try:
                lease.renew(status_of(capture.progress))
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


def status_of(progress: Progress) -> dict[str, Any]:
    """Return the agent's figures as stored in the lease."""
    return {**vars(progress), "at": time.time()}


def newest(config: Config) -> Manifest:
    """Return the newest manifest of the configured source; `PreconditionError` if nothing has landed yet."""
    store = open_store(config.landing, config.source.name, patient=False)
    manifest = newest_manifest(store)
    if manifest is None:
        raise PreconditionError(
            f"{store.url} has no manifest yet", hint="start the agent first: deltatide run"
        )
    return manifest


def captured_name(text: str, captured: Collection[TableName]) -> TableName:
    """Parse the name of a captured table; `RequestError`, with the nearest one, for another."""
    try:
        name = TableName.parse(text)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if name not in captured:
        known = sorted(map(str, captured))
        near = difflib.get_close_matches(str(name), known, 1)
        meant = f"did you mean {near[0]}" if near else f"captured tables: {', '.join(known)}"
        raise RequestError(f"{name} is not a captured table", hint=meant)
    return name


def layouts_of(config: Config, table: str) -> list[LayoutVersion]:
    """Return the layouts that a captured table has had, newest first; at least one.

    `RequestError` for an unknown table, and for one that never had a layout that can be captured.
    """
    manifest = newest(config)
    name = captured_name(table, manifest.tables)
    found = layout_history(open_store(config.landing, config.source.name, patient=False), manifest, name)
    if not found:
        state = manifest.tables[name]
        raise RequestError(
            f"{name} has never had a layout that could be captured: {state.reason}", hint=state.hint
        )
    return found


def _agent_line(lease: Holder | None) -> str:
    if lease is None or not lease.active:
        return "none active"
    process = f"process {lease.pid} on {lease.host}"
    if lease.until < datetime.now(timezone.utc):  # by the clocks of both, so it may be wrong
        ran_out = f"{lease.until:%Y-%m-%d %H:%M:%S}Z"
        return f"probably none: the lease of {process} expired at {ran_out}"
    return f"{process} since {lease.since:%Y-%m-%d %H:%M:%S}Z, term {lease.term}"


@dataclass(frozen=True)
class TableStatus:
    """The state of a table; `reason` and `hint` are set if it is quarantined."""

    state: str
    dumped: bool
    active_dumps: int
    reason: str | None
    hint: str | None


@dataclass(frozen=True)
class LakeStatus:
    """A lake that merges from the landing zone: up to which manifest all tables are merged, as of `at`."""

    lake: str
    manifest: int
    at: datetime


@dataclass(frozen=True)
class Status:
    """What the newest manifest and the lease say. `agent` is for people, `figures` are the agent's; UTC."""

    source: str
    agent: str
    figures: dict[str, Any]
    manifest: int
    position: str
    epoch: int
    committed_at: datetime
    source_committed_at: datetime | None
    exact: bool
    gaps: int
    tables: dict[str, TableStatus]
    lakes: list[LakeStatus]

    @property
    def quarantined(self) -> list[str]:
        """Return the tables that need attention."""
        return [name for name, table in self.tables.items() if table.state == "quarantined"]


def status(config: Config) -> Status:
    """Return who is active, how far the log has landed, and the state of each table."""
    manifest = newest(config)
    store = open_store(config.landing, config.source.name, patient=False)
    lease = read_lease(store)
    active = Counter(d.table for d in manifest.dumps if d.active)
    return Status(
        source=f"{manifest.source.name} ({manifest.source.kind} {manifest.source.version or ''})".strip(),
        agent=_agent_line(lease),
        figures=lease.status if lease else {},
        manifest=manifest.number,
        position=manifest.position_text,
        epoch=manifest.epoch,
        committed_at=manifest.committed_at,
        source_committed_at=manifest.source_committed_at,
        exact=manifest.exact,
        gaps=len(manifest.gaps),
        tables={
            str(name): TableStatus(t.state, t.dumped, active[name], t.reason, t.hint)
            for name, t in sorted(manifest.tables.items())
        },
        lakes=[LakeStatus(c.lake, c.manifest, c.at) for c in read_consumers(store)],
    )
