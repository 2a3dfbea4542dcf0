"""Configured keys of MySQL and MariaDB whose unique index goes, for good or for a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from connector.findings import unfit_tables
from connector.landing.manifest import TableState
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.store.local import LocalStore
from tests.support.agent.mysql_agents import agent, is_equal, short_waits, wait_caught_up
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

KEYS = {"during": ["k"], "after": ["k"], "lost": ["k"]}


def bulk_load(table: str, index: str) -> list[str]:
    """It leaves rows (1, 'kept') and (2, 'new')."""
    return [
        f"ALTER TABLE {table} DROP {index}",
        f"INSERT INTO {table} VALUES (1, 'double'), (2, 'new')",
        f"DELETE FROM {table} WHERE v = 'double'",
        f"ALTER TABLE {table} ADD {index.replace('INDEX', 'UNIQUE')} (k)",
    ]


def state_of(mariadb: MysqlDatabase, store: LocalStore, name: str) -> TableState:
    newest = newest_manifest(store)
    assert newest is not None
    return newest.tables[TableName(mariadb.name, name)]


def test_rows_that_had_the_same_key_are_dumped_again_and_a_key_without_index_is_quarantined_as_checked(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names them by their key alone, so the delete of one is the delete of both in the lake."""
    checking, check_catalog = threading.Lock(), MysqlSource.check_catalog

    def check(*args: Any) -> Any:
        with checking:
            return check_catalog(*args)

    monkeypatch.setattr(MysqlSource, "check_catalog", check)
    mariadb.execute(
        "CREATE TABLE during (k int NOT NULL, v varchar(20), UNIQUE INDEX uq (k))",
        "CREATE TABLE lost LIKE during", "CREATE TABLE after (k int PRIMARY KEY, v varchar(20))",
        *(f"INSERT INTO {table} VALUES (1, 'kept')" for table in KEYS),
    )  # fmt: skip
    with agent(mariadb, tmp_path, keys=KEYS) as store:
        wait_caught_up(mariadb, store)
        with checking:  # no check sees the table without the index
            mariadb.execute(*bulk_load("during", "INDEX uq"))
        wait_until(lambda: is_equal(mariadb, store, "during"), "it was dumped again", seconds=20)

        mariadb.execute("ALTER TABLE lost DROP INDEX uq", "INSERT INTO lost VALUES (1, 'double')")
        wait_until(lambda: state_of(mariadb, store, "lost").state == "quarantined", "it is quarantined")
        keys = {f"{mariadb.name}.{name}": key for name, key in KEYS.items()}
        source = source_of(mariadb, keys=keys)
        (checked,) = unfit_tables(source.check())
        source.close()
        quarantined = state_of(mariadb, store, "lost")
        assert (checked.table.name, checked.reason) == ("lost", quarantined.reason)
        assert quarantined.reason == "its configured key (k) has no unique index"
        add_index, _, dump = (quarantined.hint or "").partition("; then: deltatide dump ")
        mariadb.execute("DELETE FROM lost WHERE v = 'double'", add_index)
        submit(store, DumpRequest(tables=[TableName.parse(dump)]))
        wait_until(lambda: state_of(mariadb, store, "lost").state == "captured", "the dump releases it")
        wait_until(lambda: is_equal(mariadb, store, "lost"), "it was dumped again", seconds=20)
    mariadb.execute(*bulk_load("after", "PRIMARY KEY"))  # while no agent runs
    with agent(mariadb, tmp_path, keys=KEYS) as store:
        wait_until(lambda: is_equal(mariadb, store, "after"), "it was dumped again", seconds=20)
        wait_caught_up(mariadb, store)
        assert all(is_equal(mariadb, store, name) for name in KEYS)
