"""Build landing zones by hand: real Parquet files, schemas and manifests, without an agent."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connector.config import Config
from connector.landing.event_batch import CdcColumns, arrow_type, assemble, before_type
from connector.landing.format import CDC, data_path, manifest_path, schema_path
from connector.landing.key_span import KeySpan, key_span
from connector.landing.manifest import (
    DumpKind,
    DumpState,
    Gap,
    LandedFile,
    Manifest,
    Notice,
    SourceIdentity,
    TableState,
)
from connector.landing.manifest_object import Base, StoredManifest, new_base
from connector.position import CHUNK_SEQ, Position
from connector.schema import Column, TableName, TableSchema
from tests.support.servers.s3_server import S3

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
Put = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Event:
    """One event; `values` holds the columns that it carries, including the key, `before` an image."""

    op: str
    lsn: int
    seq: int
    values: dict[str, Any]
    unchanged: tuple[str, ...] = ()
    raw: dict[str, str] | None = None
    epoch: int = 1
    before: dict[str, Any] | None = None
    committed_at: datetime | None = AT

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.lsn, self.seq)


@dataclass(frozen=True)
class Chunk:
    """A chunk: the rows found, and a keyed dump's keys that were not found (as `delete` events)."""

    low: int
    high: int
    rows: Sequence[dict[str, Any]]
    absent: Sequence[dict[str, Any]] = ()
    dump: int = 1
    epoch: int = 1

    @property
    def id(self) -> str:
        return f"dump-{self.dump}"

    def events(self) -> list[Event]:
        seq = CHUNK_SEQ + self.dump
        known: dict[str, Any] = {"epoch": self.epoch, "committed_at": None}
        found = [Event("dump", self.low, seq, row, raw=row.get("raw") or None, **known) for row in self.rows]
        return found + [Event("delete", self.low, seq, key, **known) for key in self.absent]


def schema_of(table: str, key: Sequence[str] = ("id",), **columns: str) -> TableSchema:
    """Return a layout; `columns` are landed types by name."""
    return TableSchema(
        TableName.parse(table),
        tuple(Column(name, type_, type_) for name, type_ in columns.items()),
        tuple(key),
    )


@dataclass
class Landed:
    """A landing zone of source `shop` at `url`, written through `put`; manifests are numbered from 1.

    Without `put` nothing is written, and each file's events are kept in `events`. `writer`: prefix of each
    manifest's write id. `state_objects`: manifests name them, each the last of so many; none if 0.
    """

    url: str = ""
    put: Put | None = None
    writer: str = ""
    number: int = 0
    state_objects: int = 0
    tables: dict[str, TableState] = field(default_factory=dict)
    dumps: list[DumpState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    events: dict[str, Sequence[Event]] = field(default_factory=dict)
    formats: Callable[[Event], Event] = lambda event: event
    _names: Any = field(default_factory=itertools.count)
    _base: Base | None = None

    @classmethod
    def local(cls, folder: Path, writer: str = "") -> Landed:
        def put(path: str, data: bytes) -> None:
            file = folder / "shop" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

        return cls(str(folder), put, writer)

    @classmethod
    def on_s3(cls, s3: S3) -> Landed:
        """Return one in the folder `landing` of a bucket."""
        client = s3.client()

        def put(path: str, data: bytes) -> None:
            client.put_object(Bucket=s3.bucket, Key=f"landing/shop/{path}", Body=data)

        return cls(f"s3://{s3.bucket}/landing", put)

    def table(self, schema: TableSchema, *, dumped: bool = True) -> None:
        """Capture a table, or adopt a new layout of it."""
        self._put(schema_path(schema.table, schema.id), schema.to_json())
        known = self.tables.get(schema.table, TableState())
        new = {"schema_id": schema.id, "key": list(schema.key), "dumped": dumped}
        self.tables[schema.table] = known.model_copy(update=new)

    def log(self, schema: TableSchema, events: Sequence[Event]) -> LandedFile:
        """Land log events in the given order."""
        positions = [event.position for event in events]
        return self._file(schema, events, "log", min(positions), max(positions))

    def chunk(self, schema: TableSchema, chunk: Chunk) -> LandedFile:
        """Land a chunk."""
        events = chunk.events()
        number, position = next(self._names), events[0].position
        file = self._file(schema, events, "chunk", position, position, chunk=number, high=chunk.high)
        known = {"dump": chunk.id, "chunk": number, "low": chunk.low, "high": chunk.high}
        return file.model_copy(update=known)

    def get(self, number: int) -> Manifest:
        """Return a manifest by number, as `merge.plan` requests it."""
        return self.manifests[number - 1]

    def is_removed(self, number: int) -> bool:
        """Return whether a manifest was removed: none ever is."""
        return False

    is_known_removed = is_removed
    first_kept = 0

    def _put(self, path: str, data: bytes) -> None:
        if self.put is not None:
            self.put(path, data)

    def _file(
        self,
        schema: TableSchema,
        events: Sequence[Event],
        kind: str,
        first: Any,
        last: Any,
        chunk: int | None = None,
        high: int | None = None,
    ) -> LandedFile:
        path = data_path(schema.table, "2026-01-02", f"{kind}-{next(self._names)}")
        events = [self.formats(event) for event in events]
        data = b""
        if self.put is None:
            self.events[path] = events
        else:
            data = parquet(schema, events, chunk, high)
            self._put(schema_path(schema.table, schema.id), schema.to_json())
            self._put(path, data)
        return LandedFile(
            path=path,
            table=schema.table,
            schema_id=schema.id,
            kind=kind,  # type: ignore[arg-type]
            rows=len(events),
            bytes=len(data),
            first=first,
            last=last,
            partial=any(event.unchanged for event in events),
            truncates=any(event.op == "truncate" for event in events),
            key_span=_key_span(schema, events) if self.put else None,
        )

    def repair(self, table: str, number: int, floor: int, *, epoch: int = 1) -> None:
        """Record that a full dump with this number runs from the next manifest on, with this floor now.

        The floor is a gap, which lasts until a full dump from after it has ended.
        """
        state = DumpState(
            id=f"dump-{number}", number=number, table=table, kind="full", reason="repair", state="running",
            epoch=epoch, requested_at=AT, started_in=self.number + 1, floor=floor,
        )  # fmt: skip
        self.dumps[:] = [*(dump for dump in self.dumps if dump.id != state.id), state]
        known = self.tables[state.table]
        self.tables[state.table] = known.changed(gaps=[*known.gaps, (epoch, floor)])

    def full_dump(self, table: str, number: int, low: int, *, started_in: int, epoch: int = 1) -> None:
        """Record that the next manifest completes the full dump with this number."""
        state = DumpState(
            id=f"dump-{number}", number=number, table=table, kind="full", state="complete", epoch=epoch,
            requested_at=AT, started_in=started_in, finished_in=self.number + 1, low=low,
        )  # fmt: skip
        self.dumps[:] = [*(dump for dump in self.dumps if dump.id != state.id), state]
        self.tables[state.table] = self.tables[state.table].dumped_by(state)

    def verified(self, schema: TableSchema, chunk: Chunk) -> LandedFile:
        """Land a chunk that was read to verify the lake."""
        return self.chunk(schema, chunk).model_copy(update={"kind": "verify"})

    def verification(
        self, table: str, number: int, low: int, *, started_in: int, rows: int = 0, kind: DumpKind = "verify"
    ) -> DumpState:
        """Record that the next manifest completes the verification with this number."""
        state = DumpState(
            id=f"dump-{number}", number=number, table=table, kind=kind, state="complete", epoch=1, rows=rows,
            requested_at=AT, started_in=started_in, finished_in=self.number + 1, low=low,
        )  # fmt: skip
        self.dumps.append(state)
        return state

    def missing_dump(self, table: str, number: int) -> None:
        """Record that a dump of rows requested by the merge is running from the next manifest on."""
        state = DumpState(
            id=f"missing-{number}", number=number, table=table, kind="keys", reason="missing",
            state="running", epoch=1, requested_at=AT, started_in=self.number + 1, keys=[["1"]],
        )  # fmt: skip
        self.dumps.append(state)

    def commit(
        self,
        position: int,
        files: Sequence[LandedFile] = (),
        *,
        epoch: int = 1,
        notices: Sequence[Notice] = (),
        at: datetime = AT,
    ) -> Manifest:
        """Write the next manifest."""
        self.number += 1
        manifest = Manifest(
            number=self.number, term=1, write_id=f"{self.writer}{self.number}", epoch=epoch,
            position=position,
            source=SourceIdentity(name="shop", kind="postgres", system_id="1", database="shop"),
            source_committed_at=at, committed_at=AT, files=list(files), notices=list(notices),
            tables={name: state.model_copy() for name, state in self.tables.items()},
            dumps=[dump.model_copy() for dump in self.dumps], gaps=list(self.gaps),
        )  # fmt: skip
        if self.state_objects and self.number % self.state_objects == 1 % self.state_objects:
            self._base, data = new_base(manifest)
            self._put(self._base.reference.path, data)
        self._put(manifest_path(self.number), StoredManifest.of(manifest, self._base).to_json())
        self.manifests.append(manifest)
        for name, state in self.tables.items():
            if (dump := state.full_dump) is not None:
                left = [gap for gap in state.gaps if Position.of_gap(*gap) >= dump.position]
                self.tables[name] = state.changed(gaps=left)
        return manifest


def _key_span(schema: TableSchema, events: Sequence[Event]) -> KeySpan | None:
    if not schema.key:
        return None
    name = schema.key[0]
    values = [event.values.get(name) for event in events]
    return key_span(pa.chunked_array([pa.array(values, arrow_type(schema.column(name).type))]))


def parquet(
    schema: TableSchema, events: Sequence[Event], chunk: int | None = None, high: int | None = None
) -> bytes:
    """Return the content of a landing file with these events."""
    arrays = [
        pa.array([event.values.get(column.name) for event in events], arrow_type(column.type))
        for column in schema.columns
    ]
    raw = [list((event.raw or {}).items()) or None for event in events]
    unchanged = [list(event.unchanged) or None for event in events]
    cdc = CdcColumns(
        op=pa.array([event.op for event in events]),
        epoch=events[0].epoch,
        lsn=pa.array([event.lsn for event in events]),
        seq=pa.array([event.seq for event in events]),
        committed_at=pa.array([event.committed_at for event in events], pa.timestamp("us", "UTC")),
        chunk=chunk,
        high_lsn=high,
        unchanged=pa.array(unchanged, pa.list_(pa.string())),
        raw=pa.array(raw, pa.map_(pa.string(), pa.string())),
    )
    old = [event.before and {CDC: {}, **event.before} for event in events]
    before = pa.array(old, before_type(schema)) if schema.before_images else None
    buffer = io.BytesIO()
    pq.write_table(
        assemble(schema, arrays, cdc, before), buffer, compression="zstd", write_page_checksum=True
    )
    return buffer.getvalue()


def config_of(landing: str, lake: str, **tables: dict[str, Any]) -> Config:
    """Return a configuration of source `shop`; `tables`: settings by table name, with ``__`` for the dot."""
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "url": "postgresql://u@h/shop", "tables": ["*.*"]},
            "landing": {"url": landing},
            "lake": {"url": lake},
            "tables": {name.replace("__", "."): settings for name, settings in tables.items()},
        }
    )
