"""Requests: what people and jobs ask of the agent, as objects in the landing zone.

A request is an object ``requests/<id>.json``, or a folder of that name, which is how a Spark job writes: then
its part files together are the request. It stays until the manifest that took it over is committed; so a
crash loses none, and the agent may see one again that it has carried out (its id tells).

Invariant: what is no request is moved aside, to ``rejected/``, and never seen again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from connector.landing import REQUESTS, request_path
from connector.schema import TableName
from connector.store import Store

REJECTED = "rejected"


def _table(text: str) -> str:
    return str(TableName.parse(text))


class DumpRequest(BaseModel):
    """Dump tables again: all of them (`tables` None), or some, or rows of one.

    `where` is a predicate in the source's dialect; `keys` are key values as the source's text, in the order
    of the key's columns. Both are for one table, and exclude each other.
    """

    model_config = ConfigDict(extra="forbid")

    id: str = Field(default_factory=lambda: new_request_id(), min_length=1, max_length=100)
    kind: Literal["dump"] = "dump"
    tables: list[Annotated[str, AfterValidator(_table)]] | None = Field(default=None, min_length=1)
    where: str | None = Field(default=None, min_length=1)
    keys: list[Annotated[list[str], Field(min_length=1)]] | None = Field(default=None, min_length=1)
    reason: Literal["request", "repair", "missing"] = "request"
    requested_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))

    @model_validator(mode="after")
    def _one_table_for_rows(self) -> DumpRequest:
        if self.where is not None and self.keys is not None:
            raise ValueError("where and keys exclude each other")
        if (self.where is not None or self.keys is not None) and len(self.tables or ()) != 1:
            raise ValueError("where and keys are for one table")
        return self


@dataclass(frozen=True)
class Malformed:
    """An object among the requests that is none, and why."""

    id: str
    problem: str


def new_request_id() -> str:
    """Make an id; ids sort by the time they were made."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:12]}"


def submit(store: Store, request: DumpRequest) -> str:
    """Ask the agent; the request is durable on return. Gives its id."""
    store.put(request_path(request.id), request.model_dump_json(exclude_none=True, indent=1).encode())
    return request.id


def pending(store: Store) -> list[DumpRequest | Malformed]:
    """Read what waits, in the order of the ids; a Spark job's folder only when it is complete."""
    found: list[DumpRequest | Malformed] = []
    for request_id, paths in _objects(store).items():
        shown = [path for path in paths if not _is_hidden(path)]
        content = _content(store, shown)
        request = None if content is None else _parse(request_id, content)
        if isinstance(request, Malformed) and _is_being_written(paths):
            continue
        if request is not None:
            found.append(request)
    return found


def discard(store: Store, request_id: str) -> None:
    """Remove a request; nothing happens when it is gone."""
    paths = _objects(store).get(request_id, [])
    for path in paths:
        store.delete(path)


def reject(store: Store, request_id: str) -> None:
    """Move a malformed request aside, to ``rejected/``, with whatever its objects hold."""
    for path in _objects(store).get(request_id, []):
        data = store.read(path)
        if data is not None:
            store.put(f"{REJECTED}/{path.removeprefix(REQUESTS + '/')}", data)
        store.delete(path)


def _objects(store: Store) -> dict[str, list[str]]:
    """Give the paths of each request's objects by its id."""
    objects: dict[str, list[str]] = {}
    for path in store.list(f"{REQUESTS}/"):
        name = path.split("/")[1]
        objects.setdefault(unquote(name.removesuffix(".json")), []).append(path)
    return objects


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/")[1:])


def _is_being_written(paths: list[str]) -> bool:
    """Tell whether this is a Spark job's folder without the mark of its end."""
    parts = [path.split("/")[2] for path in paths if path.count("/") > 1]
    return bool(parts) and not any(part == "_SUCCESS" or part.startswith("_committed_") for part in parts)


def _content(store: Store, paths: list[str]) -> bytes | None:
    """Give a request's text; None when it was discarded meanwhile."""
    parts = [store.read(path) for path in sorted(paths)]
    return b"".join(part for part in parts if part) if any(part is not None for part in parts) else None


def _parse(request_id: str, content: bytes) -> DumpRequest | Malformed:
    try:
        request = DumpRequest.model_validate_json(content)
    except ValidationError as error:
        return Malformed(request_id, "; ".join(map(_problem, error.errors(include_url=False))))
    return request.model_copy(update={"id": request_id})


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{where}: {message}" if where else message
