"""Carries out requests to pause, resume, cancel or set existing dumps.

Requests are idempotent: each sets an absolute state. A request takes effect with the next chunk. The next
manifest records the effect and the request's id (`DumpQueue.recorded`); only then is the object removed.
After a crash before that manifest, the next agent finds the object and obeys it. A crash after it may also
leave the object, but the manifest names it as taken, so an old pause is not obeyed again after a later
resume.

No chunk is lost or read twice: a paused dump keeps its planned ranges, and a chunk that is being read is
finished and committed.

What a cancelled dump has committed stays. If the table needed it (a first dump or a repair), that need is
recorded with the table (`needs`): no cut is exact until a full dump that begins later has ended, even if
another full dump of the table is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from connector.capture.dumps.queue import DumpQueue
from connector.capture.tables import Tables
from connector.errors import RequestError
from connector.landing.manifest import KEPT_CHARACTERS, DumpSettings, DumpState, Notice, TakenRequest
from connector.landing.requests import ControlRequest

log = logging.getLogger(__name__)

NAMED = 10
"""How many dumps an error message names."""

MOST_REJECTED = 10
"""Limit of rejected requests that manifests name: they are for whoever just sent one."""


def carry_out(request: ControlRequest, dumps: DumpQueue, tables: Tables) -> None:
    """Carry out a request, to be recorded by the next manifest; `RequestError` if there is no such dump."""
    chosen = _chosen(request, dumps)
    if request.kind == "set":
        _set(request, dumps, chosen)
    elif request.kind == "cancel":
        for dump in chosen:
            _cancel(dump, request, dumps, tables)
    else:
        _pause(chosen, dumps, request)
    note_taken(request, dumps)
    said = _said(request)
    log.info("request %s: %s", request.id, said)
    tables.notice(chosen[0].table if len(chosen) == 1 else None, "dump", said)


def overtaken_by(request: ControlRequest, earlier: Iterable[ControlRequest]) -> list[ControlRequest]:
    """List waiting requests to pause or resume one dump, if this later request does so for all."""
    kinds = ("pause", "resume")
    return [e for e in earlier if request.all and e.kind in kinds] if request.kind in kinds else []


def pass_over(request: ControlRequest, later: ControlRequest, dumps: DumpQueue) -> None:
    """Record that a request never takes effect, since a later one overtook it."""
    note_taken(request, dumps)
    log.info("request %s: overtaken by %s, %s", request.id, later.id, _said(later))


def note_taken(request: ControlRequest, dumps: DumpQueue) -> None:
    """Have manifests name a request as carried out until its object is gone."""
    with dumps.changing() as schedule:
        taken = [*schedule.control.taken, TakenRequest(id=request.id, digest=request.digest)]
        schedule.control = schedule.control.model_copy(update={"taken": taken})


def note_rejected(request_id: str, reason: str, dumps: DumpQueue) -> None:
    """Have manifests name a request that was rejected, and why, until `MOST_REJECTED` later ones are."""
    notice = Notice(kind="dump", text=reason[:KEPT_CHARACTERS], at=datetime.now(timezone.utc))
    with dumps.changing() as schedule:
        others = {id_: each for id_, each in schedule.control.rejected.items() if id_ != request_id}
        last = list(others.items())[-MOST_REJECTED + 1 :]
        rejected = {**dict(last), request_id[:KEPT_CHARACTERS]: notice}
        schedule.control = schedule.control.model_copy(update={"rejected": rejected})


def was_carried_out(request: ControlRequest, dumps: DumpQueue) -> bool:
    """Return whether a request of this id and content has taken effect, and must not do so again."""
    return TakenRequest(id=request.id, digest=request.digest) in dumps.schedule.control.taken


def forget_removed(dumps: DumpQueue, removed: Sequence[TakenRequest]) -> None:
    """Forget requests whose objects are gone."""
    with dumps.changing() as schedule:
        left = [taken for taken in schedule.control.taken if taken not in removed]
        schedule.control = schedule.control.model_copy(update={"taken": left})


def unfinished(asked: str | None, states: Sequence[DumpState]) -> list[DumpState]:
    """Return the unfinished dumps of an id, which names a dump, or a request for several."""
    return [s for s in states if s.active and asked in (s.id, s.request)]


def unknown_dump(asked: str, states: Sequence[DumpState]) -> RequestError:
    """Build the error for a dump that does not exist or has ended; names the unfinished ones."""
    active = [f"{s.id} ({s.table})" for s in states if s.active]
    ended = next((s for s in states if asked in (s.id, s.request)), None)
    what = f"no dump {asked}" if ended is None else f"dump {asked} has ended ({ended.state})"
    more = f" and {len(active) - NAMED} more" if len(active) > NAMED else ""
    there_are = f"unfinished dumps: {', '.join(active[:NAMED])}{more}" if active else "no dump is unfinished"
    return RequestError(f"{what}; {there_are}")


def _chosen(request: ControlRequest, dumps: DumpQueue) -> list[DumpState]:
    if request.dump is None:
        return [s for s in dumps.states if s.active] if request.all else []
    found = unfinished(request.dump, dumps.states)
    if not found:
        raise unknown_dump(request.dump, dumps.states)
    return found


def _pause(chosen: Sequence[DumpState], dumps: DumpQueue, request: ControlRequest) -> None:
    paused = request.kind == "pause"
    with dumps.changing() as schedule:
        for dump in (d for d in chosen if d.paused != paused):
            dump.paused = paused
            schedule.restart_clock(dump)
        if request.all:
            schedule.control = schedule.control.model_copy(update={"pause_new": paused})


def _set(request: ControlRequest, dumps: DumpQueue, chosen: Sequence[DumpState]) -> None:
    def changed(before: DumpSettings | None) -> DumpSettings:
        kept = DumpSettings() if request.defaults or before is None else before
        return kept.changed(request.settings)

    with dumps.changing() as schedule:
        for dump in chosen:
            dump.settings = changed(dump.settings)
        if request.dump is None:
            settings = changed(schedule.control.settings)
            schedule.control = schedule.control.model_copy(update={"settings": settings})


def _cancel(dump: DumpState, request: ControlRequest, dumps: DumpQueue, tables: Tables) -> None:
    dumps.end(dump, "cancelled", f"cancelled by request {request.id}")
    if dump.table in dumps.needs.by_table:
        text = "its cuts are not exact until a full dump of it that begins after this has ended"
        tables.notice(dump.table, "dump", text)


def _said(request: ControlRequest) -> str:
    which = f"dump {request.dump}" if request.dump else "all dumps"
    if request.kind != "set":
        return f"{request.kind} {which}"
    given = [f"{name} = {value}" for name, value in request.settings if value is not None]
    return f"set {', '.join(['defaults'] * request.defaults + given)} for {which}"
