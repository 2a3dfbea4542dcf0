"""A server behind a proxy that passes nothing on any more: its connections live, and none of them answers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connector import silence
from connector.errors import TransientError
from connector.mysql import connection as mysql_connection
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database
from tests.support.source import mysql_source, postgres_source
from tests.support.source.reading import following

LIMIT = 1.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", LIMIT)
    monkeypatch.setattr(mysql_connection, "CONNECT_SECONDS", LIMIT)


def read_until_it_fails(log: Any) -> str:
    """Read on as the agent does, and return why that fails; fail if it goes on."""
    limit = time.monotonic() + 30
    try:
        while time.monotonic() < limit:
            log.read(0.2, 1 << 20)
    except TransientError as error:
        return str(error)
    pytest.fail("it reads on")


def test_a_silent_postgres_is_lost_and_the_agent_gets_to_know(database: Database) -> None:
    with LossyProxy(database.port) as proxy:
        url = database.url.replace(f":{database.port}/", f":{proxy.port}/")
        with following(postgres_source.source_of(database, url=url)) as log:
            log.read(0.2, 1 << 20)
            proxy.fall_silent()
            assert "the server has not answered for 1 s" in read_until_it_fails(log)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_a_silent_mysql_is_lost_and_its_handshake_is_not_awaited_for_ever(mariadb: MysqlDatabase) -> None:
    with LossyProxy(mariadb.port) as proxy:
        url = mariadb.url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        with following(mysql_source.source_of(mariadb, url=url)) as log:
            log.read(0.2, 1 << 20)
            proxy.fall_silent()
            assert "the server has not answered for 1 s" in read_until_it_fails(log)
        with pytest.raises(TransientError, match="timed out"):
            mysql_connection.connect(url, "test")
