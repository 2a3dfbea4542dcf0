"""What a source forgets where its log begins anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.errors import TransientError
from connector.mysql import source
from connector.mysql.log.stream import UnreadableLogError
from connector.mysql.server import LogFile, Server
from connector.mysql.source import MysqlSource
from connector.mysql.state_table import RecordedFile
from connector.schema import TableName
from connector.source import ResumePoint


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> MysqlSource:
    """A source whose log ends at offset 900."""
    reading = MysqlSource(cast(Any, SimpleNamespace(name="shop")), {})
    server = Server(False, "9.0", 1, "u", False)
    monkeypatch.setattr(reading, "_checked", lambda: None)
    monkeypatch.setattr(reading, "_session", SimpleNamespace(server=server))
    monkeypatch.setattr(reading, "_executed_at", lambda *_: None)
    monkeypatch.setattr(reading, "_created", lambda *_, **__: 1)
    monkeypatch.setattr(source, "end_of_log", lambda *_: ("bin.000007", 900))
    return reading


def test_tables_of_prepared_transactions_are_forgotten_where_log_was_lost(reading: MysqlSource) -> None:
    """There, the same id may have been prepared again, with other tables, whose rows its commit changes."""
    reading._prepared["X'61',X'',1"] = {TableName("d", "t")}
    reading.begin_log(fresh=True)
    assert reading._prepared == {}


def test_no_log_begins_beyond_4_gib(reading: MysqlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset below, at which it would begin, is within an event: each attempt to read on was a gap."""
    monkeypatch.setattr(source, "end_of_log", lambda *_: ("bin.000007", 5 << 30))
    with pytest.raises(TransientError, match="next file"):
        reading.begin_log(fresh=True)


def test_a_file_whose_begin_can_not_be_read_twice_in_a_row_is_a_gap(
    reading: MysqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was created tells whether the log was reset meanwhile; the agent asked for it for ever."""

    def created(*_: object, **__: object) -> int:
        raise UnreadableLogError("error 1236")

    monkeypatch.setattr(reading, "_created", created)
    monkeypatch.setattr(reading._session, "get", lambda: None, raising=False)
    monkeypatch.setattr(source, "log_files", lambda _: {7: LogFile(7, "bin.000007", 900)})
    monkeypatch.setattr(reading._state_table, "recorded_file", lambda _: RecordedFile("u", 7, 1))
    point = ResumePoint((7 << 32) + 400)
    for _ in range(2):
        with pytest.raises(TransientError):
            reading.check_resumable(point)
        assert "error 1236" in str(reading.check_resumable(point))
