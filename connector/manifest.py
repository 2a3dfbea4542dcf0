"""Manifests: the numbered JSON objects that commit what has landed, and the agent's only durable state.

Invariants:

- Manifest N+1 is created only if it does not exist: the history is linear, and its last element is the truth.
- `position` is a transaction boundary: every event at or before it, of every captured table, is named by this
  or an earlier manifest, and none after it is (but for chunk rows, whose high watermark is at or before it).
- `gtids`, where the source has such, are the transactions executed up to `position`, in its own words: by
  them the history goes on in another server's log. `gtids_needed` leaves out the agent's own writes at their
  end, which that server may lack; absent where there are none.
- Each manifest carries the whole state (tables, dumps, unsettled commits), so that reading the newest one is
  all that a start needs.

This module holds the format only. It does no I/O; `connector.store` creates the objects.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connector.errors import FormatError
from connector.landing import FORMAT
from connector.position import CHUNK_SEQ, Position, spell_position


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SourceIdentity(_Part):
    """Which database this history was read from; `system_id` must never change within a landing zone.

    `server`: whose log the epoch is read from, where replicas of the database have logs of their own.
    """

    name: str
    kind: Literal["postgres", "mysql", "mariadb"]
    system_id: str
    database: str
    slot: str | None = None
    publication: str | None = None
    version: str | None = None
    server: str | None = None


class LandedFile(_Part):
    """One landing file: one table, one schema, events between `first` and `last` inclusive.

    A chunk's file (`kind` chunk) has the dump's id, the chunk's number and its watermarks.
    """

    path: str
    table: str
    schema_id: str
    kind: Literal["log", "chunk"]
    rows: int
    bytes: int
    first: Position
    last: Position
    partial: bool = False
    truncates: bool = False
    dump: str | None = None
    chunk: int | None = None
    low: int | None = None
    high: int | None = None


class OpenRange(_Part):
    """A chunk that was planned and is not committed: keys after `after` (exclusive) up to `upto` (inclusive).

    Key values are the source's own text, one for each key column; None is the end of the key space.
    """

    chunk: int
    after: list[str] | None = None
    upto: list[str] | None = None


class DumpState(_Part):
    """One dump of one table: what is asked for, and how far it has come.

    ``kind``: full (sweeps ghosts), where (a predicate in the source's dialect), keys (given keys; the ones
    not found land as deletes). A chunk is planned, read, and committed; `open` holds the planned ones, and
    `planned_upto` the key after which nothing is planned yet. `low` is the lowest low watermark of the chunks
    committed so far: the ghost sweep of a full dump deletes only rows positioned before it.
    `floor`: log before it did not land for this table, so a chunk must see all commits before it.
    `started_in` and `finished_in` are numbers of the manifests between which all its chunks lie.
    """

    id: str
    number: int
    table: str
    kind: Literal["full", "where", "keys"]
    reason: Literal["initial", "request", "repair", "missing"] = "request"
    where: str | None = None
    keys: list[list[str]] | None = None
    state: Literal["waiting", "running", "complete", "cancelled", "failed"] = "waiting"
    error: str | None = None
    epoch: int
    requested_at: datetime
    finished_at: datetime | None = None
    started_in: int
    finished_in: int | None = None
    next_chunk: int = 0
    planned_upto: list[str] | None = None
    planned_all: bool = False
    open: list[OpenRange] = Field(default_factory=list)
    low: int | None = None
    rows: int = 0
    chunks: int = 0
    rows_estimate: int | None = None
    floor: int | None = None

    @property
    def active(self) -> bool:
        """Tell whether there is still something to read."""
        return self.state in ("waiting", "running")

    def position(self, low: int) -> Position:
        """Give the position of this dump's rows under a low watermark."""
        return Position(self.epoch, low, CHUNK_SEQ + self.number)


class TableState(_Part):
    """What the agent knows of one table. A table that is set aside lands nothing until a full dump of it.

    `fingerprint` is what the watch saw last of all that the log does not tell (`connector.watch`).
    `dumped` becomes true with the manifest that commits the last chunk of its first full dump. `dropped` are
    columns that it had once, whose old values the lake still holds.
    """

    schema_id: str
    key: list[str]
    state: Literal["captured", "set_aside"] = "captured"
    reason: str | None = None
    hint: str | None = None
    since: int | None = None
    dumped: bool = False
    fingerprint: str | None = None
    dropped: list[str] = Field(default_factory=list)


class Gap(_Part):
    """Log that was lost: between `after` in the former epoch and `before` in the new one."""

    epoch: int
    after: int
    before: int
    reason: str
    found_at: datetime


class Notice(_Part):
    """Something a person should know of one table, or of the source (`table` None)."""

    table: str | None = None
    kind: Literal["schema", "set_aside", "released", "gap", "failover", "dump"]
    text: str
    at: datetime


class UnsettledCommit(_Part):
    """A commit at or before the manifest's position that a later snapshot did not show yet.

    `lsn` is 0 for a transaction that was running when the epoch began, and may have committed before it.
    """

    xid: int
    lsn: int


class Manifest(_Part):
    """One commit. See the module's docstring for what it promises."""

    format: int = FORMAT
    number: int
    term: int
    write_id: str
    source: SourceIdentity
    epoch: int
    position: int
    gtids: str | None = None
    gtids_needed: str | None = None
    source_committed_at: datetime | None = None
    committed_at: datetime
    files: list[LandedFile] = Field(default_factory=list)
    tables: dict[str, TableState] = Field(default_factory=dict)
    dumps: list[DumpState] = Field(default_factory=list)
    last_dump_number: int = 0
    gaps: list[Gap] = Field(default_factory=list)
    notices: list[Notice] = Field(default_factory=list)
    unsettled: list[UnsettledCommit] = Field(default_factory=list)

    @property
    def place(self) -> str:
        """Spell the position as people know it from this kind of source."""
        return spell_position(self.position, self.source.kind)

    @property
    def exact(self) -> bool:
        """Tell whether the state after this manifest is the source's at `position`, for all tables.

        It is not while a first dump or a repair after a gap is unfinished, or a table is set aside.
        """
        pending = any(d.active and d.reason in ("initial", "repair", "missing") for d in self.dumps)
        return not pending and all(t.dumped and t.state == "captured" for t in self.tables.values())

    def to_json(self) -> bytes:
        """Serialize for the landing zone."""
        return self.model_dump_json(exclude_none=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes | str, name: str = "manifest") -> Manifest:
        """Read a manifest; `FormatError` for a newer format or something that is no manifest."""
        try:
            version = _Version.model_validate_json(data).format
            if version > FORMAT:
                raise FormatError(
                    f"{name} has format {version}, this deltatide reads up to {FORMAT}",
                    hint="upgrade deltatide where it reads this landing zone",
                )
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise FormatError(
                f"{name} is not a manifest: {error.errors()[0]['msg']}",
                hint="nothing but deltatide may write under the landing zone",
            ) from error


class _Version(BaseModel):
    format: int
