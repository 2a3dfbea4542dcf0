"""Lands events and chunk rows as Parquet files, each after the schema object that it names.

Readers don't see a file until a manifest names it. For a chunk, `DumpQueue.take_committable` decides when.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow.compute as pc

from connector.errors import FormatError
from connector.figures.progress import Progress
from connector.landing.event_batch import EventBatch, QuarantineNotice, TableRedefined, UnloggedNotice
from connector.landing.format import CDC, DELETE, UPDATE, comments_path, schema_path
from connector.landing.manifest import LandedFile, Manifest
from connector.landing.parquet import FileWriter, SchemaWriter
from connector.logged_table import LoggedTable
from connector.position import Position
from connector.schema import TableComments, TableName, TableSchema
from connector.source import ResumePoint, Segment
from connector.store.protocol import Store

SEGMENTS_IN_FLIGHT = 1
"""Land one segment while the next is read; more would only cost memory."""


COMMENTS_AT_ONCE = 8
"""At the first start there is one object for each table that has comments."""


@dataclass
class LandedSegment:
    """Log whose files are in the store, to be named by a manifest at `position`, where it ends.

    `events`: counts by table and operation. `before_images`: for tables that land before-images, what to do
    to make them complete; None: they are.
    """

    end: ResumePoint
    committed_at: datetime | None = None
    files: list[LandedFile] = field(default_factory=list)
    layouts: list[tuple[TableSchema, int]] = field(default_factory=list)
    quarantined: list[QuarantineNotice] = field(default_factory=list)
    events: Counter[tuple[TableName, str]] = field(default_factory=Counter)
    before_images: dict[TableName, str | None] = field(default_factory=dict)
    logged: list[LoggedTable] = field(default_factory=list)
    redefined: list[TableRedefined] = field(default_factory=list)
    unlogged: list[UnloggedNotice] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Return the boundary after its last whole transaction."""
        return self.end.position

    def count(self, batch: EventBatch) -> None:
        """Count a batch's events."""
        counts = _events(batch)
        self.events += counts
        if batch.schema.before_images and any(op in (UPDATE, DELETE) for _, op in counts):
            self._note_before_images(batch.schema.table, batch.before_hint)

    def _note_before_images(self, table: TableName, hint: str | None) -> None:
        self.before_images[table] = hint or self.before_images.get(table)

    def add(self, later: LandedSegment) -> None:
        """Append what landed next."""
        self.end = replace(later.end, last_commit=later.end.last_commit or self.end.last_commit)
        self.committed_at = later.committed_at or self.committed_at
        self.files += later.files
        self.layouts += later.layouts
        self.quarantined += later.quarantined
        self.logged += later.logged
        self.redefined += later.redefined
        self.unlogged += later.unlogged
        self.events += later.events
        for table, hint in later.before_images.items():
            self._note_before_images(table, hint)


class Lander:
    """Writes landing files into a store. Every method may be called from any thread.

    `progress` records how long writing takes.
    """

    def __init__(self, store: Store, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self._store = store
        self._schemas = SchemaWriter(store)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="land")

    def close(self) -> None:
        """Stop the landing thread after its current work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def ensure_schema(self, schema: TableSchema) -> None:
        """Write a schema's object, once; durable on return."""
        self._schemas.ensure(schema)

    def land_comments(self, found: Mapping[str, TableComments]) -> None:
        """Write the objects of tables' comments, by their ids; durable on return."""
        with ThreadPoolExecutor(COMMENTS_AT_ONCE, thread_name_prefix="comments") as threads:
            writes = [
                threads.submit(self._store.put, comments_path(its.table, id_), its.to_json())
                for id_, its in found.items()
            ]
        for write in writes:
            write.result()

    def assume_landed(self, manifest: Manifest) -> None:
        """Skip writing the schemas that a manifest names: they are durable."""
        self._schemas.skip(
            {name: state.schema_id for name, state in manifest.tables.items() if state.schema_id}
        )

    def load_schema(self, table: TableName, schema_id: str) -> TableSchema:
        """Read a schema that landed before; `FormatError` if its object is gone."""
        path = schema_path(table, schema_id)
        data = self._store.read(path)
        if data is None:
            raise FormatError(
                f"{path} is missing",
                hint="restore it from a copy; never delete objects of the landing zone by hand",
            )
        return TableSchema.from_json(data)

    def writer(self, schema: TableSchema, first: Position) -> FileWriter:
        """Open a landing file of one table; its schema is durable on return."""
        self.ensure_schema(schema)
        return FileWriter(self._store, schema, first)

    @contextmanager
    def landings(self, position: int) -> Iterator[Landings]:
        """Land segments after a position in order, in the landing thread; drop leftovers at the end."""
        landings = Landings(self, self._pool, position)
        try:
            yield landings
        finally:
            landings.forget()

    def land(self, segment: Segment) -> LandedSegment:
        """Decode a segment and land it, one file per table and schema; durable on return."""
        landed = LandedSegment(segment.end, segment.committed_at, logged=list(segment.logged))
        writers: dict[tuple[TableName, str], FileWriter] = {}
        newest: dict[TableName, str] = {}
        with self.progress.flushes.timing() if segment.rows else nullcontext(), ExitStack() as stack:
            for batch in segment.decode():
                if isinstance(batch, QuarantineNotice):
                    landed.quarantined.append(batch)
                    continue
                if isinstance(batch, TableRedefined):
                    landed.redefined.append(batch)
                    continue
                if isinstance(batch, UnloggedNotice):
                    landed.unlogged.append(batch)
                    continue
                if newest.get(batch.schema.table) != batch.schema.id:
                    newest[batch.schema.table] = batch.schema.id
                    landed.layouts.append((batch.schema, batch.first.lsn))
                self._writer_of(batch, writers, stack).append_batch(batch)
                landed.count(batch)
            landed.files += [file for writer in writers.values() if (file := writer.close())]
        return landed

    def _writer_of(
        self,
        batch: EventBatch,
        writers: dict[tuple[TableName, str], FileWriter],
        stack: ExitStack,
    ) -> FileWriter:
        name = (batch.schema.table, batch.schema.id)
        if name not in writers:
            writers[name] = stack.enter_context(self.writer(batch.schema, batch.first))
        return writers[name]


def _events(batch: EventBatch) -> Counter[tuple[TableName, str]]:
    """Count a batch's events by operation."""
    operations = pc.value_counts(pc.struct_field(batch.table[CDC], "op")).to_pylist()
    return Counter({(batch.schema.table, each["values"]): each["counts"] for each in operations})


class Landings:
    """Segments on their way into the store, in log order. Used by the capture loop's thread.

    Parts of an open transaction are held back until the segment with its commit has landed too.
    """

    def __init__(self, lander: Lander, pool: ThreadPoolExecutor, position: int) -> None:
        self.position = position
        self._lander, self._pool = lander, pool
        self._queue: deque[list[Future[LandedSegment]]] = deque()
        self._open: list[Future[LandedSegment]] = []
        self._returned: LandedSegment | None = None

    @property
    def in_flight(self) -> bool:
        """Return whether whole transactions have yet to be taken by `take_landed`."""
        return bool(self._queue)

    @property
    def holds_open(self) -> bool:
        """Return whether parts of a transaction wait for the segment with its commit."""
        return bool(self._open)

    def submit(self, segment: Segment) -> None:
        """Land whole transactions; they complete the parts submitted before."""
        self._queue.append([*self._open, self._start(segment)])
        self._open = []
        self.position = segment.position

    def submit_part(self, segment: Segment) -> None:
        """Land a part of the transaction that is still open."""
        self._open.append(self._start(segment))

    def wait(self) -> None:
        """Wait until all that was submitted has landed."""
        for future in self._running():
            future.result()

    def _start(self, segment: Segment) -> Future[LandedSegment]:
        running = self._running()
        if len(running) >= SEGMENTS_IN_FLIGHT:
            running[0].result()
        return self._pool.submit(self._lander.land, segment)

    def _running(self) -> list[Future[LandedSegment]]:
        return [f for group in (*self._queue, self._open) for f in group if not f.done()]

    def take_landed(self, *, wait: bool = False) -> LandedSegment | None:
        """Return all that has landed since the last call, as one, or None. `wait`: for at least one."""
        landed, self._returned = self._returned, None
        while self._queue and (wait or all(f.done() for f in self._queue[0])):
            wait = False
            for future in self._queue.popleft():
                part = future.result()
                if landed is None:
                    landed = part
                else:
                    landed.add(part)
        return landed

    def give_back(self, landed: LandedSegment) -> None:
        """Return what was taken and can't be committed yet; it is taken again, with what lands meanwhile."""
        self._returned = landed

    def forget(self) -> None:
        """Drop segments that were not taken; no manifest names their files."""
        self._returned = None
        for group in (*self._queue, self._open):
            for future in group:
                future.cancel()
        self._queue.clear()
        self._open = []
