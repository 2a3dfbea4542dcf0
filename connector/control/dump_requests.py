"""Lists dumps, and writes requests about them to the landing zone, for commands and HTTP API.

Obviously invalid requests are refused here. The agent carries out the others, or rejects them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from pydantic import ValidationError

from connector.capture.dumps.controls import unknown_dump
from connector.capture.dumps.schedule import DumpSchedule, Settings
from connector.capture.dumps.tasks import unused_id
from connector.control.source_view import SourceView, captured_name
from connector.errors import RequestError
from connector.landing.dump_progress import DumpProgress, progress_of
from connector.landing.manifest import DumpState, Manifest, Notice
from connector.landing.requests import (
    ControlRequest,
    DumpRequest,
    KeyEnds,
    Malformed,
    pending_ids,
    submit,
    why_not_dumped,
)

NOT_TAKEN = DumpProgress("queued", "no agent has taken it yet")


@dataclass(frozen=True)
class DumpList:
    """The dumps that the newest manifest lists, oldest first, and the settings for all together.

    Then those of requests that no agent has taken yet, which no manifest knows. `rejected`: why the last
    requests were, or will be, rejected, by id.
    `pause_new`: dumps queued later begin paused. `held_back`: why the agent is reading no chunks.
    """

    dumps: list[tuple[DumpState, DumpProgress]]
    settings: Settings
    pause_new: bool
    held_back: str | None
    rejected: Mapping[str, Notice] = field(default_factory=dict)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the dumps for ``--json`` and the HTTP API, without keys and planned ranges.

        Rejected requests follow, as dumps of which nothing else is known.
        """
        listed = [
            dump.model_dump(mode="json", exclude=_LEFT_OUT) | asdict(progress)
            for dump, progress in self.dumps
        ]
        return listed + [
            dict.fromkeys([*sorted(DumpState.model_fields.keys() - _LEFT_OUT), *vars(NOT_TAKEN)])
            | {"id": name, "request": name, "state": "rejected", "why": why.text, "finished_at": at}
            for name, why in self.rejected.items()
            for at in [why.model_dump(mode="json")["at"]]
        ]


_LEFT_OUT = {"open", "ranges", "keys"}


def list_dumps(view: SourceView) -> DumpList:
    """Return all dumps with their progress; `PreconditionError` if nothing has landed yet."""
    manifest, lease = view.newest(), view.lease()
    held_back = view.figures().dumps_held_back if lease is not None and lease.active else None
    schedule = DumpSchedule(view.dump_config, manifest.dump_control)
    listed = [(dump, progress_of(dump, held_back, manifest.dumps)) for dump in manifest.dumps]
    waiting = view.waiting_requests()
    asked = (dump for each in waiting if isinstance(each, DumpRequest) for dump in _asked_for(each, manifest))
    malformed = {
        each.id: Notice(kind="dump", text=each.problem, at=datetime.now(timezone.utc))
        for each in waiting
        if isinstance(each, Malformed)
    }
    return DumpList(
        [*listed, *((dump, NOT_TAKEN) for dump in asked)],
        schedule.settings(),
        schedule.control.pause_new,
        held_back,
        malformed | schedule.control.rejected,
    )


def _asked_for(request: DumpRequest, manifest: Manifest) -> list[DumpState]:
    """Return the dumps that a request will become; none if the manifest has them."""
    if any((dump.request, dump.digest) == (request.id, request.digest) for dump in manifest.dumps):
        return []
    last = max((dump.number for dump in manifest.dumps), default=0)
    names = request.tables or [name for name, table in sorted(manifest.tables.items()) if table.key]
    return [
        DumpState(
            number=0,
            id=unused_id(request.id, part if len(names) > 1 else None, manifest.dumps, last),
            request=request.id,
            digest=request.digest,
            table=name,
            kind=request.dump_kind,
            reason=request.reason,
            where=request.where,
            epoch=manifest.epoch,
            requested_at=request.requested_at,
            started_in=manifest.number,
            rows_estimate=len(request.keys) if request.keys else None,
        )
        for part, name in enumerate(names)
    ]


def request_dump(
    view: SourceView,
    tables: list[str] | None,
    where: str | None = None,
    keys: list[list[str]] | None = None,
    request_id: str | None = None,
    *,
    verify: bool = False,
    checksums: bool = False,
    ranges: Sequence[KeyEnds] | None = None,
) -> str:
    """Write a request for dumps to the landing zone, and return its id; `tables` None: all.

    With the caller's own id, the same request sent again is accepted once. `verify`: compare the rows with
    the lake instead of merging them; or only their `checksums`, or only `ranges` of the first key column.
    `RequestError` if a table is not captured, or only its changes are.
    """
    captured = view.newest().tables
    names = None if tables is None else [captured_name(text, captured) for text in tables]
    for name in names or ():
        if why := why_not_dumped(name, captured[name]):
            raise RequestError(why)
    try:
        more: dict[str, Any] = {} if request_id is None else {"id": request_id}
        more |= {"verify": True} if verify else {}
        more |= {"checksums": True} if checksums else {}
        more |= {"ranges": ranges} if ranges else {}
        request = DumpRequest(tables=names, where=where, keys=keys, **more)
    except ValidationError as error:
        raise _refused(error) from error
    return submit(view.store, request)


def request_control(view: SourceView, **what: Any) -> str:
    """Write a request about existing dumps (`ControlRequest`), and return its id.

    `RequestError` if the dump that it names does not exist or has ended.
    """
    try:
        request = ControlRequest(**what)
    except ValidationError as error:
        raise _refused(error) from error
    dumps = view.newest().dumps
    unfinished = {name for dump in dumps if dump.active for name in (dump.id, dump.request)}
    if request.dump is not None and request.dump not in unfinished | pending_ids(view.store):
        raise unknown_dump(request.dump, dumps)
    return submit(view.store, request)


def _refused(error: ValidationError) -> RequestError:
    return RequestError(str(error.errors()[0]["msg"]).removeprefix("Value error, "))
