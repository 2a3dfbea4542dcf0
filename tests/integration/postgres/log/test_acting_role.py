"""A role that acts as another, by a setting of its own: what is its session's is that of who has logged in.

PostgreSQL shows a session's state to, and lets it be ended by, roles that have the rights of its login role.
The role that it acts as need not be one of these.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from connector import silence
from connector.errors import UnreachableError
from connector.postgres import connection as postgres
from connector.postgres import slot
from connector.postgres.driver.choice import driver
from connector.postgres.log import stream
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.postgres import Database
from tests.support.source import postgres_source
from tests.support.source.reading import following
from tests.support.waiting import wait_until

NAME = "deltatide acting"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    """Return the url of a role that acts as another."""
    login, acts_as = f"login_{database.name}"[:60], f"acts_{database.name}"[:60]
    database.execute(
        f"CREATE ROLE {acts_as} REPLICATION;"
        f"CREATE ROLE {login} LOGIN REPLICATION PASSWORD 'pw' IN ROLE {acts_as};"
        f"ALTER ROLE {login} SET role = {acts_as}; GRANT ALL ON DATABASE {database.name} TO {acts_as}"
    )
    yield f"postgresql://{login}:pw@127.0.0.1:{database.port}/{database.name}"
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (login,))
    database.execute(f"DROP ROLE {login}; DROP OWNED BY {acts_as}; DROP ROLE {acts_as}")


def test_it_sees_which_of_its_sessions_wait_for_it_and_ends_them(url: str) -> None:
    with closing(postgres.connect(url, NAME)) as waits, closing(postgres.connect(url, NAME)) as runs:
        assert postgres.one_row(runs, "SELECT current_user <> session_user") == (True,)
        query = threading.Thread(target=_fails, args=(runs, "SELECT pg_sleep(30)"))
        query.start()
        with closing(postgres.connect(url, NAME)) as looks:
            sessions = [waits.session, runs.session]  # type: ignore[attr-defined]
            wait_until(lambda: postgres.idle_sessions(looks, sessions) == {sessions[0]}, "one of them waits")
            for session in sessions:
                postgres.end_session(looks, session)
            query.join(10)
            assert not query.is_alive()
            wait_until(lambda: postgres.idle_sessions(looks, sessions) == set(sessions), "both are gone")
            assert postgres.one_row(looks, "SELECT current_user <> session_user") == (True,)


def _fails(connection: psycopg2.extensions.connection, query: str) -> None:
    with pytest.raises(psycopg2.OperationalError):
        postgres.one_row(connection, query)


def test_a_stop_cancels_what_it_waits_for(url: str) -> None:
    connect = functools.partial(postgres.connect, url, NAME)
    with closing(connect()) as connection, pytest.raises(psycopg2.errors.QueryCanceled):
        postgres.one_row_unless(lambda: True, connection, "SELECT pg_sleep(30)", connect)


def test_a_stop_cancels_nothing_of_another_session_with_the_same_process_id(database: Database) -> None:
    """The address may lead to another server by now, whose process ids are others'."""
    with closing(postgres.connect(database.url, NAME)) as other:
        slept = threading.Thread(target=postgres.one_row, args=(other, "SELECT pg_sleep(2)"))
        former = postgres.connect(database.url, NAME)
        with closing(former):
            ours = other.session[0], former.session[1]  # type: ignore[attr-defined]
            slept.start()
            former.session = ours  # type: ignore[attr-defined]
            connect = lambda: postgres.connect(database.url, NAME)  # noqa: E731
            assert postgres.one_row_unless(lambda: True, former, "SELECT pg_sleep(1)", connect) == ("",)
        slept.join()


def test_the_process_that_reads_the_slot_for_a_former_agent_is_ended(database: Database, url: str) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.name,))
    database.execute("CREATE PUBLICATION it")
    former = postgres.connect(url, NAME, replication=True)
    with closing(former), closing(postgres.connect(url, NAME)) as later:
        driver().open_log(former, database.name, "it", 0)
        slot.end_readers(later, database.name)
        assert slot.wait_until_released(later, database.name) is not None


def test_a_log_that_is_lost_is_noticed(database: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(stream, "STATUS_SECONDS", 0.2)
    with LossyProxy(database.port) as proxy:
        source = postgres_source.source_of(database, url=url.replace(f":{database.port}/", f":{proxy.port}/"))
        with following(source) as log:
            log.read(0.2, 1 << 20)
            clients = "SELECT client_port FROM pg_stat_replication WHERE application_name = 'deltatide it'"
            proxy.lose(proxy.client_of(database.execute(clients)[0][0]))
            with pytest.raises(UnreachableError, match="the server was silent for 1 s"):
                read_for(log, 20)


def read_for(log: Any, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        log.read(0.1, 1 << 20)
