"""Lists dumps and leaves requests about them in the landing zone, for commands and HTTP API.

The agent carries them out and rejects what is wrong; obviously invalid requests are refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from connector.capture.dump_controls import unknown_dump
from connector.capture.dump_schedule import DumpSchedule, Settings
from connector.control.source_view import SourceView, captured_name
from connector.errors import RequestError
from connector.landing.dump_progress import DumpProgress, progress_of
from connector.landing.manifest import DumpState
from connector.landing.requests import (
    ControlRequest,
    DumpRequest,
    KeyEnds,
    pending_ids,
    submit,
    why_not_dumped,
)


@dataclass(frozen=True)
class DumpList:
    """The dumps that the newest manifest lists, oldest first, and the settings for all together.

    `pause_new`: dumps queued from now on begin paused. `held_back`: why the agent reads no chunks for now.
    """

    dumps: list[tuple[DumpState, DumpProgress]]
    settings: Settings
    pause_new: bool
    held_back: str | None

    def as_json(self) -> list[dict[str, Any]]:
        """Return the dumps as ``--json`` and the HTTP API give them, without keys and planned ranges."""
        return [
            dump.model_dump(mode="json", exclude={"open", "keys"}) | asdict(progress)
            for dump, progress in self.dumps
        ]


def list_dumps(view: SourceView) -> DumpList:
    """Return all dumps with their progress; `PreconditionError` if nothing has landed yet."""
    manifest, lease = view.newest(), view.lease()
    held_back = view.figures().get("dumps_held_back") if lease is not None and lease.active else None
    schedule = DumpSchedule(view.dump_config, manifest.dump_control)
    return DumpList(
        [(dump, progress_of(dump, held_back, manifest.dumps)) for dump in manifest.dumps],
        schedule.settings(),
        schedule.control.pause_new,
        held_back,
    )


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
    """Leave a request for dumps in the landing zone, and return its id; `tables` None: all.

    With an id of the caller's, the same request sent again is taken once. `verify`: the rows are compared
    with the lake instead of merged; or their `checksums`, or those of `ranges` of the first key column.
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
    """Leave a request about dumps that there are (`ControlRequest`), and return its id.

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
