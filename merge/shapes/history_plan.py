"""Plans what one merge reads to bring a table's history from one manifest to another. Pure; no Spark.

A table's history is a function of the events that count. A merge keeps the versions as they are at a
position, `since`, and derives everything later from the events after it. So it reads all landed events after
`since`, whichever merges have seen them:

- of the manifests ``(after, upto]``, log begins at the position of manifest `after`, since all log before it
  has landed; log that lands again, or that compaction has joined with it, is new only after that;
- a chunk begins at its low watermark, a full dump that ends at the lowest of its chunks;
- an event from before the last full dump does not count if it lands after that dump has ended, for history as
  for current rows. What landed earlier stays;
- what is known of a row ends at a *gap*, after which the log is complete again: where an epoch with lost log
  begins, and at the gaps in the table's state. Log before such a gap did not land (a quarantine, a table that
  was excluded) or did not show everything (an unlogged change). A gap before the position of manifest `after`
  that this manifest did not list yet, such as a raised floor, has everything after it derived again, like a
  late chunk. Manifests list a gap until a full dump from after it has ended, whatever becomes of dumps and
  epochs meanwhile; from then on, no row is known from before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from connector.errors import GapError
from connector.landing.manifest import FullDump, LandedFile, Manifest
from connector.position import Position
from connector.schema import TableName, TableSchema
from merge.plan import NOTHING, Landed, Manifests, landed_after, last_full


@dataclass(frozen=True)
class Ended:
    """A full dump that has ended: keys without a row in its `chunks` were gone by `position`.

    `high`: the position (an lsn) of the manifest that ended it, after every snapshot of the dump.
    """

    position: Position
    high: int
    chunks: tuple[LandedFile, ...]


@dataclass(frozen=True)
class HistoryPlan:
    """The files to read: `log` and `chunks`. Only events after `since` count.

    `at`: by low watermark (epoch and lsn), the commit time that the log had reached before it.
    `gaps`: nothing is known across them. `news`: whether any of this is new.
    """

    since: Position
    log: tuple[LandedFile, ...]
    chunks: tuple[LandedFile, ...]
    ended: tuple[Ended, ...]
    at: Mapping[tuple[int, int], datetime | None]
    gaps: tuple[Position, ...]
    news: bool

    @property
    def files(self) -> tuple[LandedFile, ...]:
        """List all files of events."""
        return self.log + self.chunks

    @property
    def rows(self) -> int:
        """Count the events to read."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Count the bytes of the files to read, with those of the chunks of dumps that have ended."""
        return sum(file.bytes for file in (*self.files, *(f for end in self.ended for f in end.chunks)))

    @property
    def partial(self) -> bool:
        """Return whether an event may lack columns."""
        return any(file.partial for file in self.files)

    @property
    def of_known_keys(self) -> bool:
        """Return whether only the events' own keys can change: no truncate, no ended full dump."""
        return not self.ended and not any(file.truncates for file in self.log)

    def of_key(self, schemas: Mapping[str, TableSchema], key: Sequence[str]) -> HistoryPlan:
        """Leave out what landed under another key, like `merge.plan.TablePlan.of_key`."""

        def keyed(files: Iterable[LandedFile]) -> tuple[LandedFile, ...]:
            return tuple(file for file in files if list(schemas[file.schema_id].key) == list(key))

        ended = tuple(end for end in self.ended if keyed(end.chunks) == end.chunks)
        return replace(self, log=keyed(self.log), chunks=keyed(self.chunks), ended=ended)


def plan_history(
    table: TableName, manifests: Manifests, after: int, upto: int, beginning: FullDump | None = None
) -> HistoryPlan:
    """Plan the merge of a table's history from manifest `after` (exclusive) to `upto` (inclusive).

    `beginning`: the history begins with this full dump, which began after manifest `after`.
    """
    news = [manifests.get(number) for number in range(after + 1, upto + 1)]
    before = manifests.get(after) if after else None
    begin = _begin(before)
    floor = _just_before(beginning.position) if beginning else _swept(table, before)
    landed = Landed(table, news)
    log = [f for m in news for f in landed.files(m) if f.kind == "log"]
    chunks = [file for file in _counting(table, manifests, news) if file.first > floor]
    ended = [end for end in _ended(table, manifests, news) if end.position > floor]
    ends = [end.position for end in ended]
    late = _late_gaps(table, manifests, before, news)
    since = max(min([begin, *map(_just_before, [*(f.first for f in chunks), *ends, *late])]), floor)
    again = landed_after(landed, manifests, after, since, 1) if since < begin else []
    earlier = _at_or_after(since, manifests, after) if since < begin else [before] if before else []
    return HistoryPlan(
        since=since,
        log=_distinct([f for f in (*log, *again) if f.kind == "log" and f.last > since]),
        chunks=_distinct([*chunks, *(f for f in again if f.kind == "chunk")]),
        ended=tuple(ended),
        at=_times(manifests, upto, [*(f.first for f in (*chunks, *again) if f.kind == "chunk"), *ends]),
        gaps=tuple(sorted(_gaps(table, manifests, [*news, *earlier]))),
        news=bool(chunks or ended or late) or any(file.last > begin for file in log),
    )


def plan_beginning(table: TableName, manifests: Manifests, upto: int) -> HistoryPlan:
    """Plan a history from its beginning, or from the last full dump if early manifests are gone."""
    try:
        return plan_history(table, manifests, 0, upto)
    except GapError:
        plan = plan_from_last_dump(table, manifests, upto)
        if plan is None:
            raise
        return plan


def plan_from_last_dump(table: TableName, manifests: Manifests, upto: int) -> HistoryPlan | None:
    """Plan a history that begins with the last full dump; None if there is none."""
    dump = last_full(table, manifests.get(upto))
    return plan_history(table, manifests, dump.started_in - 1, upto, dump) if dump is not None else None


def _counting(table: TableName, manifests: Manifests, news: Sequence[Manifest]) -> Iterable[LandedFile]:
    """List the chunks, without those that landed after a later full dump had ended."""
    for manifest in news:
        swept = _swept(table, manifests.get(manifest.number - 1) if manifest.number > 1 else None)
        files = (file for file in manifest.files_of(table) if file.kind == "chunk")
        yield from (file for file in files if file.first > swept)


def _ended(table: TableName, manifests: Manifests, news: Sequence[Manifest]) -> Iterable[Ended]:
    """List the full dumps that end in `news`, without those that ended after a later one."""
    ended = {
        dump.id: dump
        for manifest in news
        for dump in manifest.dumps_of(table)
        if dump.kind == "full" and dump.state == "complete" and dump.low is not None
        if dump.finished_in is not None and news[0].number <= dump.finished_in <= news[-1].number
    }
    for dump in ended.values():
        last = manifests.get(dump.finished_in or 0)
        within = [manifests.get(number) for number in range(dump.started_in, last.number + 1)]
        chunks = (f for m in within for f in m.files_of(table) if f.kind == "chunk" and f.dump == dump.id)
        position = FullDump.of(dump).position
        if last.number == 1 or position > _swept(table, manifests.get(last.number - 1)):
            yield Ended(position, last.position, tuple(chunks))


def _times(
    manifests: Manifests, upto: int, lows: Iterable[Position]
) -> dict[tuple[int, int], datetime | None]:
    """Return the commit time of the last manifest at or before each low watermark."""
    found: dict[tuple[int, int], datetime | None] = {}
    number = upto
    for epoch, lsn in sorted({low[:2] for low in lows}, reverse=True):
        while number > 1 and (m := manifests.get(number)) and (m.epoch, m.position) > (epoch, lsn + 1):
            number -= 1
        manifest = manifests.get(number)
        found[epoch, lsn] = manifest.source_committed_at or manifest.committed_at
    return found


def _gaps(table: TableName, manifests: Manifests, listing: Iterable[Manifest]) -> set[Position]:
    """Find the gaps that manifests list, without those before a full dump that had ended by then."""
    found: set[Position] = set()
    for manifest in listing:
        swept = _swept(table, manifests.get(manifest.number - 1) if manifest.number > 1 else None)
        found.update(gap for gap in _listed(table, manifest) if gap > swept)
    return found


def _late_gaps(
    table: TableName, manifests: Manifests, before: Manifest | None, news: Sequence[Manifest]
) -> set[Position]:
    """Find the gaps listed only now that lie before the position of manifest `before`."""
    known = _listed(table, before) if before else set()
    return {gap for gap in _gaps(table, manifests, news) if gap < _begin(before)} - known


def _begin(before: Manifest | None) -> Position:
    return Position(before.epoch, before.position, -1) if before else NOTHING


def _listed(table: TableName, manifest: Manifest) -> set[Position]:
    """Return the gaps that one manifest lists."""
    state = manifest.tables.get(table)
    own = {Position.of_gap(*gap) for gap in state.gaps} if state is not None else set()
    return own | {Position(gap.epoch, 0, -1) for gap in manifest.gaps}


def _at_or_after(since: Position, manifests: Manifests, upto: int) -> Iterable[Manifest]:
    """List the manifests up to `upto` that are at or after a position, newest first."""
    for number in range(upto, 0, -1):
        manifest = manifests.get(number)
        if (manifest.epoch, manifest.position) < since[:2]:
            return
        yield manifest


def _swept(table: TableName, manifest: Manifest | None) -> Position:
    dump = last_full(table, manifest) if manifest else None
    return dump.position if dump else NOTHING


def _just_before(position: Position) -> Position:
    return position._replace(seq=position.seq - 1)


def _distinct(files: Iterable[LandedFile]) -> tuple[LandedFile, ...]:
    return tuple({file.path: file for file in files}.values())
