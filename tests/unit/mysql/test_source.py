"""What a source forgets where its log begins anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.errors import TransientError
from connector.mysql import source
from connector.mysql.server import Server
from connector.mysql.source import MysqlSource
from connector.schema import TableName


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
