"""Verifications for the command: request the reading from the agent, and wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from connector.control.source_view import SourceView
from connector.errors import PreconditionError, RequestError, TransientError
from connector.landing.dump_progress import progress_of
from connector.landing.manifest import DumpState, Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import pending_ids, rejection_of
from connector.schema import TableName

TABLES_AT_ONCE = 50
"""Tables per request: fewer than the finished dumps that manifests list."""

POLL_SECONDS = 0.5

Progress = Callable[[int, int, str], None]
"""Called with the amount done, the total, and what is under way."""


def captured_tables(view: SourceView) -> tuple[list[TableName], list[TableName]]:
    """Return the tables that land, and those that are quarantined or have never landed."""
    tables = view.newest().tables
    landing = [
        name for name, t in sorted(tables.items()) if t.state == "captured" and t.schema_id is not None
    ]
    keyless = {name for name in landing if not tables[name].key}  # nothing to compare
    return [t for t in landing if t not in keyless], [name for name in sorted(tables) if name not in landing]


def require_agent(view: SourceView) -> None:
    """Raise `PreconditionError` if no agent is running to read the source."""
    lease = view.lease()
    if lease is None or not lease.active:
        raise PreconditionError(
            f"no agent of source {view.config.source.name} is running", hint="start it: deltatide run"
        )


def await_dumps(
    view: SourceView,
    request: str,
    progress: Progress,
    stop: threading.Event,
    meanwhile: Callable[[Sequence[DumpState]], object] = lambda _: None,
) -> list[DumpState]:
    """Wait until the dumps of a request have ended, and those that their tables need to be whole.

    Without the latter, a comparison would show what is about to be repaired. `meanwhile`: called with the
    request's dumps between two looks, for as long as it likes. Returns those of the request's
    dumps that manifests list, failed ones included; none once `stop` is set. `RequestError` if the agent
    rejects the request, or if so many dumps have ended meanwhile that manifests no longer list any of its.
    """
    seen = taken = False
    while not stop.is_set():
        with suppress(TransientError):
            manifest = newest_manifest(view.store)
            ours = _of_request(manifest, request)
            if manifest is not None and ours:
                seen = True
                left = _left(manifest, ours)
                if not left:
                    return ours
                progress(*_progress(ours, left, manifest))
                meanwhile(ours)
            elif (why := rejection_of(view.store, request)) is not None:
                raise RequestError(f"the agent rejected request {request}: {why}")
            elif seen or taken:
                raise RequestError(
                    f"verification {request} is no longer in the manifests", hint="verify again"
                )
            else:
                taken = request not in pending_ids(view.store)  # then the next look finds its dumps
                progress(0, 1, "waiting for the agent")
        stop.wait(POLL_SECONDS)
    return []


def _of_request(manifest: Manifest | None, request: str) -> list[DumpState]:
    return [dump for dump in (manifest.dumps if manifest else ()) if request in (dump.request, dump.id)]


def _left(manifest: Manifest, ours: Sequence[DumpState]) -> list[DumpState]:
    """Return the unfinished dumps to wait for, without paused ones that only the table needs."""
    tables = {dump.table for dump in ours}
    needed = (d for d in manifest.dumps if d.table in tables and d.reason != "request" and not d.paused)
    return [dump for dump in (*ours, *needed) if dump.active]


def _progress(
    ours: Sequence[DumpState], left: Sequence[DumpState], manifest: Manifest
) -> tuple[int, int, str]:
    """Return the percentage done, the total, and what is under way."""
    known = [progress_of(dump, dumps=manifest.dumps) for dump in ours]
    done = sum(1.0 if not dump.active else p.share or 0.0 for dump, p in zip(ours, known, strict=True))
    first = left[0]
    why = progress_of(first, dumps=manifest.dumps)
    waits = "" if first in ours else f" ({first.reason})"
    return round(100 * done), 100 * len(ours), f"{first.table}{waits}: {why.state}, {first.rows:,} rows read"
