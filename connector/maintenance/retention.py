"""Retention: decides which manifests are still needed, and removes the others with their files.

All manifests from one number on are kept. They cover:

- what each consumer has yet to merge or read (`connector.landing.consumers`), and what those merges reread;
- what the chunks of running dumps will make a merge reread;
- what is younger than the retention time.

**What a merge rereads.** A merge at manifest F reads the manifests after F. A chunk in one of them makes it
reread log down to the chunk's low watermark. The chunk's dump was running at F, or began later; so the chunk
was opened after manifest B = ``started_in - 1``, and its low watermark is at least B's position, or that of
the oldest commit that was not yet visible at B. The merge reads manifests backward to the first one that is
not after the watermark. Of several at exactly that position, it skips B and those before B, since only dumps
queued later can have chunks there that count. A full dump's sweep reads the dump's chunks: manifests from
`started_in` on.

**Blocks.** Manifests are removed by whole blocks (`connector.landing.format.block_of`): the oldest kept
manifest is the last one of a block. A merge from within a compacted block rereads all of that block's log, so
at most back to the manifest before the block, where that log begins. Since a block is never split, compaction
and retention need not know of each other.

**Order.** First the number from which all manifests are kept is recorded; it never goes back. Then manifests
are removed, then the files that they name. So from the recorded number on, all manifests exist, and
everything they name. A crash leaves manifests before that number, and files that no manifest names: the next
run removes both, the files by the day in their path. Two concurrent runs do no harm: the slower one checks
again where the landing zone begins (`RemovedMeanwhileError`).

**The fence.** For each term, a stub keeps the number of the first manifest taken. An agent of an earlier
term, cut off for however long, would commit that number next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import chain, count, takewhile

from connector.errors import FormatError, TransientError
from connector.landing.consumers import Consumer, read_consumers
from connector.landing.format import (
    COMMENTS,
    DATA,
    MANIFESTS,
    RETENTION,
    STATES,
    block_of,
    comments_id,
    comments_path,
    compacted_block,
    compacted_path,
    is_manifest,
    manifest_folder,
    manifest_number,
    manifest_path,
    schema_path,
    state_path,
)
from connector.landing.manifest import CompactedBlock, LandedFile, Manifest
from connector.landing.manifest_object import Retained, StoredManifest
from connector.landing.manifest_store import (
    ManifestReader,
    read_compacted,
    read_compaction_progress,
    read_retained,
)
from connector.maintenance.records import update
from connector.schema import TableName
from connector.store.protocol import Store
from connector.store.read_ahead import read_ahead

BATCH = 500
"""Manifests removed at once, with their files."""

MARGIN = timedelta(days=1)
"""A file lands at most this long before its manifest; one that took longer is searched for in all manifests.
"""


class RemovedMeanwhileError(TransientError):
    """another run removed a manifest that this one was about to read; start over."""


@dataclass(frozen=True)
class Need:
    """Who needs the manifests from number `first` on."""

    who: str
    first: int
    consumer: Consumer | None = None


@dataclass(frozen=True)
class Horizon:
    """The oldest existing manifest, the `first` to keep, and the newest; `needs`, oldest first."""

    oldest: int
    first: int
    newest: int
    needs: list[Need]


@dataclass
class Removal:
    """What was removed, or would be: objects, and the bytes of landing files that manifests name.

    `orphans`: files that no manifest names; they are looked for only after those that manifests name are
    gone. `stopped`: there is more to remove.
    """

    manifests: int = 0
    files: int = 0
    bytes: int = 0
    orphans: int = 0
    states: int = 0
    schemas: int = 0
    comments: int = 0
    stopped: bool = False

    @property
    def objects(self) -> int:
        """Count all objects."""
        return self.manifests + self.files + self.others

    @property
    def others(self) -> int:
        """Count the objects that are neither manifests nor files that these name."""
        return self.orphans + self.states + self.schemas + self.comments


@dataclass
class History:
    """The manifests of a landing zone that has any: all from `oldest` on.

    `left`: the numbers of earlier ones that still exist, in order.
    """

    store: Store
    reader: ManifestReader
    newest: Manifest
    oldest: int
    left: list[int] = field(default_factory=list)
    _read: dict[int, Manifest] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> History | None:
        """Return the history; None if nothing has landed yet."""
        reader = ManifestReader(store)
        found = reader.newest()
        if found is None:
            return None
        retained = read_retained(store)
        oldest = retained.first if retained else 1
        return cls(store, reader, found[0], oldest, list(_before(store, oldest)))

    def get(self, number: int) -> Manifest:
        """Read a manifest from `oldest` on; `FormatError` if it is missing, unless another run removed it."""
        if number not in self._read:
            manifest = self.reader.read(number)
            if manifest is None:
                retained = read_retained(self.store)
                if retained is not None and number < retained.first:
                    raise RemovedMeanwhileError("another run is cleaning the landing zone; run this again")
                raise FormatError(
                    f"{self.store.url}/{manifest_path(number)} is missing",
                    hint="restore it from a copy; never delete objects of the landing zone by hand",
                )
            self._read[number] = manifest
        return self._read[number]

    def files_from(self, first: int) -> Iterator[LandedFile]:
        """List the files of all manifests from `first` on, even of those that land while this goes on.

        Keeps few manifests in memory.
        """
        known = range(first, self.newest.number + 1)
        later = takewhile(bool, map(self.reader.stored, count(known.stop)))
        for number, stored in enumerate(chain(read_ahead(self.reader.stored, known), later), first):
            if stored:
                yield from stored.files
            if block := read_compacted(self.store, number):
                yield from block.files

    def first_where(self, holds: Callable[[Manifest], bool], last: int) -> int:
        """Return the first manifest up to `last` for which `holds` is true, as it is for all later ones.

        ``last + 1`` if there is none.
        """
        low, high = self.oldest, last + 1
        while low < high:
            middle = (low + high) // 2
            if holds(self.get(middle)):
                high = middle
            else:
                low = middle + 1
        return low


def _record(store: Store, first: int, now: datetime) -> None:
    """Record that manifests before `first` may be gone, unless a later one is recorded."""

    def further(data: bytes | None) -> bytes | None:
        known = data is not None and Retained.from_json(data, RETENTION).first >= first
        return None if known else Retained(first=first, at=now).to_json()

    update(store, RETENTION, further)


def _before(store: Store, oldest: int) -> Iterator[int]:
    """List the numbers before `oldest` that still have a manifest, or the record of a block ending there."""
    for folder in store.folders(MANIFESTS):
        if folder > manifest_folder(oldest).rpartition("/")[2]:
            return
        paths = store.list(f"{MANIFESTS}/{folder}/")
        found = {manifest_number(path) if is_manifest(path) else compacted_block(path) for path in paths}
        yield from sorted(number for number in found if number is not None and number < oldest)


def whole_blocks(first: int) -> int:
    """Return the greatest number up to `first` from which manifests can be kept: the last one of a block."""
    begin, last = block_of(first)
    return first if first == last else max(1, begin - 1)


def horizon(
    history: History, retention: timedelta, now: datetime, forgotten: Collection[Consumer] = ()
) -> Horizon:
    """Find the first manifest that is needed; reads about twenty manifests per consumer."""
    newest = history.newest.number
    young = history.first_where(lambda m: m.committed_at >= now - retention, newest)
    needs = [
        Need(f"landed in the last {_days(retention)}", young),
        Need("the agent, and dumps that are running", read_again_after(history, newest)),
    ]
    for consumer in read_consumers(history.store):
        if consumer in forgotten:
            continue
        first = read_again_after(history, min(consumer.manifest, newest))
        who = consumer.title if consumer.kind == "stream" else f"lake {consumer.lake}"
        needs.append(Need(who, first, consumer))
    needs.sort(key=lambda need: need.first)
    return Horizon(history.oldest, max(history.oldest, whole_blocks(needs[0].first)), newest, needs)


def read_again_after(history: History, merged: int) -> int:
    """Return the first manifest that a merge now at manifest `merged` may read."""
    if merged < history.oldest:
        return merged
    running = [dump.started_in for dump in history.get(merged).dumps if dump.active]
    before = min([merged + 1, *running]) - 1
    if before < history.oldest:
        return history.oldest
    begun = history.get(before)
    hidden = [commit.lsn for commit in begun.not_yet_visible if commit.lsn]
    low = (begun.epoch, min([begun.position, *hidden]) - 1)
    after_low = history.first_where(lambda m: (m.epoch, m.position) > low, before)
    return max(history.oldest, after_low - 1)


def remove_unneeded(
    history: History,
    needed: Horizon,
    *,
    now: datetime,
    dry_run: bool,
    progress: Callable[[Removal], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Removal:
    """Remove what is not needed; with `dry_run` only count it. Once `stop` is set, stop at a safe point."""
    removal, store = Removal(), history.store
    layouts: dict[TableName, set[str]] = {}
    terms: set[int] = set()
    named = _Named(store, needed.oldest)
    if not dry_run and needed.first > needed.oldest:
        _record(store, needed.first, now)
    # A consumer that is this far behind still needs what an interrupted run left.
    left = [number for number in history.left if number < whole_blocks(needed.needs[0].first)]
    for some in _batches([*left, *range(needed.oldest, needed.first)]):
        if stop is not None and stop.is_set():
            removal.stopped = True
            return removal
        # Another run may be ahead of this one.
        manifests = [manifest for manifest in read_ahead(history.reader.stored, some) if manifest]
        first_of_term = {manifest.term: manifest for manifest in reversed(manifests)}
        stubs = [manifest for term, manifest in first_of_term.items() if term not in terms]
        terms.update(first_of_term)
        gone = [manifest for manifest in manifests if manifest not in stubs]
        files = [file for manifest in manifests for file in named.files(manifest)]
        if not dry_run:
            for manifest in stubs:
                if not manifest.removed:
                    store.put(manifest_path(manifest.number), manifest.stub().to_json())
            store.delete_all(manifest_path(manifest.number) for manifest in gone)
            store.delete_all(compacted_path(number) for number in some if number == block_of(number)[1])
            store.delete_all(file.path for file in files)
        for file in files:
            layouts.setdefault(file.table, set()).add(file.schema_id)
        removal.manifests += sum(not manifest.removed for manifest in manifests)
        removal.files += len(files)
        removal.bytes += sum(file.bytes for file in files)
        progress(removal)

    def remove(paths: list[str]) -> int:
        if not dry_run:
            store.delete_all(paths)
        return len(paths)

    latest = History.of(store) or history
    first = max(needed.first, latest.oldest)  # another run may be ahead of this one
    removal.orphans = 0 if dry_run else remove(orphans(latest, first))
    removal.states = remove(unneeded_states(latest, first))
    removal.schemas = remove(unneeded_schemas(latest, first, layouts))
    removal.comments = remove(unneeded_comments(latest, first))
    progress(removal)
    return removal


class _Named:
    """The files that manifests name and compaction has not removed, queried in the order of manifests.

    Compaction skips a block whose first manifests an earlier run removed, so its originals exist.
    """

    def __init__(self, store: Store, oldest: int) -> None:
        progress = read_compaction_progress(store)
        self._store, self._oldest, self._removed = store, oldest, progress.removed if progress else 0
        self._last, self._replaced = 0, frozenset[str]()
        self._block: CompactedBlock | None = None

    def files(self, manifest: StoredManifest) -> list[LandedFile]:
        """List a manifest's files; the last manifest of a compacted block has the block's new files, too."""
        last = block_of(manifest.number)[1]
        if last != self._last:
            self._last, self._block = last, read_compacted(self._store, last)
            block = self._block
            gone = block is not None and block.first >= self._oldest and last <= self._removed
            self._replaced = frozenset(block.replaced if block is not None and gone else ())
        own = [file for file in manifest.files if file.path not in self._replaced]
        return own + (self._block.files if self._block and manifest.number == last else [])


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[first : first + BATCH] for first in range(0, len(numbers), BATCH))


def orphans(history: History, first: int) -> list[str]:
    """List landing files from before the day of manifest `first` that no manifest from it on names."""
    store, limit = history.store, (history.get(first).committed_at - MARGIN).date()
    old = {
        path
        for table in store.folders(DATA)
        for day in store.folders(f"{DATA}/{table}")
        if _is_before(day, limit)
        for path in store.list(f"{DATA}/{table}/{day}/")
    }
    if old:  # rare, so it may cost a read of each manifest
        old.difference_update(file.path for file in history.files_from(first))
    return sorted(old)


def _is_before(day: str, limit: date) -> bool:
    try:
        return date.fromisoformat(day) < limit
    except ValueError:
        return False


def unneeded_states(history: History, first: int) -> list[str]:
    """List the state objects older than the one that manifest `first` names; no later manifest names them."""
    base = history.reader.base_of(first)
    kept = base.reference.path if base else state_path(first, "")
    return [path for path in history.store.list(f"{STATES}/") if path < kept]


def unneeded_comments(history: History, first: int) -> list[str]:
    """List the objects of comments that no manifest from `first` on names.

    The number in an object's name is that of the first manifest that names it, or would have. So what an
    agent is about to name has a greater number than `first`.
    """
    named = {
        comments_path(table, state.comments)
        for manifest in (history.get(first), history.newest)
        for table, state in manifest.tables.items()
        if state.comments is not None
    }
    old = comments_id(first, "")
    paths = history.store.list(f"{COMMENTS}/")
    return [path for path in paths if path.rpartition("/")[2] < old and path not in named]


def unneeded_schemas(history: History, first: int, candidates: Mapping[TableName, set[str]]) -> list[str]:
    """List those schema objects named by removed manifests that no manifest from `first` on names.

    A table is skipped, and keeps its few schemas, if that isn't certain: it was not captured all the time
    since, a dump that ran then may have read rows in an earlier layout, or one that runs now in a layout that
    has returned: its chunks may wait long for their manifest. If a layout returns, the agent writes its
    schema again, so manifests are checked as late as possible.
    """
    dumping = _dumping(history.get(first)) | _dumping(history.newest)
    found: set[tuple[TableName, str]] = set()
    for table in candidates.keys() - dumping:
        if since := _layouts_since(history, table, first):
            found |= {(table, id_) for id_ in candidates[table] - since}
    if found:  # a layout may have come and gone within one manifest, so each one is read
        found.difference_update((file.table, file.schema_id) for file in history.files_from(first))
        now = history.reader.newest()  # that took a while: a dump may have begun
        dumping = _dumping(now[0]) if now else set()
    return sorted(schema_path(table, id_) for table, id_ in found if table not in dumping)


def _dumping(manifest: Manifest) -> set[TableName]:
    return {dump.table for dump in manifest.dumps if dump.active}


def _layouts_since(history: History, table: TableName, first: int) -> set[str]:
    """Return the ids of a table's layouts since manifest `first`; none if it was not captured throughout."""
    ids, manifest = set(), history.newest
    while (state := manifest.tables.get(table)) is not None and state.schema_id is not None:
        ids.add(state.schema_id)
        if state.schema_since <= first:
            return ids
        manifest = history.get(state.schema_since - 1)
    return set()


def describe(needed: Horizon) -> Iterator[str]:
    """Describe for people what is needed and by whom, oldest need first."""
    for need in needed.needs:
        at = f", as of {need.consumer.at:%Y-%m-%d %H:%M}Z" if need.consumer else ""
        count = max(0, needed.newest + 1 - max(need.first, needed.oldest))
        yield f"{need.who}: {count:,} manifests, from {max(need.first, needed.oldest)} on{at}"


def _days(time: timedelta) -> str:
    days = time / timedelta(days=1)
    return "day" if days == 1 else f"{days:g} days"
