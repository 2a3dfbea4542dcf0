"""The log reader over a stream made by hand: when a log that does not go on is given up."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from connector.errors import TransientError
from connector.mysql.gtid import MysqlGtids
from connector.mysql.log import events, reader
from connector.mysql.log.reader import MysqlLogReader
from connector.mysql.log.stream import UnreadableLogError
from connector.mysql.server import Server
from connector.mysql.state_table import StateTable
from tests.unit.mysql.log.test_buffer import Log


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "descriptor_of", lambda _: 0)
    monkeypatch.setattr(reader, "answered", lambda *_: nullcontext())
    monkeypatch.setattr(reader, "engine_lsn", lambda _: None)


class Stream:
    """Returns what it is told to, at each call."""

    def __init__(self) -> None:
        self.received = 0
        self.next: list[bytes] = []

    def fetch(self, seconds: float) -> list[bytes]:
        packets, self.next = self.next, []
        self.received += sum(map(len, packets))
        return packets


def test_a_long_transaction_of_tables_that_are_not_captured_is_no_log_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is held of it, and the position is where it begins, until it ends."""
    now, log, stream = [0.0], Log(), Stream()
    log.gtid()
    log.query("BEGIN")
    monkeypatch.setattr(reader, "end_of_log", lambda *_: ("bin.000009", 4))
    monkeypatch.setattr(reader, "log_files", lambda *_: {})
    monkeypatch.setattr(reader.time, "monotonic", lambda: now[0])
    server = Server(False, "9.0", 1, "u", False)
    reading = MysqlLogReader(
        1, log.buffer, cast(Any, stream), cast(Any, None), server, WrittenTable(), writable=True
    )
    for _ in range(4):
        now[0] += reader.STALL_SECONDS / 2
        mapped, _ = log.rows(1, table="other.t", write=False)
        log.write(19, mapped)
        body = mapped[:6] + bytes(reader.STALL_BYTES)
        wide = log.event(23, body)
        log.offset += len(wide)
        stream.next = [b"\0" + wide]
        reading.read(0, 1 << 20)
    assert reading.buffered_bytes == 0
    now[0] += reader.STALL_SECONDS + 1
    stream.next = [b"\0" + log.event(events.HEARTBEAT, b"bin.000007", flags=events.ARTIFICIAL, end=0)]
    with pytest.raises(TransientError, match="nothing arrives"):
        reading.read(0, 1 << 20)


def test_what_precedes_log_that_can_not_be_read_lands_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log from the last manifest on is a gap then: tables without a key lost rows that had been read.

    So they did where a flush, or an outage of the store, takes longer than a minute, and where anything else
    had the log reopened meanwhile.
    """
    now, log, stream = [0.0], Log(), Stream()
    monkeypatch.setattr(reader, "end_of_log", lambda *_: ("bin.000007", log.offset))
    monkeypatch.setattr(reader.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reader.time, "sleep", lambda _: None)
    server, none = Server(True, "11.4", 1, "u", False), cast(Any, None)
    reading = MysqlLogReader(1, log.buffer, cast(Any, stream), none, server, WrittenTable(), writable=True)

    def fail(_seconds: float) -> list[bytes]:
        raise UnreadableLogError("error 1236")

    stream.fetch = fail  # type: ignore[method-assign]
    log.transaction(1)
    end = log.end
    reading.read(0, 1 << 20)
    assert reading.take().position == end
    reading.read(0, 1 << 20)
    reading.confirm(end)
    with pytest.raises(UnreadableLogError):
        reading.read(0, 1 << 20)
    assert reading.unreadable_at == end
    reading = MysqlLogReader(1, log.buffer, cast(Any, stream), none, server, WrittenTable(), writable=True)
    log.transaction(2)
    monkeypatch.setattr(reader, "end_of_log", lambda *_: ("bin.000007", log.offset + 1000))
    for seconds in (0, 600, 600):  # until a flush is due
        now[0] += seconds
        reading.read(0, 1 << 20)
    reading.take()
    for seconds in (0, 600, 600):  # until it has landed
        now[0] += seconds
        reading.read(0, 1 << 20)
    assert reading.unreadable_at is None
    reading.confirm(log.end)
    with pytest.raises(UnreadableLogError):
        reading.read(0, 1 << 20)
    assert reading.unreadable_at == log.end


def test_a_table_that_others_keep_locked_is_waited_for_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reopened, the log before it would be read again each time, and dumps begin again."""
    now, log, stream = [0.0], Log(), Stream()
    monkeypatch.setattr(reader, "end_of_log", lambda *_: ("bin.000009", 4))
    monkeypatch.setattr(reader, "log_files", lambda *_: {})
    monkeypatch.setattr(reader.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reader.time, "sleep", lambda _: None)
    server, none = Server(True, "11.4", 1, "u", False), cast(Any, None)
    reading = MysqlLogReader(1, log.buffer, cast(Any, stream), none, server, WrittenTable(), writable=True)
    tries = 0

    def try_again(_packets: list[bytes]) -> None:
        nonlocal tries
        tries += 1
        log.buffer.locked = "d.t is locked" if tries < 9 else None

    monkeypatch.setattr(log.buffer, "feed", try_again)
    log.buffer.locked = "d.t is locked"
    for _ in range(8):
        now[0] += reader.STALL_SECONDS / 2
        reading.read(0.2, 1 << 20)
    assert tries == 8
    reading.read(0, 1 << 20)
    assert log.buffer.locked is None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("has_gtids", [False, True])
def test_the_log_is_opened_again_in_its_next_file_if_that_tells_what_was_executed(
    monkeypatch: pytest.MonkeyPatch, *, has_gtids: bool, known: bool
) -> None:
    """Behind a damaged begin it is unknown; dumps of a read-only server would wait for that for ever."""
    asked = 0

    def ask(*_: object) -> bool:
        nonlocal asked
        asked += 1
        return has_gtids

    monkeypatch.setattr(reader, "has_gtids", ask)
    log = Log(gtids=MysqlGtids() if known else None)
    none, server = cast(Any, None), Server(False, "9.0", 1, "u", False)
    reading = MysqlLogReader(1, log.buffer, cast(Any, Stream()), none, server, none, writable=False)
    reading.confirm(log.end)
    log.restart()
    with pytest.raises(TransientError, match="file 8") if has_gtids and not known else nullcontext():
        reading.confirm(log.end)
    reading.confirm(log.end)
    assert asked == (not known)


class WrittenTable(StateTable):
    """Says whether it may be written; remembers what was."""

    def __init__(self) -> None:
        super().__init__("shop")
        self.writable, self.written = True, list[str]()

    def is_writable(self, connection: Any, was: bool | None = None) -> bool:
        return self.writable

    def record_file(self, connection: Any, file: Any) -> bool:
        self.written.append(f"file {file.file}")
        return len(self.written) > 1


def test_a_server_that_becomes_a_replica_is_written_no_more_until_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, stream, state_table = Log(), Stream(), WrittenTable()
    monkeypatch.setattr(reader, "end_of_log", lambda *_: ("bin.000007", log.offset))
    monkeypatch.setattr(reader, "POLL_SECONDS", -1)
    monkeypatch.setattr(reader, "ensure_logging", lambda *_: None)
    server = Server(False, "9.0", 1, "u", False)
    none = cast(Any, None)
    reading = MysqlLogReader(1, log.buffer, cast(Any, stream), none, server, state_table, writable=True)
    state_table.writable = False
    reading.read(0, 1 << 20)
    log.buffer._files.created = 1
    reading._recorded_file = 6  # the log goes on in the next file
    reading.read(0, 1 << 20)
    assert state_table.written == []
    state_table.writable = True
    for _ in range(3):
        reading.read(0, 1 << 20)
    assert state_table.written == ["file 7", "file 7"]  # tried again: others had locked it
    assert reading.progress.writable
