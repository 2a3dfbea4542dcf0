"""A server whose binary log can't be read by position."""

from __future__ import annotations

from typing import Any

import pytest

from connector.errors import LogFilteredError, LogInEngineError, LogMiscomputedError, LogOffError
from connector.mysql import server
from connector.mysql.server import Server, ensure_logging, find_server, log_files

SERVER = Server(True, "12.3.1-MariaDB", 1, "u", False)
ON = {"log_bin": "ON", "binlog_storage_engine": "", "log_slave_updates": "ON"}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a server that has a replication channel."""
    settings = dict(ON)

    def rows(_connection: Any, query: str) -> list[tuple[Any, ...]]:
        if query.startswith("SHOW GLOBAL VARIABLES"):
            return [(name, value) for name, value in settings.items() if f"'{name}'" in query]
        return [("binlog-000000.ibb", 1 << 30)]

    monkeypatch.setattr(server, "rows", rows)
    monkeypatch.setattr(server, "_log_status", lambda *_: ("bin.000001", 4, "", ""))
    monkeypatch.setattr(server, "is_replica", lambda _: True)
    return settings


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("log_bin", "OFF", LogOffError),
        ("binlog_storage_engine", "innodb", LogInEngineError),
        ("log_slave_updates", "OFF", LogFilteredError),
        ("log_replica_updates", "OFF", LogFilteredError),
        ("slave_run_triggers_for_rbr", "YES", LogMiscomputedError),
    ],
)
def test_a_server_whose_changes_are_not_in_log_files_is_refused(
    settings: dict[str, str], name: str, value: str, error: type[LogOffError]
) -> None:
    connection: Any = None
    ensure_logging(connection, SERVER)
    settings[name] = value
    with pytest.raises(LogOffError) as refused:
        ensure_logging(connection, SERVER)
    assert type(refused.value) is error
    assert refused.value.hint is not None


def test_a_node_of_a_cluster_that_does_not_log_what_others_write_is_refused(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no replication channel."""
    connection: Any = None
    monkeypatch.setattr(server, "is_replica", lambda _: False)
    settings |= {"wsrep_on": "OFF", "log_slave_updates": "OFF"}
    ensure_logging(connection, SERVER)
    settings["wsrep_on"] = "ON"
    with pytest.raises(LogFilteredError, match="on a node of a Galera cluster") as refused:
        ensure_logging(connection, SERVER)
    assert refused.value.hint is not None
    settings["log_slave_updates"] = "ON"
    ensure_logging(connection, SERVER)


def test_a_log_in_innodb_is_refused_by_the_names_of_its_files(settings: dict[str, str]) -> None:
    connection: Any = None
    with pytest.raises(LogInEngineError, match=r"binlog-000000\.ibb"):
        log_files(connection)


@pytest.mark.parametrize(
    ("case", "lower_case", "keeps_case"), [("0", False, False), ("1", True, False), ("2", True, True)]
)
def test_a_server_says_how_it_writes_the_names_of_tables(
    settings: dict[str, str], case: str, lower_case: bool, keeps_case: bool
) -> None:
    settings |= {"version": "9.0", "server_id": "1", "server_uuid": "u", "lower_case_table_names": case}
    connection: Any = None
    found = find_server(connection)
    assert (found.lower_case, found.keeps_case) == (lower_case, keeps_case)
