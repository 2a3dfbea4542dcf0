"""The agent as a process: preconditions, lease, capture, graceful end.

Order: the store is probed and the source checked before anything is written; the lease is taken before the
newest manifest is read; it is released after the last commit. A lease that is lost ends capture at once, and
even an agent that has not noticed cannot commit: the manifest is the fence.
"""

from __future__ import annotations

import difflib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from connector.capture import Capture, Progress
from connector.config import Config
from connector.errors import DeltatideError, PreconditionError, RequestError, TransientError
from connector.lease import Holder, Lease, read_lease
from connector.ledger import check_identity
from connector.manifest import Manifest
from connector.requests import DumpRequest, submit
from connector.schema import TableName
from connector.signals import stopped_by_signals
from connector.source import Finding, Source
from connector.store import Store, newest_manifest, open_store, probe

log = logging.getLogger(__name__)


def open_source(config: Config) -> Source:
    """Open the source that the configuration names. Connects only when asked something."""
    if config.source.kind == "postgres":
        from connector.postgres.source import PostgresSource

        return PostgresSource(config.source, config.tables)
    from connector.mysql.source import MysqlSource

    return MysqlSource(config.source, config.tables)


def check(config: Config) -> list[Finding]:
    """Look at every precondition of source and landing zone and report all of them. Leaves nothing behind."""
    store = open_store(config.landing, config.source.name)
    findings = [_check_landing(store)]
    source = open_source(config)
    try:
        findings += source.check()
        if findings[0].state != "failed":  # else it would fail for the same reason
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
        check_identity(newest.source, source.identity(newest))
    except DeltatideError as error:
        return Finding("history", "failed", str(error), error.hint)
    return Finding("history", "ok", f"goes on after manifest {newest.number}")


def run(config: Config) -> Progress:
    """Run the agent until SIGTERM or Ctrl-C (a graceful end), or until it can't go on (raised)."""
    _refuse_failures(check(config))
    store = open_store(config.landing, config.source.name)
    source = open_source(config)
    lease = Lease.acquire(store, config.landing.lease_seconds, log.info)
    try:
        capture = Capture(source, store, config, term=lease.term)

        def stop(number: signal.Signals) -> None:
            log.info("%s: landing and committing what was read", number.name)
            capture.stop()

        with stopped_by_signals(stop), _renewed(lease, capture, config.landing.lease_seconds):
            capture.run()
        return capture.progress
    finally:
        source.close()
        lease.release()


def _refuse_failures(findings: list[Finding]) -> None:
    failed = [f for f in findings if f.state == "failed"]
    for finding in findings:
        if finding.state == "warning":
            log.warning("%s: %s", finding.name, finding.detail)
    if failed:
        lines = [f"{f.name}: {f.detail}" + (f"\n  -> {f.mend}" if f.mend else "") for f in failed]
        raise PreconditionError("\n".join(lines), hint="deltatide check shows everything that was looked at")


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


def newest(config: Config) -> Manifest:
    """Read the newest manifest of the configured source; `PreconditionError` when nothing has landed yet."""
    store = open_store(config.landing, config.source.name)
    manifest = newest_manifest(store)
    if manifest is None:
        raise PreconditionError(f"{store.url} holds no manifest", hint="start the agent: deltatide run")
    return manifest


def request_dump(
    config: Config, tables: list[str] | None, where: str | None = None, keys: list[list[str]] | None = None
) -> str:
    """Leave a request for a dump in the landing zone, for the agent to take up, and give its id.

    `tables` None: all. `RequestError` for a table that is not captured.
    """
    captured = newest(config).tables
    names = None if tables is None else [_captured_name(text, captured) for text in tables]
    try:
        request = DumpRequest(tables=names, where=where, keys=keys)
    except ValidationError as error:
        raise RequestError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error
    return submit(open_store(config.landing, config.source.name), request)


def _captured_name(text: str, captured: Collection[str]) -> str:
    try:
        name = str(TableName.parse(text))
    except ValueError as error:
        raise RequestError(str(error)) from error
    if name not in captured:
        near = difflib.get_close_matches(name, captured, 1)
        meant = f"did you mean {near[0]}" if near else f"captured are {', '.join(sorted(captured))}"
        raise RequestError(f"{name} is not a captured table", hint=meant)
    return name


def _agent_line(lease: Holder | None) -> str:
    if lease is None or not lease.active:
        return "none is active"
    return f"process {lease.pid} on {lease.host} since {lease.since:%Y-%m-%d %H:%M:%S}Z, term {lease.term}"


def status(config: Config) -> dict[str, Any]:
    """Tell who is active, how far the log has landed, and how each table stands; for people and for JSON."""
    manifest = newest(config)
    lease = read_lease(open_store(config.landing, config.source.name))
    active = Counter(d.table for d in manifest.dumps if d.active)
    return {
        "source": f"{manifest.source.name} ({manifest.source.kind} {manifest.source.version or ''})".strip(),
        "agent": _agent_line(lease),
        "figures": lease.status if lease else {},
        "manifest": manifest.number,
        "position": manifest.place,
        "epoch": manifest.epoch,
        "committed": manifest.committed_at,
        "source time": manifest.source_committed_at,
        "exact": manifest.exact,
        "gaps": len(manifest.gaps),
        "tables": {
            name: {
                "state": t.state, "dumped": t.dumped, "active_dumps": active[name],
                "reason": t.reason, "hint": t.hint,
            }
            for name, t in sorted(manifest.tables.items())
        },
    }  # fmt: skip
