"""A table's history by a direct reading of the rules: the versions of one key, one event after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from connector.position import Position
from tests.support.landing.histories import VALUES, Known, carried
from tests.support.landing.landed import Event

Columns = dict[str, tuple[Any, str | None]]


@dataclass(frozen=True)
class Version:
    """A version; `since`, `until` are positions, with whether a log event at each was seen."""

    since: Position
    began: bool
    columns: Columns
    until: Position | None = None
    ended: bool | None = None

    @property
    def known(self) -> Known:
        return Known(self.columns)


@dataclass(frozen=True)
class Read:
    """A chunk event with the chunk's high watermark; or what a full dump that has ended tells of a key."""

    event: Event
    high: int


def versions(
    log: Iterable[Event],
    reads: Iterable[Read],
    gaps: Collection[Position] = (),
    base: Version | None = None,
) -> list[Version]:
    """Return a key's versions by its log events (truncates among them) and what dumps have read of it.

    `gaps`: nothing is known across them. `base`: the version that was open before all of these events.
    """
    logged = {event.position: event for event in log}
    read = {r.event.position: r for r in reads}
    found: list[Version] = [base] if base else []
    for position in sorted({*logged, *read}):
        current = found[-1] if found and found[-1].until is None else None
        cut_off = current is not None and crosses(current.since, position, gaps)
        known = current.columns if current and not cut_off else {}
        event = logged.get(position)
        if event is not None:
            old = known if event.op == "update" and event.unchanged else {}
            gone, seen = event.op in ("delete", "truncate"), event.op != "insert"
            columns = {} if gone else {**old, **carried(event)}
        else:
            columns_read = known_at_low(read[position], logged.values())
            if columns_read is None:
                continue
            seen, gone = False, read[position].event.op == "delete"
            columns = {**known, **columns_read}
            if current and not gone and not cut_off and columns == current.columns:
                continue
        if current:
            found[-1] = replace(current, until=position, ended=seen and not cut_off)
        if not gone:
            found.append(Version(position, event is not None, columns))
    return found


def crosses(since: Position, position: Position, gaps: Collection[Position]) -> bool:
    """Return whether log was lost between two positions."""
    return any(since < gap <= position for gap in gaps)


def known_at_low(read: Read, logged: Iterable[Event]) -> Columns | None:
    """Return what was true of a row at the chunk's low watermark already; None if nothing is known of it."""
    event = read.event
    within = [e for e in logged if e.epoch == event.epoch and event.lsn < e.lsn < read.high]
    if within and (event.op == "delete" or any(e.op != "update" or not e.unchanged for e in within)):
        return None
    constant = set(VALUES).intersection(*(e.unchanged for e in within)) if within else set(VALUES)
    known = {name: value for name, value in carried(event).items() if name in constant}
    return known if known or not within else None
