"""One table's changes in a landing zone, for a data source. Opens the store wherever it is used.

Flow: range (two offsets) -> parts with their layouts, planned in one process -> rows, read in others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeVar

import pyarrow as pa

from connector.config import LandingConfig
from connector.errors import ConfigurationError, GapError
from connector.landing.consumers import Consumer, read_record, record_path
from connector.landing.file_groups import groups_of
from connector.landing.manifest import LandedFile, ManifestHeader
from connector.maintenance.retention import History
from connector.position import Moment
from connector.reading.change_log import ChangeLog, Offset, Part
from connector.reading.change_rows import read_layout, read_rows
from connector.schema import TableName, TableSchema
from connector.store.factory import open_store
from connector.store.protocol import Store
from connector.store.read_ahead import read_ahead

T = TypeVar("T")

NEWEST = "newest"
"""Names the newest manifest there is."""

NEARLY = timedelta(minutes=1)
"""How much earlier a transaction's commit time may be than that of one before it in the log. PostgreSQL and
MySQL take it microseconds before the transaction's place in the log. MariaDB logs when its last statement
began.
"""

PARTITION_BYTES = 16 << 20
"""What one task reads at least, if there is that much. All of its files but the last are smaller than this,
so several may be in memory at once.
"""


def groups_for_tasks(items: Iterable[T], file_of: Callable[[T], LandedFile]) -> Iterator[list[T]]:
    """Split items, each of one landing file, into what one task each reads."""
    return groups_of(items, lambda item: file_of(item).bytes, PARTITION_BYTES)


@dataclass(frozen=True)
class Files:
    """What one task reads: parts, and their layouts by id."""

    parts: tuple[Part, ...]
    layouts: dict[str, TableSchema]


@dataclass(frozen=True)
class TableChanges:
    """The changes of one table of a source, by the source's name; `dumps`: include dumped rows."""

    landing: LandingConfig
    source: str
    table: TableName
    dumps: bool = False

    def open(self) -> OpenChanges:
        """Open the source's landing zone to plan what to read."""
        return OpenChanges(self, self._store())

    def rows(self, files: Files, layout: TableSchema) -> Iterator[pa.RecordBatch]:
        """Read files in the columns of a layout, and `_cdc`."""
        return read_rows(self._store(), files.parts, files.layouts, layout)

    def _store(self) -> Store:
        return open_store(self.landing, self.source)


class OpenChanges:
    """Plans what to read of one table's changes."""

    def __init__(self, changes: TableChanges, store: Store) -> None:
        self._table, self._store = changes.table, store
        self.log = ChangeLog(store, changes.table, dumps=changes.dumps)

    def layout(self) -> TableSchema:
        """Return the table's newest layout. `ConfigurationError` if it has not landed."""
        state = self.log.newest().tables[self._table]
        assert state.schema_id is not None, "checked"
        return read_layout(self._store, self._table, state.schema_id)

    def after(self, text: str | None) -> Offset:
        """Return the offset after the manifest that a text identifies; None: before all.

        The text is a manifest's number, a position or time (the last manifest before the first later one), or
        ``newest``. A moment before everything that ever landed gives the offset before all; `GapError` if
        a manifest that it may name was removed.

        The last manifest at or before a moment is final only once a later one has landed. Until then raises
        `ConfigurationError`, since ranges that meet there would lose what lands in between.
        """
        return self.log.after(0 if text is None else self._manifest_at(text))

    def files(self, start: Offset, end: Offset) -> list[Files]:
        """Return what to read between two offsets, by task, with the layouts."""
        parts = self.log.parts(start, end)
        ids = {part.file.schema_id for part in parts}
        layouts = {id_: read_layout(self._store, self._table, id_) for id_ in ids}
        groups = groups_for_tasks(parts, lambda part: part.file)
        return [Files(tuple(g), {p.file.schema_id: layouts[p.file.schema_id] for p in g}) for g in groups]

    def record(self, consumer: str, offset: Offset) -> None:
        """Record how far a streaming query has read, so that nothing it still needs is removed.

        `ConfigurationError` if a query of another table has this name; nothing is recorded then. Of two such
        queries that start at once, one has it.
        """
        id_, now = _id_of(consumer), datetime.now(timezone.utc)
        record = Consumer(
            id=id_, kind="stream", lake=consumer, table=self._table, manifest=offset.manifest, at=now
        )
        path, data = record_path(id_, "stream"), record.model_dump_json().encode()
        if not self._store.create(path, data):
            self.recorded(consumer)  # which refuses another table's
            self._store.put(path, data)

    def recorded(self, consumer: str) -> int | None:
        """Return the manifest that was recorded of a streaming query of this name; None: nothing was.

        `ConfigurationError` if it is a query of another table.
        """
        found = read_record(self._store, _id_of(consumer), "stream")
        if found is None:
            return None
        if found.table not in (self._table, None):
            raise ConfigurationError(
                f"the consumer {consumer!r} is a query of {found.table}, and this one reads {self._table}",
                hint="give each query a consumer of its own; if the other one will not go on:"
                f' deltatide maintain --forget "{found.title}"',
            )
        return found.manifest

    def _manifest_at(self, text: str) -> int:
        history = History.of(self._store)
        if history is None:
            raise ConfigurationError("nothing has landed yet", hint="start the agent: deltatide run")
        newest = history.newest
        if text == NEWEST:
            return newest.number
        moment = Moment.parse(text, newest.source.kind)
        if moment.manifest is not None:
            return moment.manifest
        number = _first_after(history, moment) - 1
        if number == newest.number:
            raise ConfigurationError(
                f"{self._store.url}: nothing later than {moment.text} has landed, so earlier changes may"
                " still land",
                hint=f"name a manifest (the newest is {number}) or an earlier moment, or try again later",
            )
        if 0 < number < history.oldest:
            raise GapError(
                f"{self._store.url}: {moment.text} may name a manifest before {history.oldest},"
                " the first one kept",
                hint=f"name manifest {number}, or a later moment",
            )
        return number


def _id_of(consumer: str) -> str:
    return f"stream-{consumer}"


def _first_after(history: History, moment: Moment) -> int:
    """Return the first manifest after a position or a commit time; the newest one's successor if none is.

    Commit times are only nearly in the log's order, and which other manifests there are must not matter. So
    of those within `NEARLY` each is looked at. If some may be among the removed ones, return the first kept.
    """
    newest = history.newest
    if moment.position is not None:
        epoch, boundary = moment.position
        after = (newest.epoch if epoch is None else epoch, boundary)
        return history.first_where(lambda m: (m.epoch, m.position) > after, newest.number)
    assert moment.committed_at is not None, "one of the three"
    time = moment.committed_at
    begin = history.first_where(lambda manifest: _is_after(manifest, time, NEARLY), newest.number)
    if 1 < begin == history.oldest:
        return begin
    numbers = range(begin, newest.number + 1)
    for number, stored in zip(numbers, read_ahead(history.reader.stored, numbers), strict=True):
        manifest = history.get(number) if stored is None or stored.removed else stored
        if _is_after(manifest, time):
            return number
    return newest.number + 1


def _is_after(manifest: ManifestHeader, time: datetime, nearly: timedelta = timedelta(0)) -> bool:
    return manifest.source_committed_at is not None and manifest.source_committed_at + nearly > time
