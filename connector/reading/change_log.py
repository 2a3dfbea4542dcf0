"""Which landing files, and which of their events, are one table's changes between two manifests.

A table's log lands in position order. So the changes that landed after manifest A, up to manifest B, are its
log events positioned after the last one landed by A, up to the last one landed by B. An offset is a
manifest's number with that last position.

- **Once each.** An event that lands a second time has a position that was already passed, and is skipped.
  Within a compacted block this holds for each new file by itself, so it relies on repeated events landing
  among files that become one; an agent lands each event of an epoch once.
- **Compacted or not.** For a compacted block, the new files are read instead of those they replace, decided
  for the whole block each time it is read, and restricted to the events between the two positions. So both
  sets of files give the same changes, in any steps, even after the originals are gone.
- **All or an error.** If a manifest after the offset was removed, nothing is read. The landing zone must be
  the one that the offset was taken from, by the manifest's write id. It may be replaced while a query runs:
  nothing would be found until there are as many manifests again, and those before the offset never read.

Dumped rows are not changes. They are read with `dumps`: each chunk with the manifest that commits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from connector.errors import ConfigurationError, FormatError, GapError, SourceMismatchError
from connector.landing.format import block_of, manifest_path
from connector.landing.manifest import LandedFile, Manifest
from connector.landing.manifest_object import StoredManifest, require_one_source
from connector.landing.manifest_store import ManifestReader, read_compacted, read_retained
from connector.position import Position
from connector.schema import TableName
from connector.store.protocol import Store
from connector.store.read_ahead import READERS, read_ahead

NOTHING = Position(0, 0, 0)
"""Before all events."""


@dataclass(frozen=True)
class Offset:
    """A manifest (0: before all), and the position of the table's last log event that had landed by then.

    `write_id`: the manifest's.
    """

    manifest: int
    write_id: str = ""
    epoch: int = 0
    lsn: int = 0
    seq: int = 0

    @property
    def position(self) -> Position:
        """Return the position of that event."""
        return Position(self.epoch, self.lsn, self.seq)

    def to_dict(self) -> dict[str, Any]:
        """Return the offset as a JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Offset:
        """Parse what `to_dict` returned; `FormatError` if it is something else."""
        try:
            return cls(**values)
        except TypeError as error:
            raise FormatError(
                f"{dict(values)} is not an offset in the changes of a table",
                hint="start the query with a new checkpoint",
            ) from error


@dataclass(frozen=True)
class Part:
    """A file to read; of a log file, the events positioned after `after`, up to `upto` (None: all)."""

    file: LandedFile
    after: Position | None = None
    upto: Position | None = None


@dataclass(frozen=True)
class _Landed:
    """What one manifest records of the table."""

    number: int
    write_id: str
    files: tuple[LandedFile, ...]

    @property
    def log(self) -> list[LandedFile]:
        return [file for file in self.files if file.kind == "log"]


class ChangeLog:
    """The changes of one table. Caches the manifests after the offset that was last requested.

    `dumps`: include the rows that dumps have read.
    """

    def __init__(self, store: Store, table: TableName, *, dumps: bool = False) -> None:
        self._store, self._table = store, table
        self._kinds = {"log", "chunk"} if dumps else {"log"}
        self._reader = ManifestReader(store)
        self._known: dict[int, _Landed] = {}
        self._first_read: StoredManifest | None = None  # all others are of the same database
        self._seen = 0  # the newest manifest there is must not be missing later

    def newest(self) -> Manifest:
        """Return the newest manifest, which must name the table with a layout."""
        found = self._reader.newest()
        manifest = found[0] if found else None
        state = manifest.tables.get(self._table) if manifest else None
        if manifest is None or state is None or state.schema_id is None:
            known = ", ".join(sorted(map(str, manifest.tables))) if manifest else ""
            raise ConfigurationError(
                f"table {str(self._table)!r} has not landed, or is no longer captured",
                hint=f"landed tables: {known or 'none yet'}; source.tables says which are captured",
            )
        self._seen = manifest.number
        return manifest

    def after(self, number: int) -> Offset:
        """Return the offset after a manifest; all manifests from it on must still exist.

        `ConfigurationError` if it has not landed.
        """
        self._require_kept(number)
        if number > self.newest().number:
            raise ConfigurationError(
                f"manifest {number} has not landed", hint="deltatide status shows the newest"
            )
        if number < (first := self._first_kept()):
            return Offset(number, "", *self._last_removed(first))
        offset = Offset(number, self._get(number).write_id)
        # Within a compacted block, the position separates what had landed by then from what had not.
        for landed in self._range(max(block_of(number)[0], first), number):
            offset = _advanced(offset, landed)
        return offset

    def _last_removed(self, first: int) -> Position:
        """Return a position after all events of removed manifests, before those of `first`, the first kept.

        If `first` ends a compacted block, the block's events still exist.
        """
        block = read_compacted(self._store, first) if first > 1 else None
        table = block.tables.get(self._table) if block else None
        if table is None:
            return NOTHING
        if own := self._get(first).log:
            begin = min(file.first for file in own)
            return begin._replace(seq=begin.seq - 1)
        return max(file.last for file in table.files)

    def check(self, offset: Offset) -> None:
        """Refuse an offset of another landing zone, or one whose following changes have been removed."""
        self.newest()
        self._require_kept(offset.manifest)
        self.check_unreplaced(offset)

    def check_unreplaced(self, offset: Offset) -> None:
        """Refuse an offset of another landing zone; reads its manifest again, which may be another one now.

        A manifest from before those that are kept may be gone.
        """
        if not offset.manifest:
            return
        stored = self._reader.stored(offset.manifest)
        if stored is not None and stored.write_id == offset.write_id:
            return
        if offset.manifest >= self._first_kept():
            raise SourceMismatchError(
                f"manifest {offset.manifest} of {self._store.url} is not the one that was read",
                hint="the landing zone was replaced; start the query with a new checkpoint",
            )

    def end(self, start: Offset, most_manifests: int | None = None, most_rows: int | None = None) -> Offset:
        """Return the newest offset, or the one after `most_manifests` or `most_rows` if that is earlier.

        Manifests are not split, and at least one is included, so there may be more than `most_rows`.
        """
        self._forget(start.manifest)
        offset, rows = start, 0
        for landed in self._following(start.manifest):
            offset = _advanced(offset, landed)
            rows += sum(file.rows for file in landed.files)
            if most_manifests is not None and offset.manifest - start.manifest >= most_manifests:
                break
            if most_rows is not None and rows >= most_rows:
                break
        return offset

    def parts(self, start: Offset, end: Offset) -> list[Part]:
        """Return what to read for the changes after `start`, up to `end`."""
        found: list[Part] = []
        self._require_kept(start.manifest)
        offset, replaced = start, frozenset[str]()
        for landed in self._range(start.manifest + 1, end.manifest):
            first, last = block_of(landed.number)
            if landed.number in (first, start.manifest + 1):
                parts, replaced = self._compacted(last, offset.position, end)
                found += parts
            found += [
                Part(file, offset.position if file.kind == "log" else None)
                for file in landed.files
                if file.path not in replaced and (file.kind != "log" or file.last > offset.position)
            ]
            offset = _advanced(offset, landed)
        return found

    def _compacted(self, last: int, after: Position, end: Offset) -> tuple[list[Part], frozenset[str]]:
        """Return what to read of the files that a block was compacted to, and the files they stand for."""
        block = read_compacted(self._store, last)
        table = block.tables.get(self._table) if block else None
        if table is None:
            return [], frozenset()
        upto = end.position if end.manifest < last else None
        parts = [
            Part(file, after, upto)
            for file in table.files
            if file.last > after and (upto is None or file.first <= upto)
        ]
        return parts, frozenset(table.replaced)

    def _following(self, after: int) -> Iterator[_Landed]:
        """Read the manifests after a number, up to the newest."""
        number = after + 1
        while True:
            ahead = READERS if number <= self._seen else 1
            for stored in self._load(number, number + ahead - 1):
                if stored is None:
                    self._require_end(number)
                    return
                yield stored
                number += 1

    def _range(self, first: int, last: int) -> Iterator[_Landed]:
        for number, stored in zip(range(first, last + 1), self._load(first, last), strict=True):
            if stored is None:
                raise self._missing(number)
            yield stored

    def _get(self, number: int) -> _Landed:
        (found,) = self._range(number, number)
        return found

    def _load(self, first: int, last: int) -> Iterator[_Landed | None]:
        """Read manifests, several at once; None for one that is not there."""
        numbers = range(first, last + 1)
        unknown = iter(read_ahead(self._reader.stored, [n for n in numbers if n not in self._known]))
        for number in numbers:
            if number not in self._known:
                stored = next(unknown)
                if stored is None or stored.removed:
                    yield None
                    continue
                self._first_read = self._first_read or stored
                require_one_source([self._first_read, stored], self._store.url)
                self._known[number] = self._landed(stored)
            yield self._known[number]

    def _landed(self, stored: StoredManifest) -> _Landed:
        files = (f for f in stored.files if f.table == self._table and f.kind in self._kinds)
        return _Landed(stored.number, stored.write_id, tuple(files))

    def _forget(self, before: int) -> None:
        self._known = {n: landed for n, landed in self._known.items() if n >= before}

    def _first_kept(self) -> int:
        retained = read_retained(self._store)
        return retained.first if retained else 1

    def _require_kept(self, after: int) -> None:
        first = self._first_kept()
        if after + 1 < first:
            raise GapError(
                f"{self._store.url}: manifests {after + 1} to {first - 1} were removed, whose changes of"
                f" {self._table} are still to be read",
                hint=f"start after manifest {first - 1}, with a new checkpoint; the lake has all before it",
            )

    def _require_end(self, number: int) -> None:
        """Raise if a manifest is missing, unless it is the next one to be committed."""
        self._require_kept(number - 1)
        if number <= self._seen:
            raise self._missing(number)

    def _missing(self, number: int) -> FormatError:
        self._require_kept(number - 1)
        return FormatError(
            f"{self._store.url}/{manifest_path(number)} is missing",
            hint="restore it from a copy; never delete objects of the landing zone by hand",
        )


def _advanced(offset: Offset, landed: _Landed) -> Offset:
    last = max([offset.position, *(file.last for file in landed.log)])
    return Offset(landed.number, landed.write_id, *last)
