"""Configured keys of MySQL and MariaDB whose unique index goes, for good or for a time."""

from __future__ import annotations

import threading
from collections import defaultdict
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
from tests.support.landing.cuts import Table, add_manifest, manifests_in
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


@pytest.mark.only_mariadb
def test_versions_that_are_dropped_before_their_log_is_read_are_not_taken_for_rows(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """The catalog no longer tells which of a table's columns ended them."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL UNIQUE, v int,"
        " b timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END,"
        " PERIOD FOR SYSTEM_TIME (b, e)) WITH SYSTEM VERSIONING",
        "INSERT INTO t (id, k, v) VALUES (1, 1, 1), (2, 2, 2)",
    )
    with agent(mariadb, tmp_path, keys={"t": ["k"]}) as store:
        wait_caught_up(mariadb, store)
    mariadb.execute(
        "UPDATE t SET v = v + 10",
        "DELETE FROM t WHERE id = 2",
        "SET system_versioning_alter_history = KEEP",
        "ALTER TABLE t DROP SYSTEM VERSIONING, DROP COLUMN b, DROP COLUMN e",
    )
    with agent(mariadb, tmp_path, keys={"t": ["k"]}) as store:
        wait_caught_up(mariadb, store)
        wait_until(lambda: has_rows(store, mariadb, {(1,): 11}), "it has the current row alone", seconds=20)


def has_rows(store: LocalStore, mariadb: MysqlDatabase, expected: dict[tuple[Any, ...], Any]) -> bool:
    tables: dict[TableName, Table] = defaultdict(Table)
    for manifest in manifests_in(store):
        add_manifest(store, manifest, tables)
    table = tables[TableName(mariadb.name, "t")]
    rows = {key: table.row(key)[0] for key in table.events}
    return {key: row["v"] for key, row in rows.items() if row is not None} == expected
