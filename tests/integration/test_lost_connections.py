"""A connection that a proxy lost alone, without a word, while the server answers others: it ends in time.

What the server still works on goes on, however long it takes.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pymysql
import pytest

from connector import silence
from connector.agent import open_probe
from connector.errors import TransientError
from connector.landing.manifest_store import newest_manifest
from connector.listening import Probe, listening
from connector.lost_sessions import LostSessions
from connector.mysql import connection as mysql
from connector.mysql import server as mysql_server
from connector.mysql.load.gauge import MysqlGauge
from connector.postgres import connection as postgres
from connector.postgres.driver import choice
from connector.postgres.driver.interface import CopyError
from connector.postgres.driver.libpq import CopyStream
from connector.postgres.log import stream as postgres_stream
from connector.schema import TableName
from connector.silence import end_all
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database
from tests.support.source import mysql_source, postgres_source
from tests.support.source.reading import following
from tests.support.source.tested_database import TestedDatabase
from tests.support.waiting import wait_until

LIMIT = 1.0
NAME = "deltatide lost"
LOST = (psycopg2.OperationalError, pymysql.OperationalError, CopyError, TransientError)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", LIMIT)
    monkeypatch.setattr(postgres_stream, "STATUS_SECONDS", LIMIT / 5)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "psycopg2":
        monkeypatch.setattr(choice, "reach_libpq", _unreachable)
    if request.param == "libpq":
        monkeypatch.setattr(CopyStream, "encrypted", True)
    choice.driver.cache_clear()
    yield
    choice.driver.cache_clear()


def _unreachable() -> None:
    raise OSError("hidden by the test")


@contextmanager
def proxied(database: TestedDatabase) -> Iterator[tuple[LossyProxy, str]]:
    with LossyProxy(database.port) as proxy:
        yield proxy, database.url.replace(f":{database.port}/", f":{proxy.port}/")


def port_of(descriptor: int) -> int:
    with socket.socket(fileno=descriptor) as shared:
        try:
            return int(shared.getsockname()[1])
        finally:
            shared.detach()


def read_until_it_fails(log: Any) -> str:
    limit = time.monotonic() + 30
    try:
        while time.monotonic() < limit:
            log.read(0.1, 1 << 30)
    except TransientError as error:
        return str(error)
    pytest.fail("it reads on")


def read_for(log: Any, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        log.read(0.1, 1 << 20)


@postgres_source.all_ways
def test_a_log_of_postgres_that_is_lost_while_idle(database: Database, way: None) -> None:
    with proxied(database) as (proxy, url), following(postgres_source.source_of(database, url=url)) as log:
        read_for(log, 4 * LIMIT)  # silent, too, but for what we ask for
        proxy.lose(_log_port(log))
        assert "reading the log: the server was silent for 1 s" in read_until_it_fails(log)


def _log_port(log: Any) -> int:
    stream = log._log_source._stream
    found = getattr(stream, "_stream", stream)
    return port_of(found._connection.fileno())


@pytest.mark.parametrize("bulk_bytes", [1, 1 << 40], ids=["in bulk", "as a stream"])
def test_a_log_of_postgres_that_is_lost_amid_a_transaction(database: Database, bulk_bytes: int) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with proxied(database) as (proxy, url):
        source = postgres_source.source_of(database, url=url, bulk_bytes=bulk_bytes)
        source.prepare()
        history = source.begin_log(fresh=False)
        database.execute("INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(1, 40000) n")
        log = source.open_log(1, history)
        try:
            wait_until(lambda: log.read(0.05, 1 << 20) or log.buffered_bytes > 1 << 16, "it has begun")
            assert log.buffered_rows == 0
            proxy.lose(_log_port(log))
            assert "the server was silent for 1 s" in read_until_it_fails(log)
        finally:
            log.close()
            source.close()


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_a_log_of_mysql_that_is_lost_while_idle(mariadb: MysqlDatabase) -> None:
    with proxied(mariadb) as (proxy, url), following(mysql_source.source_of(mariadb, url=url)) as log:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(silence, "SILENCE_SECONDS", 5.0)
            read_for(log, 8.0)  # heartbeats come every two seconds
        proxy.lose(port_of(log._stream._sock.fileno()))
        assert "reading the log: the server was silent for 1 s" in read_until_it_fails(log)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_a_log_of_mysql_that_is_lost_amid_a_transaction(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with proxied(mariadb) as (proxy, url):
        source = mysql_source.source_of(mariadb, url=url)
        source.prepare()
        history = source.begin_log(fresh=False)
        mariadb.execute("INSERT INTO t SELECT seq, repeat('x', 2000) FROM seq_1_to_20000")
        log = source.open_log(1, history)
        try:
            wait_until(lambda: log.read(0.05, 1 << 16) or log.buffered_bytes > 1 << 16, "it has begun")
            proxy.lose(port_of(log._stream._sock.fileno()))
            assert "the server was silent for 1 s" in read_until_it_fails(log)
        finally:
            log.close()
            source.close()


class Asked:
    """A question in a thread of its own, on a connection that may be lost."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            self._ask()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - begun

    def wait(self) -> BaseException | None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.error


def looking(probe: Probe) -> Any:
    """Listen as the agent does; a server that answers others is never silent."""
    look = LostSessions(NAME, probe, LIMIT).look
    return listening(probe, lambda: pytest.fail("it is silent"), LIMIT, look=look)


def of_postgres(connection: Any, how: str, query: str) -> Any:
    if how == "execute":
        return postgres.all_rows(connection, query)
    if how == "alone":
        with postgres.one_snapshot(connection):
            return choice.driver().run_alone(connection, query)
    rows = choice.driver().open_rows(connection)
    rows.start(f"COPY ({query}) TO STDOUT")
    while not rows.done:
        rows.read()
    return None


SLOW_POSTGRES = "SELECT pg_sleep(3)::text"
MANY_POSTGRES = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"


@pytest.mark.parametrize(
    ("how", "way"),
    [("execute", "psycopg2"), *itertools.product(("alone", "copy"), ("socket", "libpq", "psycopg2"))],
    indirect=["way"],
)
def test_a_question_to_postgres_whose_answer_is_lost_ends_and_so_does_its_session(
    database: Database, way: None, how: str
) -> None:
    with proxied(database) as (proxy, url), looking(postgres.probe(url, NAME)):
        connection = postgres.connect(url, NAME)
        slow = Asked(lambda: of_postgres(connection, how, SLOW_POSTGRES))
        assert slow.wait() is None, "it only takes long"
        for query, least in ((SLOW_POSTGRES, 3.0), (MANY_POSTGRES, 0.0)):
            connection = postgres.connect(url, NAME)
            pid, port = connection.info.backend_pid, port_of(connection.fileno())
            asked = Asked(lambda c=connection, q=query: of_postgres(c, how, q))
            active = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
            wait_until(lambda a=active: database.execute(a), "it is running")
            proxy.lose(port)
            assert isinstance(asked.wait(), LOST), asked.error
            assert asked.seconds >= least, "the server was still at work for it"
            gone = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
            wait_until(lambda g=gone: not database.execute(g), "the server's session ends, too", seconds=5)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_a_question_to_mysql_whose_answer_is_lost_ends_and_so_does_its_session(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mariadb.execute("INSERT INTO t SELECT seq, repeat('x', 2000) FROM seq_1_to_20000")
    slow_query, many = "SELECT SLEEP(3)", f"SELECT a.v FROM {mariadb.name}.t a JOIN {mariadb.name}.t b"
    with proxied(mariadb) as (proxy, url), looking(mysql_server.probe(url, NAME)):
        connection = mysql.connect(url, NAME)
        assert Asked(lambda: mysql.rows(connection, slow_query)).wait() is None, "it only takes long"
        for query, least in ((slow_query, 3.0), (many, 0.0)):
            connection = mysql.connect(url, NAME)
            number, port = connection.thread_id(), port_of(connection._sock.fileno())
            asked = Asked(lambda c=connection, q=query: mysql.rows(c, q))
            listed = f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"
            wait_until(lambda s=f"{listed} AND command = 'Query'": mariadb.execute(s), "it is running")
            proxy.lose(port)
            assert isinstance(asked.wait(), LOST), asked.error
            assert asked.seconds >= least, "the server was still at work for it"
            wait_until(lambda s=listed: not mariadb.execute(s), "the server's session ends", seconds=5)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_sessions_of_mysql_are_found_beside_statements_that_are_no_text(mariadb: MysqlDatabase) -> None:
    name = "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 60
    statements: list[str | bytes] = [
        f"SELECT SLEEP(5) AS `{name}`",  # the list shows the first 100 bytes: half of a character, for one
        f"SELECT  SLEEP(5) AS `{name}`",
        "SELECT SLEEP(5), '\N{GRINNING FACE}'",
        b"SELECT SLEEP(5), _binary '\xff\x01'",
    ]
    looks = mysql_server.probe(mariadb.url, NAME)
    config = mysql_source.source_of(mariadb)._config
    with closing(looks), closing(MysqlGauge(config)) as gauge:
        for statement in statements:
            connection = mysql.connect(mariadb.url, NAME)
            asked = Asked(lambda c=connection, s=statement: mysql.rows(c, s))
            wait_until(lambda c=connection: not looks.idle([c.session]), "it is running", seconds=4)
            mysql.close(mysql.connect(mariadb.url, NAME))
            assert [found.state for found in gauge.check(4)] == ["ok"]
            looks.end(connection.session)
            assert isinstance(asked.wait(), LOST)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_another_session_with_the_number_of_one_that_is_gone_is_left_alone(mariadb: MysqlDatabase) -> None:
    """A restart of the server begins the numbers again."""
    mine, others = mysql.connect(mariadb.url, NAME), mysql.connect(mariadb.url, "deltatide other")
    with closing(mine), closing(others), closing(mysql_server.probe(mariadb.url, NAME)) as looks:
        gone = tuple(others.thread_id() if part == mine.thread_id() else part for part in mine.session)
        assert looks.idle([gone]) == {gone}
        looks.end(gone)
        assert mysql.alive(others), "it is not ours"


def test_an_agent_of_postgres_that_loses_connection_after_connection_lands_all(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n")
    assert_all_lands(database, tmp_path, monkeypatch)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
@pytest.mark.soak_on_mariadb  # MariaDB's agent is MySQL's
def test_an_agent_of_mysql_that_loses_connection_after_connection_lands_all(
    mariadb: MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mariadb.execute("INSERT INTO t SELECT seq, repeat('x', 200) FROM seq_1_to_20000")
    assert_all_lands(mariadb, tmp_path, monkeypatch)


def assert_all_lands(database: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose each connection that the agent has, in turn, while it dumps and rows are written."""
    chosen = random.Random(7)
    with proxied(database) as (proxy, url):
        tables = [f"{database.namespace}.t"]
        captured = CapturedDatabase(database, folder, monkeypatch, tables=tables, url=url)
        probe, name = open_probe(captured.config), "deltatide shop"
        look = LostSessions(name, probe, LIMIT).look
        with captured.running(), listening(probe, lambda: end_all(name), 3 * LIMIT, look=look):
            wait_until(lambda: newest_manifest(captured.store), "it has begun")
            lost: set[int] = set()
            for number in range(20):
                database.execute(f"UPDATE t SET v = 'round {number}' WHERE id % 20 = {number}")
                port = chosen.choice(wait_until(lambda: sorted(open_ports(name) - lost), "one is open"))
                proxy.lose(port)
                lost.add(port)
                time.sleep(0.3)
            captured.wait_settled(120)
    landed = landed_tables(captured.store)[TableName(database.namespace, "t")]
    found = {row["id"]: row["v"] for row, _ in map(landed.row, list(landed.events)) if row is not None}
    assert found == dict(database.rows("SELECT id, v FROM t"))
    assert newest_manifest(captured.store).gaps == []


def open_ports(name: str) -> set[int]:
    found: set[int] = set()
    for connection, (descriptor_of, _) in silence._opened(name):
        with suppress(Exception):  # it has ended
            found.add(port_of(descriptor_of(connection)))
    return found
