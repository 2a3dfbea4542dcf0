"""Global transaction ids and sets of them, in both servers' dialects. Pure.

MySQL: ``uuid:5`` or ``uuid:tag:5``, and a set is ``uuid:1-100:105:tag:1-3,uuid2:...``. Each transaction has
its own id, so a set shows exactly which are in it.

MariaDB: ``domain-server-sequence``. A GTID position is ``0-1-100,7-3-20``, the last transaction of each
domain, and proves nothing: a server may have executed more before it, or less. So a set is what the server
calls its binlog state, ``0-2-90,0-1-100,7-3-20``: the last transaction of each server in each domain. Only
the numbers that one server assigns in one domain are compared: those grow.

A deleted domain (DELETE_DOMAIN_ID) restarts its count, and replicas do not learn of it: their logs still have
what it had. So what landed of it is kept separately, as retired, behind a semicolon: ``0-1-100;7-3-20``. It
counts only when another server's log is compared. There, a number of a retired writer may be that of the
transaction that landed or of a later one. It is certain that no later one has been passed only after a file
that lists exactly the retired number, and before something that has landed.

Our own writes (`connector.mysql.state_table`) are transactions too, and a server that takes over may lack
them. So both classes remember, for each uuid, or server in a domain, that ends in such writes, the state
before them. That is what a server is `needed` to have, since executing the rest or not makes no difference to
any captured table. The next transaction of anybody else there ends this: the tail is short, and never a hole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from connector.errors import BugError


class Gtid(NamedTuple):
    """One transaction's id. `origin`: MySQL's uuid, with a tag after a colon; MariaDB's domain.

    `server`: MariaDB's server id; None in MySQL.
    """

    origin: str
    number: int
    server: int | None = None

    def __str__(self) -> str:
        if self.server is None:
            return f"{self.origin}:{self.number}"
        return f"{self.origin}-{self.server}-{self.number}"

    def may_be_reordered_with(self, other: Gtid) -> bool:
        """Return whether a different order in another log proves that they are independent.

        Both were executed first on one server, in MariaDB in different domains: then a replica that commits
        in parallel has reordered them.
        """
        if self.server is None:
            return self.origin.partition(":")[0] == other.origin.partition(":")[0]
        return self.server == other.server and self.origin != other.origin


class MysqlGtids:
    """The executed transactions, as intervals; an added one usually extends the last."""

    def __init__(self, intervals: Mapping[str, list[list[int]]] | None = None) -> None:
        self._intervals = dict(intervals or {})
        self._before_ours: dict[str, list[list[int]]] = {}

    @classmethod
    def parse(cls, text: str, needed: str | None = None) -> MysqlGtids:
        """Parse a set in the server's format, and what is needed of it; `BugError` for anything else."""
        gtids = cls()
        for part in "".join(text.split()).lower().split(","):
            uuid, *rest = part.split(":")
            if part and not _UUID.fullmatch(uuid):
                raise BugError(f"{text[:200]!r} is not a GTID set")
            origin = uuid
            for piece in rest:
                if _TAG.fullmatch(piece):
                    origin = f"{uuid}:{piece}"
                elif found := _INTERVAL.fullmatch(piece):
                    gtids._add_interval(origin, int(found[1]), int(found[2] or found[1]))
                else:
                    raise BugError(f"{text[:200]!r} is not a GTID set")
        if needed is not None:
            before = cls.parse(needed)._intervals
            origins = [o for o, intervals in gtids._intervals.items() if before.get(o) != intervals]
            gtids._before_ours = {origin: before.get(origin, []) for origin in origins}
        return gtids

    def __str__(self) -> str:
        """Format it as the server does: uuids and tags in order, adjacent intervals joined."""
        return _format(self._intervals)

    @property
    def needed(self) -> str | None:
        """Return the set without our own writes at its end; None if there are none."""
        return _format({**self._intervals, **self._before_ours}) if self._before_ours else None

    def includes(self, gtid: Gtid) -> bool:
        """Return whether a transaction is in the set."""
        intervals = self._intervals.get(gtid.origin)
        if not intervals or gtid.number > intervals[-1][1]:
            return False
        index = bisect_right(intervals, gtid.number, key=_first) - 1
        return index >= 0 and gtid.number <= intervals[index][1]

    retired = False  # each transaction has its own id

    def knows(self, gtid: Gtid) -> bool:
        """Return True: what the set lacks of a transaction's origin has never landed."""
        return True

    def why_ambiguous(self, gtid: Gtid, seen: MysqlGtids) -> str | None:
        """Return None: a transaction with this id in another server's log is always the same one."""
        return None

    def why_not_after(self, listed: MysqlGtids, needed: MysqlGtids) -> str | None:
        """Return why some of what another server's file lists before it has not landed; None if all has."""
        return None if self.contains(listed) else _purged(str(listed))

    def holds(self, gtid: Gtid) -> bool:
        """Return whether the next transaction in the log is already held."""
        return self.includes(gtid)

    def add(self, gtid: Gtid, *, ours: bool = False) -> None:
        """Add a transaction to the set; `ours`: no server needs it."""
        if self.holds(gtid):
            return
        intervals = self._intervals.get(gtid.origin)
        if not ours:
            self._before_ours.pop(gtid.origin, None)
        elif gtid.origin not in self._before_ours:
            self._before_ours[gtid.origin] = [list(interval) for interval in intervals or ()]
        if intervals and intervals[-1][1] + 1 == gtid.number:
            intervals[-1][1] = gtid.number
        else:
            self._add_interval(gtid.origin, gtid.number, gtid.number)

    def contains(self, other: MysqlGtids) -> bool:
        """Return whether another set is a subset of this one."""
        return all(
            self._holds_interval(origin, first, last)
            for origin, intervals in other._intervals.items()
            for first, last in intervals
        )

    def _holds_interval(self, origin: str, first: int, last: int) -> bool:
        intervals = self._intervals.get(origin, [])
        index = bisect_right(intervals, first, key=_first) - 1
        return index >= 0 and last <= intervals[index][1]

    def _add_interval(self, origin: str, first: int, last: int) -> None:
        """Add an interval, joined with those it touches."""
        intervals = self._intervals.setdefault(origin, [])
        start = bisect_right(intervals, first, key=_first)
        if start and intervals[start - 1][1] + 1 >= first:
            start -= 1
            first = intervals[start][0]
        end = start
        while end < len(intervals) and intervals[end][0] <= last + 1:
            last = max(last, intervals[end][1])
            end += 1
        intervals[start:end] = [[first, last]]


Writer = tuple[str, int]
"""In MariaDB: a domain, and a server that assigns numbers in it."""


class MariadbGtids:
    """The last number that each server assigned in each domain: the numbers of one `Writer` grow.

    `here`: the same at the position the log is read from, if that may be earlier: what a writer assigned
    after that, up to its last number in this set, is already held when it is read. `retired`: for writers
    whose numbers restarted, or are no longer listed, the last one before.
    """

    def __init__(
        self,
        last: Mapping[Writer, int],
        here: MariadbGtids | None = None,
        needed: MariadbGtids | None = None,
        retired: Mapping[Writer, int] | None = None,
    ) -> None:
        self._last = dict(last)  # of each domain, the writer of its last transaction comes last
        self._retired = dict(retired or {})
        before = self._last if needed is None else needed._last
        self._before_ours = {w: before.get(w, 0) for w, n in self._last.items() if before.get(w) != n}
        known = self._last if here is None else here._last
        self._ahead = {w: n for w, n in self._last.items() if known.get(w) != n}
        for writer, number in self._ahead.items():
            if known.get(writer, 0) > number:
                begin, landed = _of(writer, known[writer]), _of(writer, number)
                raise BugError(f"the log begins at {begin}, after {landed}, which has landed")

    @classmethod
    def parse(cls, text: str, here: str | None = None, needed: str | None = None) -> MariadbGtids:
        """Parse the server's format, and what is needed of it; `BugError` for anything else."""
        last, _, retired = "".join(text.split()).partition(";")
        before, must = (None if part is None else cls.parse(part) for part in (here, needed))
        return cls(_parse_list(last), before, must, _parse_list(retired))

    def __str__(self) -> str:
        """Format it as the server does in `gtid_binlog_state`: in each domain, the last one last."""
        retired = _format_list(self._retired)
        return f"{_format_list(self._last)};{retired}" if retired else _format_list(self._last)

    @property
    def retired(self) -> bool:
        """Return whether some writers may have used a number twice."""
        return bool(self._retired)

    @property
    def ends(self) -> dict[str, Gtid]:
        """Return each domain's last transaction."""
        return {writer[0]: _of(writer, number) for writer, number in self._last.items()}

    @property
    def needed(self) -> str | None:
        """Return the set without our own writes at its end; None if there are none."""
        if not self._before_ours:
            return None
        return str(MariadbGtids({w: n for w, n in {**self._last, **self._before_ours}.items() if n}))

    def includes(self, gtid: Gtid) -> bool:
        """Return whether a transaction is in the set."""
        return gtid.number <= self._last.get(_writer_of(gtid), 0)

    def knows(self, gtid: Gtid) -> bool:
        """Return whether the set has anything of a transaction's writer; otherwise, that may be retired."""
        return _writer_of(gtid) in self._last

    def why_ambiguous(self, gtid: Gtid, seen: MariadbGtids) -> str | None:
        """Return why the next transaction in another server's log may not be the one with this id here.

        `seen`: what precedes it there; the transaction is added to it.
        """
        writer = _writer_of(gtid)
        before = seen._last.get(writer, 0)
        if writer in self._retired:
            return f"its log has {gtid}, of a deleted domain: it may be a later one than has landed"
        if gtid.number <= before:
            return f"its log has {gtid} after {_of(writer, before)}: the domain had been deleted"
        seen.add(gtid)
        return None

    def why_not_after(self, listed: MariadbGtids, needed: MariadbGtids) -> str | None:
        """Return why some of what another server's file lists before it has not landed; None if all has.

        `needed`: the part of this set that the server must have executed.
        """
        if unread := listed.without(self):
            return _purged(",".join(map(str, unread)))
        retired = {w: n for w, n in listed._last.items() if w in self._retired}
        if retired and (listed.contains(needed) or retired.keys() & self._last.keys()):
            listed_there = _format_list(retired)
            return f"its log begins after {listed_there}, of a deleted domain: maybe a later one than landed"
        return None

    def contains(self, other: MariadbGtids) -> bool:
        """Return whether another set is a subset of this one."""
        return not other.without(self)

    def without(self, other: MariadbGtids) -> list[Gtid]:
        """Return each writer's last transaction in this set, where the other does not include it."""
        return [
            _of(writer, n)
            for writer, n in self._last.items()
            if other._last.get(writer, 0) < n and other._retired.get(writer) != n
        ]

    def common(self, other: MariadbGtids) -> MariadbGtids:
        """Return what is in both sets, with what is retired."""
        both = {writer: min(n, other._last.get(writer, 0)) for writer, n in self._last.items()}
        return MariadbGtids({writer: n for writer, n in both.items() if n}, retired=self._retired)

    def holds(self, gtid: Gtid) -> bool:
        """Return whether the next transaction in the log is already held."""
        return gtid.number <= self._ahead.get(_writer_of(gtid), 0)

    def add(self, gtid: Gtid, *, ours: bool = False) -> None:
        """Advance past the next transaction in the log; `ours`: no server needs it.

        `BugError` if one that has landed should have come before it. Only ours may be missing: some replicas
        ignore them.
        """
        writer = _writer_of(gtid)
        ahead = self._ahead.get(writer, 0)
        if ahead < gtid.number:
            if ahead and writer not in self._before_ours:
                raise BugError(f"the log has {gtid} but lacks {_of(writer, ahead)}, which has landed")
            self._take(writer, gtid.number, ours=ours)
        if ahead <= gtid.number:
            self._ahead.pop(writer, None)

    def _take(self, writer: Writer, number: int, *, ours: bool) -> None:
        if number <= self._last.get(writer, 0):
            self._retire(writer)
        before = self._last.pop(writer, 0)
        if not ours:
            self._before_ours.pop(writer, None)
        else:
            self._before_ours.setdefault(writer, before)
        self._last[writer] = number

    def begin_file(self, listed: MariadbGtids) -> None:
        """Adopt the list at the start of a log file, except for what the log is still to reach.

        A domain that the server has deleted is no longer listed: its numbers restart. A server that took over
        may still list it.
        """
        for writer in self._last.keys() - listed._last.keys() - self._ahead.keys():
            self._retire(writer)
        for writer, number in listed._last.items():
            if writer not in self._last and self._retired.get(writer) == number:
                del self._retired[writer]
        self._last = listed._last | {writer: self._last[writer] for writer in self._ahead}

    def _retire(self, writer: Writer) -> None:
        """Keep a writer's last number separately, as its numbers restart."""
        self._retired[writer] = max(self._last.pop(writer), self._retired.get(writer, 0))
        self._before_ours.pop(writer, None)


def _of(writer: Writer, number: int) -> Gtid:
    return Gtid(writer[0], number, writer[1])


def _writer_of(gtid: Gtid) -> Writer:
    return gtid.origin, gtid.server or 0


def _parse_list(text: str) -> dict[Writer, int]:
    last: dict[Writer, int] = {}
    for part in text.split(","):
        found = _MARIADB.fullmatch(part)
        if part and not found:
            raise BugError(f"{text[:200]!r} is not a GTID list")
        if found:
            last[found[1], int(found[2])] = int(found[3])
    return last


def _format_list(last: Mapping[Writer, int]) -> str:
    return ",".join(str(_of(writer, number)) for writer, number in sorted(last.items(), key=_domain))


def _purged(gtids: str) -> str:
    return f"it has purged its log of some of {gtids}, which was never read"


def _domain(item: tuple[Writer, int]) -> int:
    return int(item[0][0])


Gtids = MysqlGtids | MariadbGtids
"""What the log reader keeps. Neither is thread-safe."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")


def _first(interval: list[int]) -> int:
    return interval[0]


def _format(sets: Mapping[str, list[list[int]]]) -> str:
    parts: dict[str, list[str]] = {}
    for origin in sorted(origin for origin, intervals in sets.items() if intervals):
        uuid, _, tag = origin.partition(":")
        formatted = [f"{a}-{b}" if a < b else f"{a}" for a, b in sets[origin]]
        parts.setdefault(uuid, [uuid]).extend([tag, *formatted] if tag else formatted)
    return ",".join(":".join(part) for part in parts.values())
