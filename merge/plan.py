"""What one merge of one table reads: which landing files, and which sweeps it owes. Pure; no Spark.

Invariants:

- All of the table's files in the manifests ``(after, upto]`` are read.
- With chunks among them, all log after the lowest of their low watermarks is read again, from manifests at or
  before `after` too, so that a row that was deleted meanwhile is not brought back by its older chunk row. The
  same goes for log that has landed a second time. So the log in a plan has no hole from its first event on.
- A full dump that ends in ``(after, upto]`` is owed a sweep: see `Sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from connector.errors import TableError
from connector.manifest import DumpState, LandedFile, Manifest, TableState
from connector.position import Position


class Manifests(Protocol):
    """The history of a source, by number."""

    def get(self, number: int) -> Manifest:
        """Give a manifest that was committed."""


@dataclass(frozen=True)
class Sweep:
    """The end of a full dump: keys positioned before `position` that are in none of `chunks` are ghosts."""

    dump: str
    position: Position
    chunks: tuple[LandedFile, ...]


@dataclass(frozen=True)
class TablePlan:
    """What to read to bring a table from manifest `after` to manifest `upto`.

    `files`: those not read yet. `again`: log to be read again, of which only events after `low` (epoch, LSN)
    count. `altered`: its layout changed. `dumping`: a full dump is under way at `upto`.
    """

    table: str
    after: int
    upto: int
    state: TableState
    files: tuple[LandedFile, ...]
    again: tuple[LandedFile, ...]
    low: tuple[int, int]
    sweeps: tuple[Sweep, ...]
    altered: bool
    dumping: bool

    @property
    def all(self) -> tuple[LandedFile, ...]:
        """List all files to be read."""
        return self.again + self.files

    @property
    def idle(self) -> bool:
        """Tell whether there is nothing to apply."""
        return not self.files and not self.sweeps and not self.altered

    @property
    def schema_ids(self) -> list[str]:
        """List the schemas in play, the newest first."""
        return list(dict.fromkeys([self.state.schema_id, *(f.schema_id for f in reversed(self.all))]))

    @property
    def rows(self) -> int:
        """Count the events to be read."""
        return sum(file.rows for file in self.all)

    @property
    def partial(self) -> bool:
        """Tell whether an event may lack columns."""
        return any(file.partial for file in self.all)

    @property
    def chunks(self) -> bool:
        """Tell whether dumped rows are among the events."""
        return any(file.kind == "chunk" for file in self.files)

    @property
    def truncates(self) -> tuple[LandedFile, ...]:
        """List the files in which the table was truncated."""
        return tuple(file for file in self.all if file.truncates)

    def starts_before(self, position: Position) -> bool:
        """Tell whether an event before this position may be among those to be read."""
        return any(file.first < position for file in self.all)


def plan_table(table: str, manifests: Manifests, after: int, upto: int) -> TablePlan:
    """Plan the merge of one table from manifest `after` (exclusive) to `upto` (inclusive)."""
    news = [manifests.get(number) for number in range(after + 1, upto + 1)]
    fresh = [file for manifest in news for file in manifest.files if file.table == table]
    chunks = [file for file in fresh if file.kind == "chunk"]
    log = [file for file in fresh if file.kind == "log"]
    lows = [_low(chunk) for chunk in chunks]
    if after:
        known = manifests.get(after)
        lows += [_just_before(f) for f in log if _just_before(f) < (known.epoch, known.position)]
    low = min(lows, default=(0, 0))
    return TablePlan(
        table=table,
        after=after,
        upto=upto,
        state=news[-1].tables[table],
        files=(*log, *chunks),
        again=tuple(_log_after(table, manifests, after, low)) if lows else (),
        low=low,
        sweeps=tuple(_sweep(dump, manifests) for dump in _full_dumps_ended(table, news)),
        altered=any(n.table == table and n.kind == "schema" for m in news for n in m.notices),
        dumping=any(d.table == table and d.kind == "full" and d.active for d in news[-1].dumps),
    )


def _low(chunk: LandedFile) -> tuple[int, int]:
    """Give epoch and LSN of a chunk's low watermark."""
    if chunk.low is None:
        raise TableError(chunk.table, "a chunk has no low watermark", hint="it was not written by deltatide")
    return chunk.first.epoch, chunk.low


def _just_before(log: LandedFile) -> tuple[int, int]:
    return log.first.epoch, log.first.lsn - 1


def _log_after(table: str, manifests: Manifests, upto: int, low: tuple[int, int]) -> list[LandedFile]:
    """List the log files that hold events after `low`, of the manifests up to `upto`, in order."""
    found: list[LandedFile] = []
    for number in range(upto, 0, -1):
        manifest = manifests.get(number)
        if (manifest.epoch, manifest.position) <= low:
            break
        files = [f for f in manifest.files if f.table == table and f.kind == "log"]
        found = [f for f in files if (f.last.epoch, f.last.lsn) > low] + found
    return found


def _full_dumps_ended(table: str, news: Sequence[Manifest]) -> list[DumpState]:
    first, last = news[0].number, news[-1].number
    ended = {
        dump.id: dump
        for manifest in news
        for dump in manifest.dumps
        if dump.table == table and dump.kind == "full" and dump.state == "complete"
        if dump.finished_in is not None and first <= dump.finished_in <= last
    }
    return list(ended.values())


def _sweep(dump: DumpState, manifests: Manifests) -> Sweep:
    if dump.low is None or dump.finished_in is None:
        raise TableError(dump.table, f"dump {dump.id} is complete and has no low watermark")
    between = (manifests.get(number) for number in range(dump.started_in, dump.finished_in + 1))
    chunks = tuple(f for m in between for f in m.files if f.kind == "chunk" and f.dump == dump.id)
    return Sweep(dump.id, dump.position(dump.low), chunks)
