"""A server behind a proxy that passes nothing on any more: its connections live, and none of them answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import psycopg2
import pymysql
import pytest

from connector import silence
from connector.errors import TransientError
from connector.listening import Probe, listening
from connector.mysql import connection as mysql_connection
from connector.mysql import server as mysql_server
from connector.postgres import connection as postgres_connection
from connector.silence import end_all
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database
from tests.support.source import mysql_source, postgres_source
from tests.support.source.reading import following
from tests.support.waiting import wait_until

LIMIT = 1.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", LIMIT)
    monkeypatch.setattr(mysql_connection, "SILENCE_SECONDS", LIMIT)


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
            assert "the server was silent for 1 s" in read_until_it_fails(log)
        with pytest.raises(TransientError, match="timed out"):
            mysql_connection.connect(url, "test")


refusing = pytest.mark.parametrize("refuses", [False, True], ids=["silent to all", "closing new ones"])
"""As balancers do that know that the server is gone, but keep the connections to it."""


def assert_only_silence_ends_a_query(
    proxy: LossyProxy, probe: Probe, sleep: Callable[[float], Any], *, refuses: bool
) -> None:
    """Check that a query that takes long goes on while the server answers others, and ends once it is silent.

    As of a dump, before its first row comes, and of a check of the catalog.
    """
    ended = threading.Event()

    def ask_for_long() -> None:
        with pytest.raises((psycopg2.OperationalError, pymysql.OperationalError)):
            sleep(60)
        ended.set()

    with listening(probe, lambda: end_all("deltatide silent"), LIMIT) as listener:
        sleep(3 * LIMIT)
        assert not listener.silent
        threading.Thread(target=ask_for_long, daemon=True).start()
        proxy.fall_silent(refuses=refuses)
        wait_until(ended.is_set, "it ends", seconds=20)
        assert listener.silent
        proxy.pass_on()
        wait_until(lambda: not listener.silent, "the server answers again", seconds=20)
    assert listener.failure is None


@refusing
def test_a_query_to_a_silent_postgres_ends_however_long_it_may_take(
    database: Database, refuses: bool
) -> None:
    with LossyProxy(database.port) as proxy:
        url = database.url.replace(f":{database.port}/", f":{proxy.port}/")
        connection = postgres_connection.connect(url, "deltatide silent")
        assert_only_silence_ends_a_query(
            proxy,
            postgres_connection.probe(url, "deltatide silent"),
            lambda seconds: postgres_connection.one_row(connection, f"SELECT pg_sleep({seconds})"),
            refuses=refuses,
        )


def test_a_query_to_a_silent_postgres_is_lost_though_its_cancel_is_not_answered(database: Database) -> None:
    stopping, ended = threading.Event(), threading.Event()
    with LossyProxy(database.port) as proxy:
        url = database.url.replace(f":{database.port}/", f":{proxy.port}/")
        connect = lambda: postgres_connection.connect(url, "deltatide silent")  # noqa: E731
        connection = connect()

        def ask_for_long() -> None:
            query = "SELECT pg_sleep(60)"
            with pytest.raises(psycopg2.OperationalError):
                postgres_connection.one_row_unless(stopping.is_set, connection, query, connect)
            ended.set()

        threading.Thread(target=ask_for_long, daemon=True).start()
        proxy.fall_silent()
        threading.Timer(LIMIT, lambda: end_all("deltatide silent")).start()
        stopping.set()
        assert ended.wait(2 * LIMIT)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_stop_cancels_our_query_and_not_that_of_a_session_with_a_number_that_a_pooler_made_up(
    database: Database, pooled: bool
) -> None:
    connect = lambda: postgres_connection.connect(database.url, "deltatide silent")  # noqa: E731
    ours, others, ended = connect(), connect(), threading.Event()
    if pooled:
        cursor, cancel = ours.cursor, ours.cancel
        info = SimpleNamespace(backend_pid=others.info.backend_pid)
        ours = cast(Any, SimpleNamespace(session=None, info=info, cursor=cursor, cancel=cancel))

    def ask() -> None:
        postgres_connection.one_row(others, "SELECT pg_sleep(3)")
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(psycopg2.errors.QueryCanceled):
        postgres_connection.one_row_unless(lambda: True, ours, "SELECT pg_sleep(9)", connect)
    assert not ended.is_set()
    assert ended.wait(10)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
@refusing
def test_a_query_to_a_silent_mysql_ends_however_long_it_may_take(
    mariadb: MysqlDatabase, refuses: bool
) -> None:
    with LossyProxy(mariadb.port) as proxy:
        url = mariadb.url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        connection = mysql_connection.connect(url, "deltatide silent")
        assert_only_silence_ends_a_query(
            proxy,
            mysql_server.probe(url, "deltatide silent"),
            lambda seconds: mysql_connection.row(connection, f"SELECT SLEEP({seconds})"),
            refuses=refuses,
        )
