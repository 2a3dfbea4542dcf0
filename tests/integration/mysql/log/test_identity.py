"""Which servers a landing zone may belong to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from connector.errors import TransientError
from connector.landing.manifest import Manifest, SourceIdentity
from connector.mysql.failover import missing, shares_history
from connector.mysql.server import find_server
from connector.mysql.state_table import StateTable
from connector.source import Failover
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import opened, ops
from tests.support.source.replication import own_server

FOREIGN = "aaaaaaaa-0000-11ef-8000-000000000001:1-9", "bbbbbbbb-0000-11ef-8000-000000000002:1-3:tag:5"


def test_the_server_of_the_watching_session_is_not_taken_for_the_others(mariadb: MysqlDatabase) -> None:
    """It may be the former server, still running, when the other session has just moved to the new one."""
    source = source_of(mariadb)
    known = source.identity()
    source.check_catalog()
    source._session._server = None  # as the session is reopened, in another thread
    source.check_catalog()
    assert source._session._server is None
    assert source.identity() == known
    source.close()


def test_tables_that_are_made_later_have_the_landing_zones_id(mariadb: MysqlDatabase) -> None:
    """The agent had no right to write before. Replicas get the id with the tables, and are known by it."""
    source, later = source_of(mariadb), source_of(mariadb)
    with mariadb.connect() as connection:
        server = find_server(connection)
    identity = SourceIdentity(name="t", kind=source.identity().kind, system_id=server.uuid, database="")
    landed = cast(Manifest, SimpleNamespace(source=identity, gtids=None))
    assert source.identity(landed).system_id == server.uuid
    source.prepare()
    assert StateTable(source._config.name).identity(later._session.get()) == server.uuid
    assert later.identity().system_id == server.uuid
    source.close()
    later.close()


@pytest.mark.parametrize("step", ["prepare", "begin_log", "open_log"])
def test_a_session_that_was_reopened_since_its_server_was_checked_writes_nothing(
    mariadb: MysqlDatabase, step: str
) -> None:
    """It may lead to another database, which would get this landing zone's id."""
    source = source_of(mariadb)
    point = source.begin_log(fresh=False)
    steps = {
        "prepare": source.prepare,
        "begin_log": lambda: source.begin_log(fresh=True),
        "open_log": lambda: source.open_log(1, point).close(),
    }
    landed = cast(Manifest, SimpleNamespace(source=source.identity(), gtids=None))
    assert source.identity(landed) == landed.source
    source._session.get()._force_close()  # type: ignore[no-untyped-call]
    with pytest.raises(TransientError, match="since its server was checked"):
        steps[step]()
    with mariadb.connect() as connection:
        assert StateTable(source._config.name).identity(connection) is None
    assert source.check_resumable(point) is None
    steps[step]()
    source.close()


@pytest.mark.parametrize("setting", ["gtid_domain_id = 7", "server_id = 70"])
def test_a_server_whose_ids_are_changed_while_it_runs_is_read_on(servers_folder: Path, setting: str) -> None:
    """The session that lives knows the former ids, and each new one the new ones."""
    with own_server("mariadb", servers_folder, 1) as server:
        database = MysqlDatabase(server, "ids")
        MysqlDatabase(server, "").execute("CREATE DATABASE ids")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = source_of(database)
        source.prepare()
        point = source.begin_log(fresh=False)
        source.open_log(1, point).close()
        database.execute(f"SET GLOBAL {setting}", "INSERT INTO t VALUES (1)")
        with pytest.raises(TransientError, match="points to server"):
            source.open_log(1, point)
        found = source.check_resumable(point)
        assert isinstance(found, Failover)
        with opened(source, found.resume_point) as log:
            assert ops(read_all(database, log), "id") == [("insert", 1)]


@pytest.mark.parametrize("size", [1, 2])
def test_gtids_of_other_servers_prove_no_shared_history(mysql_database: MysqlDatabase, size: int) -> None:
    """However many servers they come from: after a failover, they come from two."""
    others = ",".join(FOREIGN[:size])
    executed = str(mysql_database.execute("SELECT @@global.gtid_executed")[0][0])
    with mysql_database.connect() as connection:
        server = find_server(connection)
        assert missing(connection, server, others) == others
        assert not shares_history(connection, server, others)
        assert shares_history(connection, server, f"{others},{executed}")
        assert not shares_history(connection, server, "")
