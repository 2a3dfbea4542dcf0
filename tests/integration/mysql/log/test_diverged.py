"""Servers that executed other transactions than landed, or in another order: only dumps give their rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.mysql.log.test_failover import (
    NAME,
    assert_failed_over,
    have_agent_write,
    little_patience,
    newest_of,
    purge_log,
    repaired_gap,
    servers,
    wait_for_epoch,
)
from tests.support.agent.mysql_agents import agent, assert_equal, fill, short_waits, wait_caught_up
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.replication import Replicated, own_server, replicated

__all__ = ["little_patience", "servers", "short_waits"]


@pytest.mark.parametrize(
    "rotated",
    [
        pytest.param(False, marks=pytest.mark.soak, id="in_the_same_file"),
        pytest.param(True, id="in_an_earlier_file"),
    ],
)
def test_a_replica_that_somebody_wrote_on_is_a_gap(
    servers: Replicated, tmp_path: Path, rotated: bool
) -> None:
    """It has everything that landed; but its own write was before that, and would land after it, or never."""
    primary, replica = servers.primary, servers.replica
    fill(primary)
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        servers.wait_applied()
        replica.execute(
            "UPDATE t SET v = 'written there' WHERE id = 5", "INSERT INTO t VALUES (3000, 1, 'there')"
        )
        if rotated:
            replica.execute("FLUSH LOCAL BINARY LOGS")
        primary.execute("UPDATE t SET v = 'right' WHERE id = 5")
        wait_caught_up(primary, store)
        servers.wait_applied()
    servers.fail_over()
    assert "never read" in repaired_gap(replica, tmp_path)


def test_a_replica_that_somebody_wrote_other_tables_on_is_no_gap(servers: Replicated, tmp_path: Path) -> None:
    primary, replica = servers.primary, servers.replica
    fill(primary)
    primary.execute("CREATE DATABASE monitoring", "CREATE TABLE monitoring.beat (id int PRIMARY KEY)")
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        servers.wait_applied()
        replica.execute("INSERT INTO monitoring.beat VALUES (1)")
        primary.execute("UPDATE t SET v = 'right' WHERE id = 5")
        wait_caught_up(primary, store)
        servers.wait_applied()
    servers.promote()
    assert_continues(replica, tmp_path)


def assert_continues(replica: MysqlDatabase, tmp_path: Path) -> None:
    """Check that an agent continues on the replica, with no gap and nothing missing."""
    with agent(replica, tmp_path, url=replica.url) as store:
        wait_for_epoch(store, 2)
        replica.execute("UPDATE t SET v = 'later' WHERE id = 6")
        wait_caught_up(replica, store)
    assert_failed_over(store)
    assert_equal(replica, store, "t")


@pytest.mark.parametrize("lost", [False, True], ids=["own_writes", "a_lost_tail"])
def test_a_former_primary_that_comes_back_is_a_gap_if_it_kept_what_no_replica_got(
    servers: Replicated, tmp_path: Path, lost: bool
) -> None:
    """The agent's own last writes are no loss, read or not."""
    primary, replica = servers.primary, servers.replica
    fill(primary)
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        servers.wait_applied()
        servers.promote()
        have_agent_write(primary, store)
    if lost:
        primary.execute("UPDATE t SET v = 'lost' WHERE id = 5")
    with agent(replica, tmp_path, url=replica.url) as store:
        wait_for_epoch(store, 2)
        replica.execute("UPDATE t SET v = 'right' WHERE id = 5")
        wait_caught_up(replica, store)
    turned = servers.turn_around()
    turned.wait_applied()
    turned.promote()
    assert primary.execute("SELECT v FROM t WHERE id = 5") == [("right",)]
    primary.execute("DELETE FROM t WHERE id = 6")
    with agent(primary, tmp_path, url=primary.url) as store:
        wait_for_epoch(store, 3)
        wait_caught_up(primary, store)
    assert_equal(primary, store, "t")
    if lost:
        (gap,) = newest_of(store).gaps
        assert "never read" in gap.reason
    else:
        assert_failed_over(store, epoch=3, asked=True)


def in_domain(database: MysqlDatabase, *statements: str) -> None:
    """Execute statements in a GTID domain of their own; a replica may apply them before those of others."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION gtid_domain_id = 7")
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def mariadb_servers(servers_folder: Path, tmp_path: Path) -> Iterator[Replicated]:
    with replicated("mariadb", servers_folder / tmp_path.name, NAME) as pair:
        yield pair


def delete_domain(database: MysqlDatabase) -> None:
    purge_log(database)
    database.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7)")


@pytest.mark.parametrize("case", ["in_the_log", "listed", "used_again"])
def test_a_domain_that_was_deleted_at_the_primary_does_not_land_again(
    mariadb_servers: Replicated, tmp_path: Path, case: str
) -> None:
    """The replica still knows it. Where its log shows that this is what landed, nothing is missing."""
    primary, replica = mariadb_servers.primary, mariadb_servers.replica
    fill(primary)
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        mariadb_servers.wait_applied()
        in_domain(primary, "UPDATE t SET v = 'old' WHERE id = 5")
        wait_caught_up(primary, store)
        mariadb_servers.wait_applied()
        delete_domain(primary)
        if case != "in_the_log":
            replica.execute("FLUSH LOCAL BINARY LOGS")
        primary.execute("UPDATE t SET v = 'new' WHERE id = 5")
        wait_caught_up(primary, store)
    if case == "used_again":
        mariadb_servers.wait_applied()
        in_domain(primary, "UPDATE t SET v = 'again' WHERE id = 5")
    mariadb_servers.wait_applied()
    mariadb_servers.fail_over()
    replica.execute("FLUSH LOCAL BINARY LOGS")
    if case != "listed":
        assert "of a deleted domain" in repaired_gap(replica, tmp_path)
        return
    assert_continues(replica, tmp_path)


def test_a_domain_that_was_deleted_before_the_landing_zone_began_does_not_land(
    mariadb_servers: Replicated, tmp_path: Path
) -> None:
    primary, replica = mariadb_servers.primary, mariadb_servers.replica
    fill(primary)
    mariadb_servers.wait_applied()
    in_domain(primary, "UPDATE t SET v = 'old' WHERE id = 5")
    mariadb_servers.wait_applied()
    delete_domain(primary)
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        primary.execute("UPDATE t SET v = 'new' WHERE id = 5")
        wait_caught_up(primary, store)
    mariadb_servers.wait_applied()
    mariadb_servers.fail_over()
    assert "never read" in repaired_gap(replica, tmp_path)


def test_a_replica_may_ignore_the_agents_writes(mariadb_servers: Replicated, tmp_path: Path) -> None:
    """Its log lacks some between those it has; that is no gap, and no later start ends by it."""
    primary, replica = mariadb_servers.primary, mariadb_servers.replica
    fill(primary)
    with agent(primary, tmp_path) as store:
        wait_caught_up(primary, store)
        mariadb_servers.wait_applied()
        mariadb_servers.stop()
        replica.execute("SET GLOBAL replicate_ignore_db = 'deltatide'")
        mariadb_servers.start()
        primary.execute("UPDATE t SET v = 'landed' WHERE id = 5")
        wait_caught_up(primary, store)
        have_agent_write(primary, store)
        mariadb_servers.wait_applied()
        in_domain(primary, "UPDATE t SET v = 'domain 7' WHERE id = 7")
        wait_caught_up(primary, store)
    assert newest_of(store).gtids_needed is not None
    primary.execute("UPDATE t SET v = 'unread' WHERE id = 6")
    mariadb_servers.wait_applied()
    mariadb_servers.fail_over()
    for _ in range(2):
        with agent(replica, tmp_path, url=replica.url) as store:
            wait_for_epoch(store, 2)
            wait_caught_up(replica, store)
        assert_equal(replica, store, "t")
    assert_failed_over(store, asked=True)


def test_a_domain_that_is_deleted_and_used_again_lands_again(servers_folder: Path, tmp_path: Path) -> None:
    """MariaDB then numbers its transactions from 1 again."""
    with own_server("mariadb", servers_folder / tmp_path.name, 1) as server:
        MysqlDatabase(server, "").execute("CREATE DATABASE domains")
        database = MysqlDatabase(server, "domains")

        def insert(*ids: int) -> None:
            in_domain(database, *(f"INSERT INTO t VALUES ({n})" for n in ids))

        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with agent(database, tmp_path) as store:
            wait_caught_up(database, store)
        database.execute("RESET MASTER")
        with agent(database, tmp_path) as store:
            wait_for_epoch(store, 2)  # as after any failover
            insert(*range(10, 16))
            wait_caught_up(database, store)
            database.execute("FLUSH BINARY LOGS")
            wait_caught_up(database, store)
            purge_log(database)
            database.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7)")
            wait_caught_up(database, store)
        insert(*range(20, 28))
        with agent(database, tmp_path) as store:
            wait_caught_up(database, store)
        assert_equal(database, store, "t")
        assert (newest_of(store).epoch, newest_of(store).exact) == (2, True)
