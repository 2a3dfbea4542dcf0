"""Requests: what people and jobs ask of the agent, as objects in the landing zone.

A request is an object ``requests/<id>.json``, or a folder of that name as Spark jobs write it, whose part
files together are the request. It stays until the manifest that takes it over is committed. So a crash loses
no request, and the agent may see one again that it has carried out (recognized by id and content).

Two kinds: `DumpRequest` asks for dumps; `ControlRequest` pauses, resumes or cancels them, or sets how fast
they are read. Ids sort by time, and requests are served in that order: the latest one wins. A control request
for a dump that is itself still a request waits for it.

Invariants: whatever objects are there, reading requests neither blocks nor exhausts memory, and an unreadable
object is not an error of the store. An object that is not a request, or can't be carried out, is moved to
``rejected/`` with the reason beside it, and never read again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from connector.errors import OperatorError, RequestError
from connector.landing.format import REQUEST_BYTES, REQUESTS, encode, request_path
from connector.landing.manifest import DumpKind, DumpSettings, TableState
from connector.schema import TableName
from connector.store.protocol import Store

REJECTED = "rejected"

MOST_RANGES = 1000
"""Limit of ranges per request: each is a chunk, and manifests list all that are still to be read."""

MOST_BYTES = REQUEST_BYTES
"""Limit of one request: some 400,000 keys. A merge requests 2,000 at a time, or fewer if they are long."""

MOST_PARTS = 1000
"""Limit of objects per request."""

MOST_AT_ONCE = 100
"""Limit of requests read at a time, as is about `MOST_BYTES` of them; the others wait in the landing zone."""


def _sql_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("contains a zero byte or an invalid character")
    return text


_Text = Annotated[str, AfterValidator(_sql_text)]

KeyEnds: TypeAlias = tuple[int | None, int | None]
"""Bounds on a key's first column: after (exclusive) and up to (inclusive); None: unbounded."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: _Text = Field(default_factory=lambda: new_request_id(), min_length=1, max_length=100)
    requested_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))

    @property
    def digest(self) -> str:
        """Return a hash of what is requested; it distinguishes two requests with the same id."""
        said = self.model_dump_json(exclude_unset=True, exclude={"id"})
        return hashlib.sha256(said.encode()).hexdigest()[:32]


class DumpRequest(_Request):
    """A request to dump tables again: all (`tables` None), some, or rows of one.

    `where` is a predicate in the source's dialect; `keys` are key values as the source's text, in the order
    of the key's columns; `ranges` are bounds on the key's first column, after (exclusive) and up to
    (inclusive), null if unbounded. These three need a single table, and exclude each other. `verify`: the
    rows are compared with the lake instead of merged; only then are `ranges` allowed, or `checksums` instead
    of rows.
    """

    kind: Literal["dump"] = "dump"
    tables: list[TableName] | None = Field(default=None, min_length=1)
    where: _Text | None = Field(default=None, min_length=1, max_length=10_000)
    keys: list[Annotated[list[_Text], Field(min_length=1)]] | None = Field(default=None, min_length=1)
    ranges: list[KeyEnds] | None = Field(default=None, min_length=1, max_length=MOST_RANGES)
    reason: Literal["request", "repair", "missing"] = "request"
    verify: bool = False
    checksums: bool = False

    @property
    def dump_kind(self) -> DumpKind:
        """Return the kind of the requested dumps."""
        if self.checksums:
            return "checksums"
        if self.verify:
            return "verify_rows" if self._rows_named else "verify"
        return "keys" if self.keys else "where" if self.where else "full"

    @property
    def _rows_named(self) -> int:
        """Count the ways in which it selects rows."""
        return sum(named is not None for named in (self.where, self.keys, self.ranges))

    @model_validator(mode="after")
    def _one_table_for_rows(self) -> DumpRequest:
        if self._rows_named > 1:
            raise ValueError("where, keys and ranges can't be combined")
        if self._rows_named and len(self.tables or ()) != 1:
            raise ValueError("where, keys and ranges need exactly one table")
        if self.verify and self.reason != "request":
            raise ValueError("verify repairs nothing; leave out reason")
        if not self.verify and (self.checksums or self.ranges is not None):
            raise ValueError("checksums and ranges are only for verify")
        if self.checksums and self._rows_named:
            raise ValueError("checksums cover whole tables")
        return self


class WantedSettings(DumpSettings):
    """The settings of a request; an unknown one is refused."""

    model_config = ConfigDict(extra="forbid")


ControlKind: TypeAlias = Literal["pause", "resume", "cancel", "set", "reload", "handover"]


class ControlRequest(_Request):
    """A request about dumps (pause, resume, cancel, set), or about the active agent (reload, handover).

    `dump`: the id of a dump, or of the request for several; `all`: all dumps. Pausing all also holds dumps
    queued later, until all are resumed. `set` without `dump` applies to all dumps, current and future;
    `defaults`: settings that are not given revert to the configuration's, or to those set for all dumps.
    `reload`: the agent reads its configuration file again. `handover`: it stops, for a standby to take over.
    """

    kind: ControlKind
    dump: _Text | None = Field(default=None, min_length=1, max_length=200)
    all: bool = False
    settings: WantedSettings = WantedSettings()
    defaults: bool = False

    @model_validator(mode="after")
    def _says_what(self) -> ControlRequest:
        nothing = self.settings == WantedSettings()
        if self.kind == "set":
            if self.all:
                raise ValueError("set without dump applies to all dumps; leave out all")
            if nothing and not self.defaults:
                raise ValueError("name a setting, or defaults")
        elif not nothing or self.defaults:
            raise ValueError(f"{self.kind} takes no settings")
        elif self.kind in ("reload", "handover"):
            if self.dump is not None or self.all:
                raise ValueError(f"{self.kind} is not about dumps")
        elif (self.dump is None) != self.all:
            raise ValueError("name a dump, or all")
        return self


Request: TypeAlias = "DumpRequest | ControlRequest"


@dataclass(frozen=True)
class Malformed:
    """An object among the requests that is not a valid request, and why."""

    id: str
    problem: str
    digest: str = ""


def new_request_id() -> str:
    """Return a new id; ids sort by creation time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"


def submit(store: Store, request: Request) -> str:
    """Submit a request, durable on return. Returns its id.

    A request with a chosen id holds a time only if one was given, so that sending it again is the same
    request. `RequestError` if it is too large to be read.
    """
    given = request.model_fields_set
    time_unsaid = {"requested_at"} if "id" in given and "requested_at" not in given else set()
    body = request.model_dump_json(exclude_none=True, exclude=time_unsaid).encode()
    if len(body) > MOST_BYTES:
        raise RequestError(f"{len(body):,} bytes; a request has at most {MOST_BYTES:,}", hint="split it")
    store.put(request_path(request.id), body)
    return request.id


def read_pending(store: Store, known: Container[str] = ()) -> list[Request | Malformed]:
    """Read the first waiting requests in the order of their ids, except those `known`.

    A Spark job's folder is read only when it is complete. Bounded, no matter how many requests wait.
    """
    found: list[Request | Malformed] = []
    size = 0
    for request_id, paths in _objects(store).items():
        if len(found) >= MOST_AT_ONCE or size >= MOST_BYTES:
            break
        if request_id in known:
            continue
        request, length = _read_sized(store, request_id, paths)
        if isinstance(request, Malformed) and _is_being_written(paths):
            continue
        if request is not None:
            found.append(request)
            size += length
    return found


def pending_ids(store: Store) -> set[str]:
    """Return the ids of all waiting requests, without reading any."""
    return set(_objects(store))


def discard(store: Store, request: Request | Malformed) -> None:
    """Remove a request; does nothing if it is gone, or another request has the same id by now."""
    for path in _unchanged(store, request):
        store.delete(path)


def reject(store: Store, request: Request | Malformed, reason: str) -> None:
    """Move a request to ``rejected/``, as far as it can be read, with the reason beside it."""
    paths = _unchanged(store, request)
    if paths:
        store.put(_reason_path(request.id), f"{reason}\n".encode(errors="replace"))
    for path in paths:
        try:
            data = store.read(path, MOST_BYTES)
        except OperatorError:
            data = None
        if data is not None:
            store.put(f"{REJECTED}/{path.removeprefix(REQUESTS + '/')}", data)
        store.delete(path)


def rejection_of(store: Store, request_id: str) -> str | None:
    """Return why a request was rejected; None if it was not."""
    data = store.read(_reason_path(request_id))
    return None if data is None else data.decode(errors="replace").strip()


def _reason_path(request_id: str) -> str:
    return f"{REJECTED}/{encode(request_id)[:200]}.reason.txt"


def _unchanged(store: Store, request: Request | Malformed) -> list[str]:
    """Return the paths of a request, if it is still the one that was read."""
    paths = _objects(store).get(request.id, [])
    now = _read(store, request.id, paths)
    return paths if now is not None and now.digest == request.digest else []


def _objects(store: Store) -> dict[str, list[str]]:
    """Return the paths of each request's objects by its id; a name that encodes no id stands for itself."""
    objects: dict[str, list[str]] = {}
    for path in store.list(f"{REQUESTS}/"):
        objects.setdefault(_id_of(path.split("/")[1]), []).append(path)
    return objects


def _id_of(name: str) -> str:
    """Return the id that an object's name encodes, or else its path; names may contain non-text bytes."""
    request_id = unquote(name.removesuffix(".json"))
    try:
        if request_path(request_id) == f"{REQUESTS}/{name}":
            return request_id
    except UnicodeEncodeError:
        pass
    return f"{REQUESTS}/{name}".encode(errors="backslashreplace").decode()


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/")[1:])


def _is_being_written(paths: list[str]) -> bool:
    """Return whether this is a Spark job's folder without its success marker."""
    parts = [path.split("/")[2] for path in paths if path.count("/") > 1]
    return bool(parts) and not any(part == "_SUCCESS" or part.startswith("_committed_") for part in parts)


def _read(store: Store, request_id: str, paths: list[str]) -> Request | Malformed | None:
    """Read one request; None if it is gone, or has no content yet."""
    return _read_sized(store, request_id, paths)[0]


def _read_sized(store: Store, request_id: str, paths: list[str]) -> tuple[Request | Malformed | None, int]:
    """Read one request and count its bytes."""
    shown = sorted(path for path in paths if not _is_hidden(path))
    try:
        content = _content(store, shown)
    except OperatorError as error:
        return Malformed(request_id, f"can't be read: {error}"), 0
    return (None, 0) if content is None else (_parse(request_id, content), len(content))


def _content(store: Store, paths: list[str]) -> bytes | None:
    """Return a request's text; None if it was discarded meanwhile."""
    if len(paths) > MOST_PARTS:
        raise OperatorError(f"more than {MOST_PARTS} objects")
    parts: list[bytes] = []
    for path in paths:
        part = store.read(path, MOST_BYTES - sum(map(len, parts)))
        if part is not None:
            parts.append(part)
    return b"".join(parts) if parts else None


class _Kind(BaseModel):
    kind: Literal["dump", ControlKind] = "dump"


def _parse(request_id: str, content: bytes) -> Request | Malformed:
    try:
        kind = _Kind.model_validate_json(content).kind
        model = DumpRequest if kind == "dump" else ControlRequest
        request = model.model_validate_json(content)
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors(include_url=False, include_input=False)[:5]))
        return Malformed(request_id, problems, hashlib.sha256(content).hexdigest()[:32])
    return request.model_copy(update={"id": request_id})


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{where}: {message}" if where else message


def why_not_dumped(name: TableName, state: TableState) -> str | None:
    """Return why a table can't be dumped: only its changes are captured.

    If quarantined, it can be released.
    """
    if state.key or state.schema_id is None or state.state == "quarantined":
        return None
    return (
        f"{name} can't be dumped: only its changes are captured;"
        f" add 'current' to shapes in {name.section}, which needs a key"
    )
