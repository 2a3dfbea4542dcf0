"""Servers that keep the names of tables in lower case (lower_case_table_names = 1), which is not Python's."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.demo.servers.mariadb import INSTALL_HINT, find_programs
from tests.support.agent.mysql_agents import agent, assert_equal, short_waits, wait_caught_up
from tests.support.servers.copied_data import CopiedMariadbServer
from tests.support.servers.mysql_database import DURABLE_SETTINGS, MysqlDatabase, fresh_database

__all__ = ["short_waits"]

NAMES = ("ΠΕΛΑΤΕΣ", "MÜŞTERİ", "KUNDEN")


def test_a_truncated_table_is_emptied_by_whatever_name_the_statement_has(tmp_path: Path) -> None:
    if find_programs() is None:
        pytest.skip(f"MariaDB is not installed: {INSTALL_HINT}")
    settings = {**DURABLE_SETTINGS, "lower-case-table-names": "1"}
    with (
        CopiedMariadbServer.start(tmp_path / "server", settings=settings) as server,
        fresh_database(server, "lower") as mariadb,
    ):
        fill(mariadb)
        with agent(mariadb, tmp_path / "landing") as store:
            wait_caught_up(mariadb, store)
            mariadb.execute(*(f"TRUNCATE TABLE {name}" for name in NAMES))
            wait_caught_up(mariadb, store)
        stored = sorted(name for (name,) in mariadb.execute("SHOW TABLES"))
        assert stored == ["kunden", "müşteri", "πελατεσ"]
        for name in stored:
            assert_equal(mariadb, store, name)


def fill(mariadb: MysqlDatabase) -> None:
    for name in NAMES:
        mariadb.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES (1), (2)")
