"""Manifests: the numbered JSON objects that commit what has landed, and the agent's only durable state.

Invariants:

- Manifest N+1 is created only if it does not exist: the history is linear, and its last element is the truth.
- `position` is a transaction boundary: every event at or before it, of every captured table, is named by this
  or an earlier manifest, and none after it is (except chunk rows, whose high watermark is at or before it).
- `gtids`: the transactions executed up to `position`, in the source's notation; by them, another server's log
  can continue the history. `gtids_needed` leaves out the agent's own writes at their end.
- `last_commit` is the last transaction of the epoch at or before `position`, in any table; None if there was
  none yet. It distinguishes the log that was read from another one with the same positions.
- `pending_gap`: why the log after `position` is lost, if that was found before a new epoch could begin. The
  next epoch begins with this gap, whatever the log looks like by then.
- Each manifest carries the whole state (tables, dumps, commits not yet visible), so a start reads only the
  newest one. `connector.landing.manifest_object` says how it is stored without growing with them.

Only the format, without I/O; `connector.landing.manifest_store` creates the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from connector.config import MOST_ROWS_PER_SECOND
from connector.errors import BugError
from connector.landing.column_names import ColumnNames
from connector.landing.format import FORMAT
from connector.position import CHUNK_SEQ, Position, format_position
from connector.schema import TableName

KEPT_CHARACTERS = 300
"""How much of a finished dump's predicate and error is kept."""

Part = TypeVar("Part", "LandedFile", "DumpState")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SourceIdentity(_Part):
    """Which database this history was read from; `system_id` must never change within a landing zone.

    `server`: whose log the epoch is read from, if replicas have their own logs; for PostgreSQL the timeline.
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

    A chunk's file (`kind` chunk) has the dump's id, the chunk's number and its watermarks. So does one read
    to verify the lake (`kind` verify), which is never merged. `key_span`: see `connector.landing.key_span`.
    """

    path: str
    table: TableName
    schema_id: str
    kind: Literal["log", "chunk", "verify"]
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
    key_span: tuple[int, int] | None = None


class CompactedTable(_Part):
    """One table's `files` that replace the `replaced` ones (paths), with all of their events."""

    files: list[LandedFile]
    replaced: list[str]


class CompactedBlock(_Part):
    """What the log files of the manifests from `first` to `last` were compacted to, at `at` (UTC).

    A reader up to manifest `last` or beyond reads `files` as if `last` named them, and none of the replaced
    ones. A reader up to an earlier manifest reads those: `files` hold events from after it.
    """

    format: int = FORMAT
    first: int
    last: int
    at: datetime
    tables: dict[TableName, CompactedTable] = Field(default_factory=dict)

    @property
    def files(self) -> list[LandedFile]:
        """List the files of all tables."""
        return [file for table in self.tables.values() for file in table.files]

    @property
    def replaced(self) -> list[str]:
        """List the paths of the files that they replace."""
        return [path for table in self.tables.values() for path in table.replaced]


class OpenRange(_Part):
    """A planned, uncommitted chunk: keys after `after` (exclusive) up to `upto` (inclusive).

    Key values are the source's own text, one per key column; None is the end of the key space.
    """

    chunk: int
    after: list[str] | None = None
    upto: list[str] | None = None


class DumpSettings(_Part):
    """How fast dumps are read, as set at run time; None: the configured value, or the one set for all dumps.

    `delay_seconds`: a worker's pause after each chunk. `rows_per_second`: over several chunks; 0: no limit.
    """

    chunk_rows: int | None = Field(default=None, ge=1, le=10_000_000)
    delay_seconds: float | None = Field(default=None, ge=0, le=3600, allow_inf_nan=False)
    workers: int | None = Field(default=None, ge=1, le=64)
    rows_per_second: int | None = Field(default=None, ge=0, le=MOST_ROWS_PER_SECOND)

    def changed(self, by: DumpSettings) -> DumpSettings:
        """Return these settings, overridden by those that are set in `by`."""
        return self.model_copy(update={k: v for k, v in by if v is not None})


class TakenRequest(_Part):
    """A request by its id and content."""

    id: str
    digest: str


class Notice(_Part):
    """Something people should know about one table, or about the source (`table` None)."""

    table: TableName | None = None
    kind: Literal["schema", "quarantined", "released", "gap", "failover", "dump"]
    text: str
    at: datetime


class DumpControl(_Part):
    """What was requested for all dumps at run time.

    `pause_new`: dumps queued later begin paused. `taken`: other requests that have taken effect, as long as
    their objects may exist: an agent must not carry them out again. `rejected`: why the last ones were.
    """

    settings: DumpSettings = DumpSettings()
    pause_new: bool = False
    taken: list[TakenRequest] = Field(default_factory=list)
    rejected: dict[str, Notice] = Field(default_factory=dict)


DumpKind = Literal["full", "where", "keys", "verify", "verify_rows", "checksums"]


class DumpState(_Part):
    """One dump of one table: what is requested, and its progress.

    ``kind``: full (sweeps ghosts), where (a predicate in the source's dialect), keys (given keys; those not
    found land as deletes); compared with the lake, not merged: verify (all rows), verify_rows (those of a
    predicate or of given keys), checksums. A chunk is planned, read, and committed; `open`: the planned ones;
    `ranges`: all that a request named; `planned_upto`: how far keys are planned. `order`: its key's when
    first planned (`connector.source.Chunk`). `low`: its chunks' lowest low watermark; a ghost sweep deletes
    only older rows. `floor`: log before it did not land for this table, so a chunk must see all commits
    before it. `xid_barrier`: transactions with a lower id must end first; the floor will be their end.
    `started_in`, `finished_in`: numbers of the manifests between which its chunks are. `request`: the id of
    its request; `digest`: a hash of that. `paused`: no chunk is read. `started_at`: when its first chunk was
    handed out. `rows_per_second`: of late. Once finished, it keeps no key or range, its predicate in part.
    """

    id: str
    number: int
    table: TableName
    kind: DumpKind
    reason: Literal["initial", "request", "repair", "missing"] = "request"
    where: str | None = None
    keys: list[list[str]] | None = None
    state: Literal["waiting", "running", "complete", "cancelled", "failed"] = "waiting"
    error: str | None = None  # why it failed or, while it is active, why no chunk can be read now
    epoch: int
    requested_at: datetime
    finished_at: datetime | None = None
    started_in: int
    finished_in: int | None = None
    next_chunk: int = 0
    planned_upto: list[str] | None = None
    planned_all: bool = False
    open: list[OpenRange] = Field(default_factory=list)
    ranges: list[OpenRange] = Field(default_factory=list)
    order: str | None = None
    low: int | None = None
    rows: int = 0
    chunks: int = 0
    rows_estimate: int | None = None
    bits: int | None = None
    floor: int | None = None
    xid_barrier: int | None = None
    request: str | None = None
    digest: str | None = None
    paused: bool = False
    settings: DumpSettings | None = None
    started_at: datetime | None = None
    rows_per_second: float | None = None

    @property
    def active(self) -> bool:
        """Return whether anything is left to read."""
        return self.state in ("waiting", "running")

    @property
    def verifies(self) -> bool:
        """Return whether its rows are compared with the lake instead of merged into it."""
        return self.kind in ("verify", "verify_rows", "checksums")

    @property
    def within_epoch(self) -> bool:
        """Return whether its chunks count only together, all read in one epoch."""
        return self.kind == "full" or self.verifies

    def count_chunk(self, low: int, rows: int) -> None:
        """Count a committed chunk."""
        self.low = low if self.low is None else min(self.low, low)
        self.rows, self.chunks = self.rows + rows, self.chunks + 1

    def start_over(self, number: int, manifest: int) -> None:
        """Discard all progress: it is now dump `number`, started in manifest `manifest`."""
        self.number, self.started_in = number, manifest
        self.open, self.next_chunk, self.planned_upto = list(self.ranges), len(self.ranges), None
        self.planned_all, self.low, self.rows, self.chunks, self.order = bool(self.ranges), None, 0, 0, None

    def drop_details(self) -> None:
        """Drop what only an unfinished dump needs: every later manifest carries this state."""
        self.keys, self.planned_upto, self.open, self.settings, self.paused = None, None, [], None, False
        self.ranges, most, texts = [], KEPT_CHARACTERS, (self.where, self.error)
        self.where, self.error = (t if not t or len(t) <= most else f"{t[:most]}..." for t in texts)


class FullDump(_Part):
    """A completed full dump. It supersedes all earlier rows of its table: each is in it, or a ghost.

    `low`: the lowest low watermark of its chunks. `started_in`: the first manifest that may hold one of them.
    """

    id: str
    number: int
    epoch: int
    low: int
    started_in: int

    @property
    def position(self) -> Position:
        """Return the position of its lowest chunk's rows; the sweep deletes only rows before it."""
        return Position(self.epoch, self.low, CHUNK_SEQ + self.number)

    @classmethod
    def of(cls, dump: DumpState) -> FullDump:
        """Return what is recorded of a dump whose last chunk is committed."""
        if dump.low is None:
            raise BugError(f"{dump.table}: dump {dump.id} is complete but has no low watermark")
        return cls(**{name: getattr(dump, name) for name in cls.model_fields})


class DumpNeed(_Part):
    """A table needs a full dump with a number greater than `outdated`; the rest is as in `DumpState`."""

    outdated: int
    floor: int | None = None
    xid_barrier: int | None = None


class TableState(_Part):
    """What the agent knows of one table. A quarantined table lands nothing until a full dump of it.

    `schema_id` is absent while it has never had a layout that can be captured; `schema_since`: the manifest
    that adopted it. `reason`, `hint`: why it is quarantined or, if captured, why its before-images lack
    something. `fingerprint`: the catalog watcher's last view of all that the log does not show. `dumped`: its
    first full dump is complete, and there is no `need`. `full_dump`: the last complete one, by position: a
    chunk from before it may still be committed. `dropped`: columns that it once had, in lower case, of which
    the lake has the old values. `gaps` (epoch, floor): log from before that did not land, or did not show all
    changes, and no full dump from after that had ended by the manifest before. `reported_upto`: (epoch,
    position) to which a table without a key was told of a gap. `comments`: an id. `traits`: None if unknown.

    Replaced, never modified, so comparing it with a manifest's shows whether the table's state has changed.
    """

    schema_id: str | None = None
    schema_since: int = 1
    key: list[str] = Field(default_factory=list)
    state: Literal["captured", "quarantined"] = "captured"
    reason: str | None = None
    hint: str | None = None
    since: int | None = None
    dumped: bool = False
    need: DumpNeed | None = None
    full_dump: FullDump | None = None
    fingerprint: str | None = None
    dropped: list[str] = Field(default_factory=list)
    gaps: list[tuple[int, int]] = Field(default_factory=list)
    comments: str | None = None
    column_names: ColumnNames | None = None
    reported_upto: tuple[int, int] | None = None
    traits: dict[str, str] | None = None

    model_config = ConfigDict(extra="ignore", frozen=True)

    def changed(self, **fields: object) -> TableState:
        """Return a copy with some fields changed; the same object if nothing changes."""
        new = self.model_copy(update=fields)
        return self if new == self else new

    def dumped_by(self, dump: DumpState) -> TableState:
        """Return the state after a full dump whose last chunk is committed."""
        ended, known = FullDump.of(dump), self.full_dump
        last = known if known is not None and known.position >= ended.position else ended
        return self.changed(dumped=True, full_dump=last)


class Gap(_Part):
    """Lost log: between `after` in the former epoch and `before` in the new one."""

    epoch: int
    after: int
    before: int
    reason: str
    found_at: datetime


class LastCommit(_Part):
    """The last transaction at or before the manifest's position: a log that continues here must contain it.

    `position`: the boundary after it, or in a binary log its start. `txid`: its id at the source (xid, GTID);
    there, a file's start stands for it until one was read. `engine_lsn`: how far InnoDB's log was on disk.
    """

    position: int
    txid: str
    committed_at: datetime
    engine_lsn: int | None = None


class InvisibleCommit(_Part):
    """A commit at or before the manifest's position that a later snapshot did not show yet.

    `lsn` 0: an xid barrier: transactions with a lower xid (64 bits) may have committed before the epoch or a
    table's publication, and chunks wait until all have ended.
    """

    xid: int
    lsn: int


class ManifestHeader(_Part):
    """What belongs to one manifest, or is small: all but the state of tables and dumps."""

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
    last_dump_number: int = 0
    gaps: list[Gap] = Field(default_factory=list)
    pending_gap: str | None = None
    notices: list[Notice] = Field(default_factory=list)
    not_yet_visible: list[InvisibleCommit] = Field(default_factory=list)
    last_commit: LastCommit | None = None
    dump_control: DumpControl | None = None


class Manifest(ManifestHeader):
    """One commit. The module's docstring lists its guarantees.

    `former_names`: `column_names` of former tables. `compacted`: the record, if any, of the block that ends.
    """

    tables: Mapping[TableName, TableState] = Field(default_factory=dict)
    dumps: Sequence[DumpState] = Field(default_factory=list)
    former_names: Mapping[TableName, ColumnNames] = Field(default_factory=dict)
    compacted: CompactedBlock | None = None

    @property
    def position_text(self) -> str:
        """Format the position as users of this kind of source know it."""
        return format_position(self.position, self.source.kind)

    @property
    def exact(self) -> bool:
        """Return whether the state after this manifest is the source's at `position`, for all tables.

        False while a first dump or a repair after a gap is unfinished, or a table is quarantined.
        """
        pending = any(d.active and d.reason in ("initial", "repair", "missing") for d in self.dumps)
        return not pending and all(t.dumped and t.state == "captured" for t in self.tables.values())

    def files_of(self, table: TableName) -> Sequence[LandedFile]:
        """Return one table's files of events, in order; quick, as a merge asks each manifest for each table.

        Files that verify the lake are not included. Only for a manifest that is no longer modified.
        """
        return self._files_by_table.get(table, ())

    def dumps_of(self, table: TableName) -> Sequence[DumpState]:
        """Return one table's dumps, in order; see `files_of`."""
        return self._dumps_by_table.get(table, ())

    def brings_all_rows(self, table: TableName) -> bool:
        """Return whether a full dump is running, not paused, that all other dumps of the table wait for."""
        full = [dump for dump in self.dumps_of(table) if dump.kind == "full" and dump.active]
        return bool(full) and not full[0].paused

    @cached_property
    def _files_by_table(self) -> dict[TableName, list[LandedFile]]:
        return _by_table(file for file in self.files if file.kind != "verify")

    @cached_property
    def _dumps_by_table(self) -> dict[TableName, list[DumpState]]:
        return _by_table(self.dumps)


def _by_table(parts: Iterable[Part]) -> dict[TableName, list[Part]]:
    found: dict[TableName, list[Part]] = {}
    for part in parts:
        found.setdefault(part.table, []).append(part)
    return found
