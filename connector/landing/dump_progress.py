"""Describes a dump's progress for people, from a manifest's state. Pure.

States are queued, running, paused, done, failed, cancelled. The share is relative to the source's estimate of
the table's rows, or to the given keys; for a predicate it is unknown. If the estimate is too low, the share
still does not reach 100 % before the dump is done. An active dump's `error` is why no chunk can be read now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from connector.landing.manifest import DumpState

State = Literal["queued", "running", "paused", "done", "failed", "cancelled"]

STATES: dict[str, State] = {
    "waiting": "queued",
    "running": "running",
    "complete": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}

NEARLY = 0.99
"""Greatest share shown of an unfinished dump."""


@dataclass(frozen=True)
class DumpProgress:
    """A dump's state and why; `share` (0 to 1), rows per second, and seconds left, each None if unknown."""

    state: State
    why: str | None = None
    share: float | None = None
    rows_per_second: float | None = None
    seconds_left: float | None = None


def progress_of(
    dump: DumpState, held_back: str | None = None, dumps: Sequence[DumpState] = ()
) -> DumpProgress:
    """Return a dump's progress; `held_back`: why the agent currently reads no chunks, if so.

    `dumps`: all dumps, oldest first; a full dump waits for the previous full dump of its table.
    """
    if not dump.active:
        share = 1.0 if dump.state == "complete" else _share(dump)
        return DumpProgress(STATES[dump.state], dump.error, share, _mean_rate(dump), None)
    if dump.paused:
        return DumpProgress("paused", None, _share(dump))
    if dump.xid_barrier is not None:
        return DumpProgress("queued", f"waiting for transactions with an xid below {dump.xid_barrier}")
    why = f"held back: {held_back}" if held_back else _waits_behind(dump, dumps) or dump.error
    rate = None if held_back else dump.rows_per_second
    return DumpProgress(STATES[dump.state], why, _share(dump), rate, _seconds_left(dump, rate))


def _waits_behind(dump: DumpState, dumps: Sequence[DumpState]) -> str | None:
    if (dump.kind, dump.state) != ("full", "waiting"):
        return None
    first = next((d for d in dumps if d.table == dump.table and d.kind == "full" and d.active), dump)
    paused = ", which is paused" if first.paused else ""
    return None if first.id == dump.id else f"behind dump {first.id}{paused}"


def _share(dump: DumpState) -> float | None:
    if not dump.rows_estimate or dump.kind == "where":
        return None
    return min(dump.rows / dump.rows_estimate, NEARLY)


def _seconds_left(dump: DumpState, rate: float | None) -> float | None:
    left = (dump.rows_estimate or 0) - dump.rows
    return round(left / rate, 1) if rate and left > 0 and dump.kind != "where" else None


def _mean_rate(dump: DumpState) -> float | None:
    if dump.started_at is None or dump.finished_at is None:
        return None
    seconds = (dump.finished_at - dump.started_at).total_seconds()
    return round(dump.rows / seconds, 1) if seconds > 0 else None
