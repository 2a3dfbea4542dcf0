"""Plans what one merge of one table reads: which landing files, and which sweeps are due. Pure; no Spark.

Invariants:

- All of the table's files in the manifests ``(after, upto]`` are read.
- If chunks are among them, all that is positioned after the lowest of them is read again, including from
  manifests at or before `after`, so that an older chunk row does not bring back a row deleted since. The same
  goes for log that has landed a second time. Chunks are read again as well as log: a deletion or a value that
  no log has overrules older log only if it is there. While the log is idle, all chunks have one low
  watermark; those of a later dump overrule those of an earlier one, so they are read again too. So a plan has
  all events after `low`, which is a whole position.
- The last full dump that ends in ``(after, upto]`` requires a sweep: see `Sweep`. Nothing positioned before
  the dump counts: a row is either in the dump, or gone. So layouts from before it no longer matter. Late
  or repeated events from before an earlier dump are ignored as well: they would resurrect ghosts.
  Files that end before it are not read; of those that begin before it, only the events from `swept` on count.
- A block of manifests that was compacted (`connector.maintenance.compaction`) is read so if it ends at or
  before `upto`: as if its log had landed with its last manifest, and before that not at all. Of the block
  that `after` is within, only events after the last that had landed by then are read (`Resumed`), unless
  older ones are to be read again. A block that ends after `upto` is read as it landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from connector.errors import GapError, TableError
from connector.landing.manifest import DumpState, FullDump, LandedFile, Manifest, TableState
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableName, TableSchema

NOTHING = Position(0, 0, 0)
"""Before all events."""


class Manifests(Protocol):
    """The history of a source, by number."""

    def get(self, number: int) -> Manifest:
        """Return a manifest that was committed."""

    def is_removed(self, number: int) -> bool:
        """Return whether a manifest is from before those that are kept."""


@dataclass(frozen=True)
class Sweep:
    """The end of a full dump: keys positioned before `position` that are in none of `chunks` are ghosts."""

    dump: str
    position: Position
    chunks: tuple[LandedFile, ...]


@dataclass(frozen=True)
class TablePlan:
    """The files to read to bring a table from manifest `after` to manifest `upto`.

    `files`: those not read yet. `again`: files whose events count only after `low`: those to read again, and
    those with both old and new events.
    `swept`: events before this position don't count, in any file; None: all do.
    `altered`: the layout changed. `dumping`: a full dump brings all rows soon after `upto`.
    `full_dumps`: their ids.
    """

    table: TableName
    after: int
    upto: int
    state: TableState
    files: tuple[LandedFile, ...]
    again: tuple[LandedFile, ...]
    low: Position
    swept: Position | None
    sweeps: tuple[Sweep, ...]
    altered: bool
    dumping: bool
    full_dumps: frozenset[str] = frozenset()

    @property
    def all(self) -> tuple[LandedFile, ...]:
        """List all files to read."""
        return self.again + self.files

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to apply."""
        return not self.all and not self.sweeps and not self.altered

    @property
    def schema_ids(self) -> list[str]:
        """List the schemas of the events to read, the newest first."""
        newest = [self.state.schema_id] if self.state.schema_id else []
        return list(dict.fromkeys([*newest, *(f.schema_id for f in reversed(self.all))]))

    @property
    def all_schema_ids(self) -> list[str]:
        """List all schemas needed, including those of the sweep's chunks, of which only keys are read."""
        swept = (file.schema_id for sweep in self.sweeps for file in sweep.chunks)
        return list(dict.fromkeys([*self.schema_ids, *swept]))

    def of_key(self, schemas: Mapping[str, TableSchema]) -> TablePlan:
        """Leave out what landed under another key: it can't be matched to today's rows.

        A changed key quarantines the table until a full dump, which brings all rows.
        """

        def keyed(files: Iterable[LandedFile]) -> tuple[LandedFile, ...]:
            return tuple(f for f in files if list(schemas[f.schema_id].key) == self.state.key)

        sweeps = tuple(sweep for sweep in self.sweeps if keyed(sweep.chunks) == sweep.chunks)
        return replace(self, files=keyed(self.files), again=keyed(self.again), sweeps=sweeps)

    @property
    def rows(self) -> int:
        """Count the events to read."""
        return sum(file.rows for file in self.all)

    @property
    def bytes(self) -> int:
        """Count the bytes of the files to read, with those of the sweeps' chunks."""
        return sum(file.bytes for file in (*self.all, *(f for sweep in self.sweeps for f in sweep.chunks)))

    @property
    def partial(self) -> bool:
        """Return whether an event may lack columns."""
        return any(file.partial for file in self.all)

    @property
    def chunks(self) -> bool:
        """Return whether dumped rows are among the events."""
        return any(file.kind == "chunk" for file in self.all)

    @property
    def dump_chunks(self) -> tuple[LandedFile, ...]:
        """List the chunks of the only full dump among the files, in order: disjoint ranges of the key.

        Empty if there are several full dumps, or a chunk landed twice. A dump that starts over after a
        failover, with other ranges, keeps its id but gets a new epoch and number, which its rows carry.
        """
        chunks = [file for file in self.files if file.kind == "chunk" and file.dump in self.full_dumps]
        passes = {(file.dump, file.first.epoch, file.first.seq) for file in chunks}
        if len(passes) != 1 or len({file.chunk for file in chunks}) < len(chunks):
            return ()
        return tuple(sorted(chunks, key=lambda file: file.chunk or 0))

    @property
    def other_files(self) -> tuple[LandedFile, ...]:
        """List the other new files."""
        bulk = {file.path for file in self.dump_chunks}
        return tuple(file for file in self.files if file.path not in bulk)

    @property
    def truncates(self) -> tuple[LandedFile, ...]:
        """List the files in which the table was truncated."""
        return tuple(file for file in self.all if file.truncates)

    @property
    def swept_since_read(self) -> bool:
        """Return whether a full dump has read the table since the first of the rows read to verify it."""
        return self.swept is not None and self.swept >= self.low

    @property
    def straddles_sweep(self) -> bool:
        """Return whether a file to read begins before `swept`."""
        return self.swept is not None and any(file.first < self.swept for file in self.all)


def plan_table(
    table: TableName, manifests: Manifests, after: int, upto: int, past_hole: FullDump | None = None
) -> TablePlan:
    """Plan the merge of one table from manifest `after` (exclusive) to `upto` (inclusive).

    `past_hole`: the target may lack log from before this full dump. Its sweep spares keys positioned after
    its low watermark, so all log since then is read, though the chunk with that watermark may have no rows.
    """
    news = [manifests.get(number) for number in range(after + 1, upto + 1)]
    landed, resumed = Landed(table, news), Resumed.of(table, manifests, after, news)
    fresh = [file for manifest in news for file in landed.files(manifest) if file not in resumed.files]
    chunks = [file for file in fresh if file.kind == "chunk"]
    log = [file for file in fresh if file.kind == "log"]
    dumps = [dump for manifest in news for dump in manifest.dumps_of(table)]
    sweep = _last_sweep(table, news, manifests)
    earlier = last_full(table, manifests.get(after)) if after else None
    before = earlier.position if earlier else None
    swept = max((p for p in (before, sweep.position if sweep else None) if p is not None), default=None)
    files = _not_swept([*log, *chunks], swept)
    lows = [_position_of_rows(file) for file in files if file.kind == "chunk"]
    if past_hole is not None:
        lows.append(past_hole.position)
    if after:
        known = manifests.get(after)
        lows += [_just_before(*f.first[:2]) for f in log if f.first[:2] <= (known.epoch, known.position)]
    if _after(resumed.read, resumed.files):
        lows.append(resumed.read)
    low = max(min(lows, default=NOTHING), before or NOTHING)
    again: list[LandedFile] = []
    if lows:
        since = _since(low, filter(None, [*dumps, earlier]))
        again = [*landed_after(landed, manifests, after, low, since), *_after(low, resumed.files)]
    return TablePlan(
        table=table,
        after=after,
        upto=upto,
        state=news[-1].tables[table],
        files=files,
        again=_not_swept(again, swept),
        low=low,
        swept=swept,
        sweeps=(sweep,) if sweep else (),
        altered=any(n.table == table and n.kind == "schema" for m in news for n in m.notices),
        dumping=news[-1].brings_all_rows(table),
        full_dumps=frozenset(dump.id for dump in dumps if dump.kind == "full"),
    )


def plan_past_holes(table: TableName, manifests: Manifests, after: int, upto: int) -> TablePlan:
    """Plan like `plan_table`; if a manifest is gone, start at the beginning of the last completed full dump.

    Nothing before that counts: each row of the target is in the dump, or a ghost.
    """
    try:
        return plan_table(table, manifests, after, upto)
    except GapError:
        dump = last_full(table, manifests.get(upto))
        if dump is None or dump.started_in - 1 <= after:
            raise
        return plan_table(table, manifests, dump.started_in - 1, upto, dump)


def plan_verification(dump: DumpState, manifests: Manifests, upto: int) -> TablePlan:
    """Plan what makes up a table's rows after manifest `upto`, from the rows of a dump that `verifies`.

    `files`: those rows, each at its chunk's low watermark. `again`: all that landed after the lowest of them
    (the dump's `low`, which covers chunks without rows), log and chunks. Every chunk has seen what is before
    it, even at the same log position: that must not count, or rows that vanished without an event since then
    would. Nothing from before the last full dump (`swept`) counts, not even in `files`: that dump has read
    the row since, or it is a ghost.
    """
    if dump.low is None or dump.finished_in is None or not dump.finished_in <= upto:
        raise TableError(dump.table, f"verification {dump.id} has not ended by manifest {upto}")
    news = [manifests.get(number) for number in range(dump.started_in, upto + 1)]
    rows = (file for manifest in news for file in manifest.files if file.dump == dump.id)
    low = Position.of_chunk(dump.epoch, dump.low, dump.number)
    full = last_full(dump.table, news[-1])
    swept = full.position if full is not None else None
    again = landed_after(Landed(dump.table, news), manifests, upto, low, since=1)
    return TablePlan(
        table=dump.table,
        after=dump.started_in - 1,
        upto=upto,
        state=news[-1].tables[dump.table],
        files=tuple(file for file in rows if file.kind == "verify"),
        again=_not_swept(again, swept),
        low=low,
        swept=swept,
        sweeps=(),
        altered=False,
        dumping=False,
    )


def _position_of_rows(chunk: LandedFile) -> Position:
    """Return the position of a chunk's rows: its low watermark, and its dump's number."""
    if chunk.low is None:
        raise TableError(
            chunk.table,
            "a chunk has no low watermark",
            hint="deltatide did not write it; dump the table in full",
        )
    return chunk.first


def _just_before(epoch: int, lsn: int) -> Position:
    """Return a position before a transaction's first event, and after all that precedes the transaction."""
    return Position(epoch, lsn, -1)


class Landed:
    """One table's files to read, by manifest; for a compacted block, the files it was compacted to.

    Each block's last manifest is asked once whether it was: a block may be compacted while we plan.
    """

    def __init__(self, table: TableName, news: Iterable[Manifest]) -> None:
        self._table = table
        self._replaced: set[str] = set()
        for manifest in news:
            if manifest.compacted is not None:
                self._compacted(manifest)

    def files(self, manifest: Manifest) -> Sequence[LandedFile]:
        """List a manifest's files; ask in descending order, except for those given at first."""
        if manifest.compacted is None and not self._replaced:  # the usual case
            return manifest.files_of(self._table)
        compacted = self._compacted(manifest)
        own = [file for file in manifest.files_of(self._table) if file.path not in self._replaced]
        return own + compacted

    def _compacted(self, manifest: Manifest) -> list[LandedFile]:
        table = manifest.compacted.tables.get(self._table) if manifest.compacted else None
        if table is None:
            return []
        self._replaced.update(table.replaced)
        return table.files


class Resumed(NamedTuple):
    """One table's `files` of a compacted block within which a plan begins.

    `read`: just after the last of its transactions that had landed by then. Log up to there may have been
    merged already, and nothing says which chunks have overruled it since. A manifest's position would not
    do: on MySQL the next transaction begins there.
    """

    read: Position = NOTHING
    files: Sequence[LandedFile] = ()

    @classmethod
    def of(cls, table: TableName, manifests: Manifests, after: int, news: Sequence[Manifest]) -> Resumed:
        """Find the block among the manifests after `after`; without log by then, all of it is new."""
        block = next((m.compacted for m in news if m.compacted and m.compacted.first <= after), None)
        if block is None or table not in block.tables:
            return cls()
        landed = (file for n in range(block.first, after + 1) for file in manifests.get(n).files_of(table))
        last = max((f.last for f in landed if f.kind == "log"), default=None)
        return (
            cls() if last is None else cls(_just_before(last.epoch, last.lsn + 1), block.tables[table].files)
        )


def _after(low: Position, files: Iterable[LandedFile]) -> list[LandedFile]:
    return [file for file in files if file.last > low]


def _since(low: Position, dumps: Iterable[DumpState | FullDump]) -> int:
    """Return the first manifest that may hold chunks of dumps queued after the dump at `low`.

    Dumps are numbered as they are queued. Returns 1 if `low` is no dump's: log may be in any manifest.
    """
    return min((d.started_in for d in dumps if CHUNK_SEQ + d.number == low.seq), default=1)


def landed_after(
    landed: Landed, manifests: Manifests, upto: int, low: Position, since: int
) -> list[LandedFile]:
    """List the files with events after `low` in the manifests up to `upto`, in order.

    Of the manifests at that very position (many, if the log is idle), only those from `since` on count.
    """
    found: list[LandedFile] = []
    for number in range(upto, 0, -1):
        manifest = manifests.get(number)
        at = (manifest.epoch, manifest.position)
        if at < low[:2] or (at == low[:2] and number < since):
            break
        found = _after(low, landed.files(manifest)) + found
    return found


def landed_between(table: TableName, manifests: Manifests, after: int, upto: int) -> list[LandedFile] | None:
    """List a table's files in the manifests from `after` (exclusive) to `upto` (inclusive).

    None if `after` is within a compacted block: its files no longer tell what landed in which manifest.
    """
    news = [manifests.get(number) for number in range(after + 1, upto + 1)]
    if any(manifest.compacted and manifest.compacted.first <= after for manifest in news):
        return None
    landed = Landed(table, news)
    return [file for manifest in news for file in landed.files(manifest)]


def _last_sweep(table: TableName, news: Sequence[Manifest], manifests: Manifests) -> Sweep | None:
    """Return the sweep of the last full dump that ends in `news`; earlier ones find no more ghosts."""
    first, last = news[0].number, news[-1].number
    ended = {
        dump.id: dump
        for manifest in news
        for dump in manifest.dumps_of(table)
        if dump.kind == "full" and dump.state == "complete"
        if dump.finished_in is not None and first <= dump.finished_in <= last
    }
    sweeps = [_sweep(dump, manifests) for dump in ended.values()]
    return max(sweeps, key=lambda sweep: sweep.position, default=None)


def last_full(table: TableName, manifest: Manifest) -> FullDump | None:
    """Return the last full dump completed as of a manifest."""
    state = manifest.tables.get(table)
    return state.full_dump if state is not None else None


def _not_swept(files: Iterable[LandedFile], swept: Position | None) -> tuple[LandedFile, ...]:
    return tuple(file for file in files if swept is None or file.last >= swept)


def _sweep(dump: DumpState, manifests: Manifests) -> Sweep:
    position, last = FullDump.of(dump).position, dump.finished_in or 0
    between = (manifests.get(number) for number in range(dump.started_in, last + 1))
    chunks = tuple(
        f for m in between for f in m.files_of(dump.table) if f.kind == "chunk" and f.dump == dump.id
    )
    return Sweep(dump.id, position, chunks)
