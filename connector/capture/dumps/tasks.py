"""The tasks that `DumpQueue` hands out to dump workers, and the chunks that they hand in."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from connector.landing.manifest import DumpState, LandedFile, OpenRange
from connector.logged_table import LoggedTable
from connector.schema import TableSchema
from connector.source import KeyRange

log = logging.getLogger(__name__)

KEYS_PER_CHUNK = 1000
"""A VALUES list of this many keys is planned and answered within milliseconds."""


@dataclass(frozen=True)
class PlanTask:
    """Find the upper key of the next chunk. `number`: the dump's, which changes when it starts over."""

    dump: DumpState
    number: int
    after: tuple[str, ...] | None
    epoch: int


@dataclass(frozen=True)
class ReadTask:
    """Read one planned chunk; `keys` are the given ones, for a dump of keys.

    `number`: as in `PlanTask`. `log_losses`: how often the log had been lost when the task was handed out.
    """

    dump: DumpState
    number: int
    chunk: int
    range: KeyRange
    keys: Sequence[Sequence[str]] | None
    epoch: int
    log_losses: int = 0


@dataclass(frozen=True)
class FinishedChunk:
    """A chunk that was read and is in the store; `file` is None if its range held no rows.

    `order`: see `connector.source.Chunk`.
    """

    task: ReadTask
    low: int
    high: int
    rows: int
    schema: TableSchema
    file: LandedFile | None
    read_from: Sequence[LoggedTable] = ()
    order: str | None = None


def plan_task(dump: DumpState) -> PlanTask:
    """Build the task of planning a dump's next chunk."""
    return PlanTask(dump, dump.number, _tuple(dump.planned_upto), dump.epoch)


def plan_named(dump: DumpState, ranges: Sequence[tuple[int | None, int | None]] = ()) -> None:
    """Plan all chunks of a dump of given rows: of its keys, `KEYS_PER_CHUNK` each, or of `ranges`.

    Ranges are values of the key's first column, as in `connector.landing.requests.DumpRequest`.
    """
    ends = ranges or [(None, None)] * -(-len(dump.keys or []) // KEYS_PER_CHUNK)
    dump.open = [
        OpenRange(chunk=number, after=_text(after), upto=_text(upto))
        for number, (after, upto) in enumerate(ends)
    ]
    dump.next_chunk, dump.planned_all = len(dump.open), True
    dump.ranges = list(dump.open) if ranges else []


def _text(end: int | None) -> list[str] | None:
    return None if end is None else [str(end)]


def read_task(dump: DumpState, planned: OpenRange, log_losses: int) -> ReadTask:
    """Build the task of reading a planned chunk."""
    keys = None
    if dump.keys is not None:
        keys = dump.keys[planned.chunk * KEYS_PER_CHUNK : (planned.chunk + 1) * KEYS_PER_CHUNK]
    named = dump.kind == "verify_rows"  # its ranges may have only the key's first column
    range_ = KeyRange(_tuple(planned.after), _tuple(planned.upto), of_prefix=named)
    return ReadTask(dump, dump.number, planned.chunk, range_, keys, dump.epoch, log_losses)


def note_orders(chunks: Iterable[FinishedChunk]) -> list[DumpState]:
    """Return the dumps that have a chunk in another order; record the first one's where none is known.

    There, a key may have moved from a range that is not read yet to one that was, and so be in none.
    """
    reordered: dict[str, DumpState] = {}
    for chunk in chunks:
        state = chunk.task.dump
        if chunk.order is not None and state.order not in (None, chunk.order):
            reordered[state.id] = state
        state.order = state.order or chunk.order
    for state in reordered.values():
        log.warning("dump %s of %s starts over: the order of its key has changed", state.id, state.table)
    return list(reordered.values())


def unused_id(request: str | None, part: int | None, dumps: Iterable[DumpState], last_number: int) -> str:
    """Return an unused dump id: files name their dump by it, so no two dumps may share one."""
    if request is None:
        return uuid.uuid4().hex[:12]
    used = {dump.id for dump in dumps}
    wanted = request if part is None else f"{request}.{part}"
    names = (wanted, *(f"{wanted}.{n}" for n in range(last_number, 0, -1)))
    return next((name for name in names if name not in used), uuid.uuid4().hex[:12])


def _tuple(key: list[str] | None) -> tuple[str, ...] | None:
    return tuple(key) if key is not None else None
