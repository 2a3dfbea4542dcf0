"""Consumers: lakes that merge from a landing zone, streaming queries that read it, and their progress.

A consumer registers before it reads anything. From then on it occasionally records the manifest up to which
all of its tables are merged, or its table is read. What no consumer needs can be removed
(`connector.maintenance.retention`); an idle consumer keeps everything it has yet to read until somebody
removes it with ``deltatide maintain --forget``.

::

    consumers/<id>/lake.json     the registration: nothing is merged yet
    consumers/<id>/0.json        how far it is; the two are written in turn, since a Spark job
    consumers/<id>/1.json        replaces an object by deleting it first
    consumers/<id>/stream.json   of a streaming query, how far it is
    consumers/<id>/verified-...  no consumer: what of the lake was verified (`connector.landing.verified`)
    consumers/_rebuilt/<id>/<generation>.json  no consumer: the Delta table with this id is about to get rows
                                 with other columns, masks or conditions, for the nth time

The newest one counts. A stale record is safe: it only keeps too much.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, ValidationError

from connector.errors import FormatError
from connector.landing.format import CONSUMERS, FORMAT, encode
from connector.landing.verified import is_verified
from connector.schema import TableName

if TYPE_CHECKING:
    from connector.store.protocol import Store

RECORD_SECONDS: float = 600
RECORD_MANIFESTS = 100
"""A merging consumer records its progress after this time or this many manifests, whichever comes first."""

MOST_FAILING = 20
"""Limit of failing tables named in a record."""


REBUILT = "_rebuilt"


class Consumer(BaseModel):
    """A lake: the id of its table of cuts, its url or schema, and the manifest up to which all is merged.

    Lakes of several machines or workspaces may have the same url or schema. `at` is in UTC. `failing`: why
    tables did not merge, by name, without values of their rows; at most `MOST_FAILING`. `failing_unnamed`:
    number of further tables that did not merge.

    Or a streaming query: `lake` is the name it was given, `table` the one that it reads (None in old records:
    it may be any), and `manifest` the last one that it has read.
    """

    model_config = ConfigDict(extra="ignore")

    format: int = FORMAT
    id: str
    kind: Literal["lake", "stream"] = "lake"
    lake: str
    table: TableName | None = None
    manifest: int
    at: datetime
    failing: dict[str, str] = {}
    failing_unnamed: int = 0

    @property
    def title(self) -> str:
        """Return the display name: a lake's url or schema, or ``stream NAME``."""
        return self.lake if self.kind == "lake" else f"stream {self.lake}"


def record_path(id_: str, slot: str) -> str:
    """Return the path of one of a consumer's records; `slot`: ``lake``, ``0``, ``1`` or ``stream``."""
    return f"{CONSUMERS}/{encode(id_)}/{slot}.json"


def slot_due(
    before: tuple[datetime, int] | None, now: tuple[datetime, int], *, news: bool = False
) -> str | None:
    """Return which record is due now; None if none is.

    `before`: time and manifest of the last cut. `news`: its failures differ from these, so a record is due.
    """
    turn, last = _turn(*now), _turn(*before) if before else None
    return None if turn == last and not news else str(turn[0] % 2)


def _turn(at: datetime, manifest: int) -> tuple[int, int]:
    return int(at.timestamp() // RECORD_SECONDS), manifest // RECORD_MANIFESTS


def rebuilt_path(table_id: str, generation: int) -> str:
    """Return the path of the record that a Delta table is rebuilt with other columns, masks or rows."""
    return f"{CONSUMERS}/{REBUILT}/{encode(table_id)}/{generation}.json"


def last_rebuilt(store: Store, table_id: str) -> int:
    """Return the greatest generation of a Delta table that such a record names; 0 without one."""
    return rebuilt_tables(store, f"{encode(table_id)}/").get(table_id, 0)


def rebuilt_tables(store: Store, within: str = "") -> dict[str, int]:
    """Return the greatest generation by Delta table, of those with such a record; `within`: a folder."""
    folder, found = f"{CONSUMERS}/{REBUILT}/", dict[str, int]()
    for path in store.list(folder + within):
        id_, _, name = path.removeprefix(folder).partition("/")
        generation = name.partition(".json")[0]
        if generation.isdecimal():
            found[unquote(id_)] = max(found.get(unquote(id_), 0), int(generation))
    return found


def read_record(store: Store, id_: str, slot: str) -> Consumer | None:
    """Return one of a consumer's records; `FormatError` if it is malformed."""
    path = record_path(id_, slot)
    data = store.read(path)
    return None if data is None else _parsed(store, path, data)


def read_consumers(store: Store) -> list[Consumer]:
    """Return all consumers, sorted by name; `FormatError` if a record is malformed."""
    records: dict[str, list[str]] = {}
    for path in store.list(f"{CONSUMERS}/"):
        if not any(part.startswith(("_", ".")) for part in path.split("/")) and not is_verified(path):
            records.setdefault(path.split("/")[1], []).append(path)
    found = (_newest(store, paths) for paths in records.values())
    return sorted((consumer for consumer in found if consumer), key=lambda consumer: consumer.lake)


def forget(store: Store, consumer: Consumer) -> None:
    """Remove a consumer's records; what only it needed can then be removed."""
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
