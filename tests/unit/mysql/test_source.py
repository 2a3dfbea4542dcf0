"""What a source forgets where its log begins anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.mysql import source
from connector.mysql.server import Server
from connector.mysql.source import MysqlSource
from connector.schema import TableName


def test_tables_of_prepared_transactions_are_forgotten_where_log_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There, the same id may have been prepared again, with other tables, whose rows its commit changes."""
    reading = MysqlSource(cast(Any, SimpleNamespace(name="shop")), {})
    server = Server(False, "9.0", 1, "u", False)
    monkeypatch.setattr(reading, "_checked", lambda: None)
    monkeypatch.setattr(reading, "_session", SimpleNamespace(server=server))
    monkeypatch.setattr(reading, "_executed_at", lambda *_: None)
    monkeypatch.setattr(reading, "_created", lambda *_: 1)
    monkeypatch.setattr(source, "end_of_log", lambda *_: ("bin.000007", 900))
    reading._prepared["X'61',X'',1"] = {TableName("d", "t")}
    reading.begin_log(fresh=True)
    assert reading._prepared == {}
