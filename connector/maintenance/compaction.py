"""Compaction: rewrites the many small log files of a block of manifests as a few large ones.

::

    manifests -> small log files by table and layout -> new files -> record -> a day later: the originals go

A merge that catches up or rebuilds opens each landing file that the manifests name; after a day of small
flushes, that dominates its time. So once a block of manifests (`connector.landing.format.block_of`) is an
hour old, each table and layout gets a few files with the events of its many, and a record of which files
replace which (`connector.landing.manifest.CompactedBlock`). Chunks stay as they are.

**Never both, never neither.** The record is one object, created once. A reader finds it with the block's last
manifest, or not at all, and decides for the whole block. If it reads up to that manifest or beyond, it takes
the new files as if the last manifest named them, and none of the files they replace. Otherwise, or without a
record, it takes the originals. The new files are durable before the record, and the originals stay for a day
after it, so a reader that was too early for the record has a day to finish. Before originals are removed, it
is recorded that they may be gone; from then on, reading up to a manifest within the block is an error that
says so.

**Events that were already applied.** A reader that continues from within the block finds in the new files
events that it has already applied. It skips them, by the position of the last event that the block had landed
by then (`merge.plan`): applied again without the chunks that have overruled them since, they would win. None
of the new files' events is beyond its end, since it reads at least to the end of the block. Only files that
begin after the manifest before the block are joined, so a reader that rereads older log goes back to that
manifest at most. Retention keeps it: manifests are removed by whole blocks
(`connector.maintenance.retention`).

**Order.** New files, then the record; a day later: record how far originals may be gone, remove them, record
how far they are gone. A crash leaves files that no record names, which retention finds by their day, or a
step that the next run repeats. Of two concurrent runs, one creates the record, and the other's files are left
to retention; both remove the same originals.

A damaged file stays, together with those it would have been joined with: a merge that needs it stops there,
as before.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from connector import failpoint
from connector.landing.file_groups import groups_of
from connector.landing.format import COMPACTION, block_of, compacted_path, schema_path
from connector.landing.manifest import CompactedBlock, CompactedTable, LandedFile
from connector.landing.manifest_object import CompactionProgress, StoredManifest
from connector.landing.manifest_store import (
    ManifestReader,
    read_compacted,
    read_compaction_progress,
    read_retained,
)
from connector.landing.parquet import DamagedFileError, FileWriter, batches_of
from connector.maintenance.records import update
from connector.schema import TableSchema
from connector.store.protocol import Store
from connector.store.read_ahead import read_ahead

AGE = timedelta(hours=1)
"""By then, merges that keep up have read a block and no longer need it."""

GRACE = timedelta(days=1)
"""How long originals stay: longer than any merge, query, or cache of manifests lives."""

SMALL_BYTES = 4 << 20
"""Files of at least this size stay as they are: opening one costs less than reading it."""

TARGET_BYTES = 128 << 20
FEW_FILES = 8
"""This many files or fewer are not worth rewriting."""


@dataclass
class Compaction:
    """What was done, or would be: `files` (`bytes`) of `blocks` were rewritten as `into` new ones.

    `removed`: originals of blocks compacted earlier. `damaged`: paths of files that differ from what their
    manifest says, and so stay. `stopped`: there is more to do.
    """

    blocks: int = 0
    files: int = 0
    bytes: int = 0
    into: int = 0
    removed: int = 0
    damaged: list[str] = field(default_factory=list)
    stopped: bool = False


def _now() -> datetime:
    return datetime.now(timezone.utc)


def compact(
    store: Store,
    oldest: int,
    newest: int,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
    stop: threading.Event | None = None,
    seconds: float = math.inf,
    clock: Callable[[], datetime] = _now,
) -> Compaction:
    """Compact the blocks from manifest `oldest` to `newest` that are old enough; with `dry_run` only count.

    `oldest`: the first manifest that retention keeps. `progress` is called with the number of blocks
    examined, and the total. Stops at a safe point once `stop` is set, or after `seconds`. Raises what the
    store raises.
    """
    known = read_compaction_progress(store)
    run, begun = _Run(store, ManifestReader(store), clock, dry_run), time.monotonic()
    blocks = list(_blocks(max(oldest, known.removed if known else 0), newest))
    all_removed = True
    for done, (first, last) in enumerate(blocks):
        progress(done, len(blocks))
        if (stop is not None and stop.is_set()) or time.monotonic() - begun > seconds:
            run.result.stopped = True
            break
        block = read_compacted(store, last)
        all_removed = all_removed and block is not None and block.at <= clock() - GRACE
        if block is not None and all_removed:
            run.remove_originals(block)
        elif block is None and not run.compact_block(first, last):
            break
    return run.result


def _blocks(before: int, newest: int) -> Iterator[tuple[int, int]]:
    """Return the blocks whose manifests all exist: after `before`, or from 1 on, up to `newest`."""
    first, last = block_of(before + 1 if before > 1 else 1)
    if 1 < first <= before:
        first, last = block_of(last + 1)
    while last <= newest:
        yield first, last
        first, last = block_of(last + 1)


@dataclass(frozen=True)
class _Run:
    store: Store
    reader: ManifestReader
    clock: Callable[[], datetime]
    dry_run: bool
    result: Compaction = field(default_factory=Compaction)

    def remove_originals(self, block: CompactedBlock) -> None:
        """Remove the files that a block's new ones replace, and record that they are gone."""
        self.result.removed += len(block.replaced)
        if self.dry_run:
            return
        if block.replaced:
            self._record(removing=block.last)
            failpoint.reach("originals-given-up")
            self.store.delete_all(block.replaced)
            failpoint.reach("originals-removed")
        self._record(removed=block.last)

    def _record(self, *, removing: int = 0, removed: int = 0) -> None:
        """Record how far originals may be gone (`removing`), and are gone; neither number ever goes back."""

        def further(data: bytes | None) -> bytes | None:
            known = CompactionProgress(at=self.clock())
            if data is not None:
                known = CompactionProgress.from_json(data, COMPACTION)
            if removing <= known.removing and removed <= known.removed:
                return None
            numbers = {"removing": max(removing, known.removing), "removed": max(removed, known.removed)}
            return known.model_copy(update={**numbers, "at": self.clock()}).to_json()

        update(self.store, COMPACTION, further)

    def compact_block(self, first: int, last: int) -> bool:
        """Compact a block; return whether it was old enough, so later ones may be, too."""
        end = self.reader.stored(last)
        if end is None or end.committed_at > self.clock() - AGE:
            return False
        groups = self._groups(first, last)
        if groups is None:
            return True
        tables: dict[str, CompactedTable] = {}
        damaged = [path for group in groups if (path := self._compact_group(group, tables))]
        retained = read_retained(self.store)
        if retained is not None and retained.first > max(1, first - 1):
            return True  # retention has begun to remove them
        self.result.damaged += damaged
        self.result.blocks += bool(groups)
        if self.dry_run:
            return True
        block = CompactedBlock(first=first, last=last, at=self.clock(), tables=tables)  # type: ignore[arg-type]
        failpoint.reach("block-written")
        # If it exists, another run was first, or the response to ours was lost.
        self.store.create(compacted_path(last), block.model_dump_json(exclude_none=True).encode())
        failpoint.reach("block-recorded")
        return True

    def _groups(self, first: int, last: int) -> list[list[LandedFile]] | None:
        """Return which files of a block to join; None if a manifest is gone: retention is removing them."""
        before = self.reader.stored(first - 1) if first > 1 else None
        manifests = list(read_ahead(self.reader.stored, range(first, last + 1)))
        there = [m for m in manifests if m is not None and not m.removed]
        if len(there) < len(manifests) or (first > 1 and (before is None or before.removed)):
            return None
        return groups(there, (before.epoch, before.position) if before else (0, 0))

    def _compact_group(self, group: list[LandedFile], tables: dict[str, CompactedTable]) -> str | None:
        """Join files, and add them to the block's record.

        Or leave them all as they are, and return the path of a damaged one.
        """
        result = self.result
        if not self.dry_run:
            try:
                new = join(self.store, group)
            except DamagedFileError as error:
                return error.path
            table = tables.setdefault(str(new.table), CompactedTable(files=[], replaced=[]))
            table.files.append(new)
            table.replaced.extend(file.path for file in group)
        result.files, result.into = result.files + len(group), result.into + 1
        result.bytes += sum(file.bytes for file in group)
        return None


def groups(manifests: Sequence[StoredManifest], before: tuple[int, int]) -> list[list[LandedFile]]:
    """Return the files of some manifests to join, in position order.

    `before`: epoch and position of the manifest before. A group's files are of one table and layout and have
    the same flags, so a plan that reads the joined file does the same as one that reads the originals.
    """
    found: dict[tuple[object, ...], list[LandedFile]] = {}
    for file in (file for manifest in manifests for file in manifest.files):
        late = (file.first.epoch, file.first.lsn) > before
        if file.kind == "log" and file.bytes < SMALL_BYTES and late:
            found.setdefault((file.table, file.schema_id, file.partial, file.truncates), []).append(file)
    ordered = (sorted(files, key=lambda file: (file.first, file.last)) for files in found.values())
    parts = [
        part
        for files in ordered
        for part in groups_of(files, lambda file: file.bytes, TARGET_BYTES)
        if len(part) > FEW_FILES
    ]
    return sorted(parts, key=lambda part: part[0].first)


def join(store: Store, files: Sequence[LandedFile]) -> LandedFile:
    """Write files of one table and layout as one, durable on return; holds some files and a row group.

    `DamagedFileError` if one differs from what its manifest says, or if its layout is missing.
    """
    table, id_ = files[0].table, files[0].schema_id
    layout = store.read(schema_path(table, id_))
    if layout is None:
        raise DamagedFileError(schema_path(table, id_))
    schema = TableSchema.from_json(layout)
    with FileWriter(store, schema, files[0].first) as writer:
        contents = read_ahead(store.read, [file.path for file in files])
        for file, data in zip(files, contents, strict=True):
            for batch in batches_of(schema, file, data):
                writer.append_batch(batch)
        new = writer.close()
    if new is None:
        raise DamagedFileError(files[0].path)
    return new
