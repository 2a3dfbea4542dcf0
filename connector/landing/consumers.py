"""Consumers: which lakes merge from a landing zone, and how far each is.

A lake registers before it reads anything, and then records now and then up to which manifest all of its
tables are merged. What no consumer needs can be removed (`connector.maintenance.retention`); a consumer that
sleeps holds what it has yet to read, until somebody has it forgotten.

::

    consumers/<id>/lake.json     the registration: nothing is merged yet
    consumers/<id>/0.json        how far it is; the two are written in turn, since a Spark job
    consumers/<id>/1.json        replaces an object by deleting it first

The newest of them counts. A record is old rather than wrong: it only ever holds too much.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from connector.errors import FormatError
from connector.landing.format import CONSUMERS, FORMAT, encode

if TYPE_CHECKING:
    from connector.store.protocol import Store

RECORD_SECONDS: float = 600
RECORD_MANIFESTS = 100
"""How often a consumer that merges records how far it is: whichever comes first."""


class Consumer(BaseModel):
    """A lake: the id of its table of cuts, its url or schema, and the manifest up to which all is merged.

    Lakes of several machines or workspaces may have the same url or schema. `at` is in UTC.
    """

    model_config = ConfigDict(extra="ignore")

    format: int = FORMAT
    id: str
    lake: str
    manifest: int
    at: datetime


def record_path(id_: str, slot: str) -> str:
    """Return the path of one of a consumer's records; `slot`: ``lake``, ``0`` or ``1``."""
    return f"{CONSUMERS}/{encode(id_)}/{slot}.json"


def slot_due(before: tuple[datetime, int] | None, now: tuple[datetime, int]) -> str | None:
    """Return which record is due now; None if none is. `before`: time and manifest of the last cut."""
    turn, last = _turn(*now), _turn(*before) if before else None
    return None if turn == last else str(turn[0] % 2)


def _turn(at: datetime, manifest: int) -> tuple[int, int]:
    return int(at.timestamp() // RECORD_SECONDS), manifest // RECORD_MANIFESTS


def read_consumers(store: Store) -> list[Consumer]:
    """Return all consumers, by name; `FormatError` if a record is not one."""
    records: dict[str, list[str]] = {}
    for path in store.list(f"{CONSUMERS}/"):
        if not any(part.startswith(("_", ".")) for part in path.split("/")):
            records.setdefault(path.split("/")[1], []).append(path)
    found = (_newest(store, paths) for paths in records.values())
    return sorted((consumer for consumer in found if consumer), key=lambda consumer: consumer.lake)


def forget(store: Store, consumer: Consumer) -> None:
    """Remove a consumer's records; what only it held can then be removed."""
    for path in list(store.list(f"{CONSUMERS}/{encode(consumer.id)}/")):
        store.delete(path)


def _newest(store: Store, paths: Iterable[str]) -> Consumer | None:
    records = [(path, data) for path in paths if (data := store.read(path))]
    return max((_parsed(store, path, data) for path, data in records), key=lambda c: c.at, default=None)


def _parsed(store: Store, path: str, data: bytes) -> Consumer:
    name = f"{store.url}/{path}"
    try:
        consumer = Consumer.model_validate_json(data)
    except ValidationError as error:
        raise FormatError(
            f"{name} is not a consumer's record: {error.errors()[0]['msg']}",
            hint="keep everything but deltatide from writing under the landing zone; if no lake writes it,"
            " remove it",
        ) from error
    if consumer.format > FORMAT:
        raise FormatError(
            f"{name} has format {consumer.format}; this deltatide reads formats up to {FORMAT}",
            hint="upgrade deltatide where it reads this landing zone",
        )
    return consumer
