"""Partitions that came or went on PostgreSQL 14, which goes on with their rows as it did before.

Before release 15, the server process that sends the log decides at the first change of a table whether to
publish its rows, and as whose. If it becomes a partition afterward, its rows stay unpublished; if it is
detached, they go on as its root's. Only a process that begins to send the log after that decides anew.

Invariant: a fingerprint that shows other partitions than the known one is handed over only when the log is
about to be opened at or after the position of a check that showed just these. What was left out until then,
or came under a wrong name, precedes the check that hands it over, so the dump that this leads to repairs it.
So partitions that a check saw before the slot was created need no log opened anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from connector.postgres.catalog_fingerprint import parts_changed, relations_of
from connector.schema import TableName
from connector.source import CatalogSnapshot

DECIDES_ANEW = 150000
"""The first version whose process decides anew once a table has changed."""


class _Seen(NamedTuple):
    """A fingerprint with other partitions than the known one, and where the log was when they were seen."""

    fingerprint: str
    position: int


class MovedPartitions:
    """The tables whose partitions differ from what is known, and what was seen of these at what position.

    Of each table, the first and the last partitions that were seen: if they change at each check, the first
    are acted on nevertheless, and the others after that.
    `opens_at`: where the log is about to be opened; None: it is open.
    """

    def __init__(self) -> None:
        self.opens_at: int | None = None
        self._seen: dict[TableName, list[_Seen]] = {}

    def hold_back(
        self, found: CatalogSnapshot, known: Mapping[TableName, str], read_upto: int
    ) -> CatalogSnapshot:
        """Return a check without the changes of partitions on which it is too early to act.

        While the log is open, known tables of which such a change has been read are `unprepared`: it is
        opened anew for them. Tables that are not known are handed over without their partitions, which makes
        these a change for later checks.
        """
        opens_at = self.opens_at
        moved = {t: now for t, now in found.tables.items() if parts_changed(known.get(t, ""), now)}
        self._seen = {
            t: _noted(self._seen.get(t, ()), known.get(t, ""), _Seen(now, found.position))
            for t, now in moved.items()
        }
        upto = read_upto if opens_at is None else opens_at
        read = {table: [each for each in seen if each.position <= upto] for table, seen in self._seen.items()}
        due = {t: _with_parts_of(seen[-1].fingerprint, moved[t]) for t, seen in read.items() if seen}
        tables = {table: now for table, now in found.tables.items() if table not in moved}
        tables |= {table: _with_parts_of("", now) for table, now in moved.items() if table not in known} | due
        reopening = due.keys() & known.keys() if opens_at is None else frozenset[TableName]()
        return replace(found, tables=tables, unprepared=found.unprepared | reopening)


def _noted(seen: Iterable[_Seen], known: str, now: _Seen) -> list[_Seen]:
    """Return the first and the last that were seen since what is known; a crash may have taken log back."""
    whole, since = relations_of(now.fingerprint).whole, list[_Seen]()
    for each in seen:
        is_now = not parts_changed(each.fingerprint, now.fingerprint)
        is_known = {*_parts(each.fingerprint)} <= {*_parts(known)}  # which may have marks of the log, too
        if relations_of(each.fingerprint).whole != whole or (is_known and not is_now):
            since = []
        else:
            since.append(each._replace(position=min(each.position, now.position)))
    if since and not parts_changed(since[-1].fingerprint, now.fingerprint):
        now = now._replace(position=since.pop().position)
    return [*since[:1], now]


def _with_parts_of(earlier: str, now: str) -> str:
    """Return a fingerprint with the partitions that an earlier one of the same table shows."""
    return " ".join([*(word for word in now.split(" ") if ":" not in word), *_parts(earlier)])


def _parts(fingerprint: str) -> list[str]:
    return [word for word in fingerprint.split(" ") if ":" in word]
