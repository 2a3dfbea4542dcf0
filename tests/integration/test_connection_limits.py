"""How many connections an agent needs, and what it does where there are fewer."""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from connector.agent import open_gauge, open_probe
from connector.config import Config
from connector.listening import listening
from connector.mysql.load import gauge as mysql_gauge
from connector.postgres import load_gauge as postgres_gauge
from connector.source import Finding
from tests.support.agent.captured import CapturedDatabase
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database
from tests.support.source.mysql_source import reader_of
from tests.support.waiting import wait_until

WORKERS = 3
FEW = 6
"""Enough for everything but dump workers, of which one may find a connection for a moment."""


class Limited:
    """A database with a user of its own, whose number of connections is limited."""

    def __init__(self, database: Any, url: str, limit: str, needed: int, count: str) -> None:
        self.database, self.url, self.needed = database, url, needed
        self._limit, self._count = limit, count

    def allow(self, connections: int) -> None:
        self.database.execute(self._limit.format(connections))

    def used(self) -> int:
        return int(self.database.rows(self._count)[0][0])


@pytest.fixture
def of_postgres(database: Database) -> Iterator[Limited]:
    role = f"limited_{secrets.token_hex(4)}"
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 5000) n")
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x' IN ROLE pg_read_all_stats")
    database.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO {role}; ALTER TABLE t OWNER TO {role}')
    url = f"postgresql://{role}:x@{database.url.partition('@')[2]}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'"
    needed = postgres_gauge.CONNECTIONS + WORKERS * postgres_gauge.PER_WORKER
    yield Limited(database, url, f"ALTER ROLE {role} CONNECTION LIMIT {{}}", needed, count)
    database.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def of_mysql(mariadb: MysqlDatabase) -> Iterator[Limited]:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mariadb.execute("INSERT INTO t SELECT seq, repeat('x', 200) FROM seq_1_to_5000")
    url = reader_of(mariadb)
    (user,) = re.findall("reader[0-9a-f]{8}", url)
    count = f"SELECT count(*) FROM information_schema.processlist WHERE user = '{user}'"
    needed = mysql_gauge.CONNECTIONS + WORKERS * mysql_gauge.PER_WORKER
    yield Limited(mariadb, url, f"ALTER USER {user} WITH MAX_USER_CONNECTIONS {{}}", needed, count)
    mariadb.execute(f"DROP USER {user}")


def captured_by(limited: Limited, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CapturedDatabase:
    tables = [f"{limited.database.namespace}.t"]
    captured = CapturedDatabase(limited.database, folder, monkeypatch, tables=tables, url=limited.url)
    dump = captured.config.dump.model_copy(update={"workers": WORKERS})
    captured.config = captured.config.model_copy(update={"dump": dump})
    return captured


@contextmanager
def all_of_an_agent(captured: CapturedDatabase) -> Iterator[None]:
    """Run an agent with what its process has besides the capture."""
    with (
        closing(open_gauge(captured.config)),
        listening(open_probe(captured.config), lambda: None, 30),
        captured.running(),
    ):
        yield


def checked(config: Config) -> Finding:
    with closing(open_gauge(config)) as gauge:
        (found,) = [each for each in gauge.check(config.dump.workers) if each.name == "connections"]
    return found


def assert_what_check_says_is_enough(
    limited: Limited, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured = captured_by(limited, folder, monkeypatch)
    limited.allow(limited.needed - 1)
    found = checked(captured.config)
    assert (found.state, f"up to {limited.needed}" in found.detail) == ("failed", True)
    assert found.fix is not None
    limited.database.execute(found.fix.rstrip(";"))
    found = checked(captured.config)
    assert (found.state, found.fix) == ("ok", None)
    most, done = [0], threading.Event()
    counting = threading.Thread(target=lambda: count_until(done, limited.used, most), daemon=True)
    counting.start()
    with all_of_an_agent(captured):
        captured.wait_settled()
        captured.dump()
    done.set()
    counting.join(20)
    assert limited.needed - 3 <= most[0] <= limited.needed
    assert "too many" not in caplog.text


def count_until(done: threading.Event, count: Callable[[], int], most: list[int]) -> None:
    while not done.wait(0.01):
        most[0] = max(most[0], count())


def assert_too_few_only_delay(
    limited: Limited, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured = captured_by(limited, folder, monkeypatch)
    limited.allow(FEW)
    with caplog.at_level(logging.WARNING), all_of_an_agent(captured):
        wait_until(lambda: "says how many an agent needs" in caplog.text, "dumps lack connections")
        limited.allow(limited.needed)
        newest = captured.wait_settled()
    assert {state.state for state in newest.tables.values()} == {"captured"}
    assert [dump.state for dump in newest.dumps] == ["complete"]


def test_an_agent_of_postgres_needs_the_connections_that_check_says(
    of_postgres: Limited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert_what_check_says_is_enough(of_postgres, tmp_path, monkeypatch, caplog)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_an_agent_of_mysql_needs_the_connections_that_check_says(
    of_mysql: Limited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert_what_check_says_is_enough(of_mysql, tmp_path, monkeypatch, caplog)


def test_where_postgres_has_too_few_connections_dumps_wait_for_them(
    of_postgres: Limited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert_too_few_only_delay(of_postgres, tmp_path, monkeypatch, caplog)


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_where_mysql_has_too_few_connections_dumps_wait_for_them(
    of_mysql: Limited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert_too_few_only_delay(of_mysql, tmp_path, monkeypatch, caplog)
