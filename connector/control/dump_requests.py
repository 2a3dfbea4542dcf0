"""What people ask of dumps and see of them, for the commands: requests are left in the landing zone.

The agent carries them out and rejects what is wrong; what can be seen to be wrong before, is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from connector.agent import captured_name, newest
from connector.capture.dump_controls import unknown_dump
from connector.capture.dump_schedule import DumpSchedule, Settings
from connector.config import Config
from connector.errors import RequestError
from connector.landing.dump_progress import DumpProgress, progress_of
from connector.landing.lease import read_lease
from connector.landing.manifest import DumpState
from connector.landing.requests import ControlRequest, DumpRequest, pending_ids, submit
from connector.store.factory import open_store
from connector.store.protocol import Store


@dataclass(frozen=True)
class DumpList:
    """The dumps that the newest manifest lists, oldest first, and the settings that hold for all together.

    `pause_new`: dumps queued from now on begin paused. `held_back`: why the agent reads no chunks for now.
    """

    dumps: list[tuple[DumpState, DumpProgress]]
    settings: Settings
    pause_new: bool
    held_back: str | None


def list_dumps(config: Config) -> DumpList:
    """Return all dumps with their progress; `PreconditionError` if nothing has landed yet."""
    manifest = newest(config)
    lease = read_lease(_store(config))
    held_back = lease.status.get("dumps_held_back") if lease is not None and lease.active else None
    schedule = DumpSchedule(config.dump, manifest.dump_control)
    return DumpList(
        [(dump, progress_of(dump, held_back, manifest.dumps)) for dump in manifest.dumps],
        schedule.settings(),
        schedule.control.pause_new,
        held_back,
    )


def request_dump(
    config: Config,
    tables: list[str] | None,
    where: str | None = None,
    keys: list[list[str]] | None = None,
    request_id: str | None = None,
) -> str:
    """Leave a request for dumps in the landing zone, and return its id; `tables` None: all.

    With an id of the caller's, the same request sent again is taken once. `RequestError` if a table is not
    captured.
    """
    captured = newest(config).tables
    names = None if tables is None else [captured_name(text, captured) for text in tables]
    try:
        named = {} if request_id is None else {"id": request_id}
        request = DumpRequest(tables=names, where=where, keys=keys, **named)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _refused(error) from error
    return submit(_store(config), request)


def request_control(config: Config, **what: Any) -> str:
    """Leave a request about dumps that there are (`ControlRequest`), and return its id.

    `RequestError` if the dump that it names does not exist or has ended.
    """
    try:
        request = ControlRequest(**what)
    except ValidationError as error:
        raise _refused(error) from error
    store, dumps = _store(config), newest(config).dumps
    unfinished = {name for dump in dumps if dump.active for name in (dump.id, dump.request)}
    if request.dump is not None and request.dump not in unfinished | pending_ids(store):
        raise unknown_dump(request.dump, dumps)
    return submit(store, request)


def _refused(error: ValidationError) -> RequestError:
    return RequestError(str(error.errors()[0]["msg"]).removeprefix("Value error, "))


def _store(config: Config) -> Store:
    return open_store(config.landing, config.source.name, patient=False)
