"""What `DumpQueue` hands out to dump workers, and what they hand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connector.landing.manifest import DumpState, LandedFile
from connector.schema import TableSchema
from connector.source import KeyRange


@dataclass(frozen=True)
class PlanTask:
    """Find the upper key of the next chunk."""

    dump: DumpState
    after: tuple[str, ...] | None
    epoch: int


@dataclass(frozen=True)
class ReadTask:
    """Read one planned chunk; `keys` are the given ones, for a dump of keys.

    `log_losses`: how often the log had been lost when the task was handed out.
    """

    dump: DumpState
    chunk: int
    range: KeyRange
    keys: Sequence[Sequence[str]] | None
    epoch: int
    log_losses: int = 0


@dataclass(frozen=True)
class FinishedChunk:
    """A chunk that was read and is in the store; `file` is None if its range held no rows."""

    task: ReadTask
    low: int
    high: int
    rows: int
    schema: TableSchema
    file: LandedFile | None
