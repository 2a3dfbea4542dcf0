"""Which transactions of a log may matter to captured tables, and whether they precede what has landed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, cast

import pymysql
import pytest

from connector.errors import TransientError
from connector.mysql import failover
from connector.mysql.codec.segment import TABLE_MAP
from connector.mysql.failover import why_diverged
from connector.mysql.gtid import MariadbGtids, MysqlGtids
from connector.mysql.log import events
from connector.mysql.log.packet import BASE, FLAGS, SIZE_IN_EVENT, TYPE
from connector.mysql.log.scan import begins, transactions
from connector.mysql.log.stream import BinlogStream, LogEndedError, UnreadableLogError
from connector.mysql.server import LogFile, Server
from connector.schema import TableName
from connector.source import ResumePoint
from tests.unit.mysql.log.test_buffer import Log, payload

PRIMARY, REPLICA = (f"{digit * 8}-0000-11ef-8000-000000000001" for digit in "ab")


class Scanned(Log):
    """A log file that is only scanned; as a stream it ends when all has been fetched."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        super().__init__(offset=4)

    def event(
        self, kind: int, body: bytes, *, flags: int = 0, end: int | None = None, tail: int = -1
    ) -> bytes:
        event = super().event(kind, body, flags=flags, end=end, tail=tail)
        size = self.tail if tail < 0 else tail
        plain = event[: len(event) - size]
        return plain + zlib.crc32(plain).to_bytes(4, "little")[:size]

    def damage(self, at: int, number: int = -1, bit: int = 64) -> None:
        """Change a bit of an event; of the last one by default."""
        event = bytearray(self.packets[number])
        event[at] ^= bit
        self.packets[number] = bytes(event)

    def frame(self, kind: int, body: bytes, tail: int = -1) -> None:
        self.packets.append(b"\0" + self.event(kind, body, flags=events.ARTIFICIAL, end=0, tail=tail))

    def write(self, kind: int, body: bytes = b"", flags: int = 0) -> None:
        self.packets.append(b"\0" + self.event(kind, body, flags=flags))
        self.offset += len(self.packets[-1]) - BASE

    def begin(self, uuid: str, number: int) -> None:
        self.write(events.GTID, b"\0" + bytes.fromhex(uuid.replace("-", "")) + number.to_bytes(8, "little"))

    def stream(self) -> BinlogStream:
        return cast(BinlogStream, self)

    def fetch(self, _seconds: float) -> list[bytes]:
        if not self.packets:
            raise LogEndedError
        fetched, self.packets = self.packets, []
        return fetched

    def close(self) -> None:
        pass


def captured(table: TableName) -> bool:
    return table.namespace == "d"


CHANGES: dict[str, tuple[Callable[[Log], object], bool]] = {
    "nothing": (lambda log: log.query("BEGIN"), False),
    "a captured table": (lambda log: log.rows(1), True),
    "another table": (lambda log: log.rows(1, table="other.t"), False),
    "our own table": (lambda log: log.rows(1, table="deltatide.watermark"), False),
    "another and a captured one": (lambda log: [log.rows(1, table="other.t"), log.rows(1)], True),
    "a statement": (lambda log: log.query("TRUNCATE t"), True),
    "an XA transaction": (lambda log: log.query("XA START X'00',X'',1"), True),
    "an incident": (lambda log: log.write(events.INCIDENT, bytes(3)), True),
    "an unknown event": (lambda log: log.write(99), True),
    "an unknown event to be ignored": (lambda log: log.write(99, flags=events.IGNORABLE), False),
    "a compressed transaction": (lambda log: log.write(events.TRANSACTION_PAYLOAD, payload(1)), True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_matters_may_change_captured_tables(what: str) -> None:
    change, matters = CHANGES[what]
    log = Scanned()
    for number in (1, 2):
        log.begin(PRIMARY, number)
        change(log)
        log.write(events.XID, bytes(8))
    log.write(events.STOP)
    found = transactions(log.stream(), captured, lambda begin: begin.gtid is None or begin.gtid.number == 2)
    assert [(begin.txid, it) for begin, it in found] == [(f"{PRIMARY}:1", True), (f"{PRIMARY}:2", matters)]


def executed(monkeypatch: pytest.MonkeyPatch, log: Scanned, upto: int) -> str | None:
    """What was executed up to an offset in a file that follows the primary's second transaction."""
    monkeypatch.setattr(failover, "BinlogStream", lambda *_: log)
    listed = b"", 0, b"Previous_gtids", 0, 0, f"{PRIMARY}:1-2".encode()
    monkeypatch.setattr(failover, "raw_rows", lambda *_: [listed])
    server, unused = Server(False, "9.0", 1, "u", False), cast(Any, None)
    return failover.executed_at(unused, server, unused, "bin.000007", upto)


@pytest.mark.parametrize("damaged", [None, 25, 40], ids=["nothing", "uuid", "number"])
def test_the_id_of_a_damaged_transaction_is_unknown(
    monkeypatch: pytest.MonkeyPatch, damaged: int | None
) -> None:
    """Where a gap begins in the file of a damaged event, dumps wait for the ids before it to be executed."""
    log = Scanned()
    log.begin(PRIMARY, 3)
    if damaged:
        log.damage(damaged)
    log.begin(PRIMARY, 4)
    assert executed(monkeypatch, log, log.offset) == (None if damaged else f"{PRIMARY}:1-4")


@pytest.mark.parametrize("at", [TYPE, 25])
def test_what_was_executed_is_unknown_if_the_list_of_what_was_before_the_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The server shows the list as it is. Dumps would wait for ids that nobody executed."""
    log = Scanned()
    log.write(events.PREVIOUS_GTIDS, bytes(60))
    log.damage(at)
    log.begin(PRIMARY, 3)
    assert executed(monkeypatch, log, log.offset) is None


def test_what_was_executed_is_unknown_if_the_server_can_not_read_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent would stop at a gap, with the advice to run a check, which finds nothing."""

    def fail(*_: object) -> None:
        raise pymysql.err.InternalError(1220, "Error when executing command SHOW BINLOG EVENTS: I/O error")

    monkeypatch.setattr(failover, "BinlogStream", lambda *_: Scanned())
    monkeypatch.setattr(failover, "raw_rows", fail)
    server, unused = Server(False, "9.0", 1, "u", False), cast(Any, None)
    assert failover.executed_at(unused, server, unused, "bin.000007", 900) is None


def test_another_servers_file_is_not_continued_with_if_the_list_at_its_start_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a list with too little, a later file would be chosen than what has landed ends in."""
    log = Scanned()
    log.write(events.PREVIOUS_GTIDS, bytes(60))
    log.damage(25)
    log.begin(PRIMARY, 9)
    file = LogFile(7, "bin.000007", 900)
    for name, found in (("has_gtids", True), ("why_unproven", None), ("first_file_after", file)):
        monkeypatch.setattr(failover, name, lambda *_, found=found: found)
    with pytest.raises(UnreadableLogError, match="start of the log file"):
        failover.continuation(
            cast(Any, None),
            Server(False, "9.0", 1, "u", False),
            {7: file},
            ResumePoint(900, gtids=f"{PRIMARY}:1-5"),
            missing_gtids=lambda _: "",
            open_file=lambda _: log.stream(),
            captured=captured,
        )


def test_what_is_ahead_of_a_position_must_be_known_to_read_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else, after a failover of MariaDB, what has landed would land again."""
    monkeypatch.setattr(failover, "row", lambda *_: ("0-1-2",))
    server, point = Server(True, "11.4", 1, "u", False), ResumePoint(900, gtids="0-1-5")
    with pytest.raises(TransientError, match="can't be read"):
        failover.gtids_at(
            cast(Any, None), server, point, "bin.000007", may_be_ahead=True, executed=lambda: None
        )


def test_begins_are_found_behind_an_event_that_is_damaged_in_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dumps would not wait for transactions whose ids were missed."""
    log = Scanned()
    log.begin(PRIMARY, 3)
    log.write(events.XID, bytes(8))
    log.damage(BASE + SIZE_IN_EVENT)
    log.begin(PRIMARY, 4)
    assert executed(monkeypatch, log, log.offset) == f"{PRIMARY}:1-4"


def test_begins_are_unknown_behind_an_event_that_the_server_has_cut_off_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a damaged size it takes what follows for a part of the event."""
    log = Scanned()
    log.begin(PRIMARY, 3)
    log.write(events.XID, bytes(8))
    log.begin(PRIMARY, 4)
    commit, begin = log.packets[-2:]
    log.packets[-2:] = [commit + begin[BASE:]]
    assert executed(monkeypatch, log, log.offset) is None


@pytest.mark.parametrize("kind", [events.XID, 31])
def test_no_transaction_behind_a_position_counts_as_executed_there_if_a_damaged_event_is_before_it(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """It would be passed over when the log is read from there. Or its length would miss for ever."""
    log = Scanned()
    log.begin(PRIMARY, 3)
    log.write(kind, bytes(100))
    log.damage(FLAGS, bit=events.ARTIFICIAL)
    log.begin(PRIMARY, 4)
    end = log.offset
    log.begin(PRIMARY, 5)
    log.write(events.XID, bytes(100))
    assert executed(monkeypatch, log, end) == f"{PRIMARY}:1-4"


def test_files_that_follow_are_scanned_from_their_own_begin() -> None:
    log = Scanned()
    log.begin(PRIMARY, 1)
    log.offset = 4
    log.write(events.FORMAT, bytes(57) + bytes([15]) * 40 + b"\1")
    log.begin(PRIMARY, 2)
    log.damage(25)
    assert [begin.txid for begin in begins(log.stream())] == [f"{PRIMARY}:1", None]


def test_log_that_can_not_be_read_leaves_unknown_what_was_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log goes on in the same file, behind what its disk lost."""

    def fetch(_seconds: float) -> list[bytes]:
        raise UnreadableLogError("error 1236")

    log = Scanned()
    monkeypatch.setattr(log, "fetch", fetch)
    assert executed(monkeypatch, log, 900) is None


@pytest.mark.parametrize(
    ("table", "at", "bit"),
    [
        ("other.t", 30, 64),  # the name of the table's database
        ("d.t", TYPE, TABLE_MAP ^ events.HEARTBEAT),
        ("d.t", FLAGS, events.IGNORABLE),
    ],
)
def test_what_a_damaged_event_changed_may_matter(table: str, at: int, bit: int) -> None:
    log = Scanned()
    log.begin(PRIMARY, 1)
    log.rows(1, table=table)
    log.damage(at, number=-2, bit=bit)
    ((_, matters),) = transactions(log.stream(), captured, lambda _: True)
    assert matters


def test_a_damaged_event_that_looks_like_the_begin_of_a_file_is_none() -> None:
    log = Scanned()
    log.begin(PRIMARY, 1)
    log.offset = 900
    log.write(events.FORMAT, bytes(9))  # too short to describe a format
    log.begin(PRIMARY, 2)
    assert [begin.txid for begin in begins(log.stream())] == [f"{PRIMARY}:1", f"{PRIMARY}:2"]


def test_a_compressed_transaction_of_other_tables_does_not_matter() -> None:
    log = Scanned()
    log.begin(PRIMARY, 1)
    log.write(events.TRANSACTION_PAYLOAD, payload(1))
    ((_, matters),) = transactions(log.stream(), lambda table: table.name != "t", lambda _: True)
    assert not matters


def divergence(log: str, landed: str, needed: str | None = None, before: str = "") -> str | None:
    """Compare a log with what has landed. ``p5``: the fifth transaction of the primary, ``r5``: a replica's.

    ``r5w``: one that writes only our own table.
    """

    def set_of(names: str) -> MysqlGtids:
        gtids = [f"{PRIMARY if name[0] == 'p' else REPLICA}:{name[1:]}" for name in names.split()]
        return MysqlGtids.parse(",".join(gtids))

    scanned = Scanned()
    for name in log.split():
        scanned.begin(PRIMARY if name[0] == "p" else REPLICA, int(name[1:].rstrip("w")))
        scanned.rows(1, table="deltatide.watermark" if name.endswith("w") else "d.t")
    everything = landed if needed is None else needed
    return why_diverged(set_of(before), set_of(landed), set_of(everything), scanned.stream, captured)


@pytest.mark.parametrize(
    ("log", "landed", "needed", "before"),
    [
        ("p1 p2 r1 p3", "p1 p2", None, ""),
        ("r1 p3", "p1 p2", None, "p1-2"),
        ("p1 r1 p2", "p1 p2", "p1", ""),  # p2 is ours, and at the end
        ("p1 r1w p2", "p1 p2", None, ""),  # r1 is ours, and was never read
        ("p1 p3 p2", "p1 p2", None, ""),  # a replica that commits in parallel
        ("p1 p3 p2 r1", "p1 p2 r1", "p1 p2", ""),
    ],
)
def test_what_follows_all_that_has_landed_or_does_not_matter_may_land(
    log: str, landed: str, needed: str | None, before: str
) -> None:
    assert divergence(log, landed, needed, before) is None


@pytest.mark.parametrize(
    ("log", "landed", "needed"),
    [
        ("p1 r1 p2", "p1 p2", None),
        ("p1 p2 r1", "p1 r1", None),  # the former primary's last one, which no replica got
        ("p1 r1 p2w p3", "p1 p2 p3", None),
        ("p1 r1 p2 p3w", "p1 p2 p3", "p1 p2"),
    ],
)
def test_what_precedes_something_that_has_landed_would_win_over_it(
    log: str, landed: str, needed: str | None
) -> None:
    found = divergence(log, landed, needed)
    assert found is not None
    assert "never read" in found


def test_a_log_without_what_has_landed_proves_nothing() -> None:
    found = divergence("p1 p3", "p1 p2")
    assert found is not None
    assert "lacks" in found


def mariadb_divergence(log: str, landed: str, before: str = "") -> str | None:
    """Compare a log with what has landed. ``7-5``: the fifth transaction of server 9 in domain 7."""

    def set_of(names: str) -> MariadbGtids:
        return MariadbGtids.parse(names.replace("-", "-9-"))

    scanned = Scanned()
    for name in log.split():
        domain, number = map(int, name.split("-"))
        scanned.write(events.MARIADB_GTID, struct.pack("<QIBxxxxxx", number, domain, 0))
        scanned.rows(1)
    return why_diverged(set_of(before), set_of(landed), set_of(landed), scanned.stream, captured)


@pytest.mark.parametrize(
    ("log", "landed", "before"),
    [
        ("0-1 7-1 7-2 0-2", "0-2,7-1", ""),  # a replica that commits in parallel
        ("0-1 0-2 7-1", "0-2", ""),  # a new domain
        ("0-2 0-3", "0-2;7-6", "0-1,7-6"),
        ("0-2 0-3", "0-2;7-6", "0-1"),
    ],
)
def test_in_mariadb_what_is_later_or_of_another_domain_may_land(log: str, landed: str, before: str) -> None:
    assert mariadb_divergence(log, landed, before) is None


@pytest.mark.parametrize(
    ("log", "landed", "before", "reason"),
    [
        ("7-1 0-1 0-2", "0-2", "", "never read"),  # deleted before the landing zone began
        ("7-1 0-1 0-2", "0-2;7-1", "", "deleted"),  # deleted later
        ("0-1 0-2 7-1", "0-2;7-1", "", "deleted"),  # not the one that landed
        ("0-2 7-1", "0-2;7-6", "0-1,7-6", "deleted"),
        ("0-1 7-1 7-2 7-1 0-2", "0-2,7-1", "", "deleted"),  # used again before the landing zone began
        ("0-1 7-1 7-2 0-2 0-3 7-1", "0-2,7-1", "", "deleted"),
        ("0-2 7-1", "0-2,7-6;7-8", "0-1", "deleted"),
    ],
)
def test_in_mariadb_what_may_be_from_before_its_domain_was_deleted_is_not_merely_reordered(
    log: str, landed: str, before: str, reason: str
) -> None:
    assert reason in str(mariadb_divergence(log, landed, before))
