"""Rows of COPY from real servers, by the socket, by libpq and by psycopg2: the same rows, errors and ends."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from connector.postgres.codec.copytext import split_rows
from connector.postgres.driver import by_libpq, by_psycopg2
from connector.postgres.driver.copysocket import SocketCopy
from connector.postgres.driver.interface import CopyError, Rows
from connector.postgres.driver.libpq import CopyStream, TextCopyStream
from connector.postgres.driver.rowcopy import BUFFER_BYTES, RowCopy
from tests.support.servers.postgres import Database, PostgresServers, postgres_versions
from tests.support.waiting import wait_until

OPENERS: dict[str, Callable[[Connection], Rows]] = {
    "socket": lambda connection: SocketCopy(CopyStream(connection)),
    "libpq": lambda connection: RowCopy(TextCopyStream(connection)),
    "psycopg2": by_psycopg2.open_rows,
}


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    opened = psycopg2.connect(database.url)
    opened.autocommit = True
    yield opened
    opened.close()


@pytest.fixture(params=list(OPENERS))
def opener(request: pytest.FixtureRequest) -> Callable[[Connection], Rows]:
    return OPENERS[request.param]


def read_all(copy: Rows, query: str, columns: int) -> list[tuple[bytes | None, ...]]:
    copy.start(f"COPY ({query}) TO STDOUT")
    rows: list[tuple[bytes | None, ...]] = []
    while not copy.done:
        cells = split_rows(copy.read(), columns)
        rows += zip(*(cell.to_pylist() for cell in cells), strict=True)
    return rows


def one(connection: Connection, query: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]  # type: ignore[index]


def test_an_unencrypted_connection_is_read_by_its_socket(connection: Connection) -> None:
    assert isinstance(by_libpq.open_rows(connection), SocketCopy)


def test_rows_of_all_lengths_come_whole_and_the_connection_is_usable_after(
    connection: Connection, opener: Callable[[Connection], Rows]
) -> None:
    # Lengths around 256 put every byte, a newline too, into the messages' headers; each row begins with a d.
    query = "SELECT repeat('d', n), E'a\\n\\tb\\\\', NULL FROM generate_series(1, 3000) n"
    rows = read_all(opener(connection), query, 3)
    assert rows == [(b"d" * n, b"a\n\tb\\", None) for n in range(1, 3001)]
    assert one(connection, "SELECT 7") == 7
    assert read_all(opener(connection), "SELECT 1", 1) == [(b"1",)]


def test_a_row_larger_than_the_buffer_and_small_ones_around_it(
    connection: Connection, opener: Callable[[Connection], Rows]
) -> None:
    query = "SELECT n, repeat('ä', CASE n WHEN 5 THEN 9000000 ELSE 3 END) FROM generate_series(1, 9) n"
    rows = read_all(opener(connection), query, 2)
    assert [(number, len(text or b"")) for number, text in rows] == [
        (b"%d" % n, 18_000_000 if n == 5 else 6) for n in range(1, 10)
    ]


def test_many_rows_come_in_order(connection: Connection, opener: Callable[[Connection], Rows]) -> None:
    rows = read_all(opener(connection), "SELECT n, md5(n::text) FROM generate_series(1, 200000) n", 2)
    assert [int(number or 0) for number, _ in rows] == list(range(1, 200_001))


def test_no_rows_are_an_end(connection: Connection, opener: Callable[[Connection], Rows]) -> None:
    assert read_all(opener(connection), "SELECT 1 WHERE false", 1) == []
    assert one(connection, "SELECT 7") == 7


def test_notices_between_rows_are_passed_over(
    connection: Connection, opener: Callable[[Connection], Rows]
) -> None:
    one(
        connection,
        "CREATE FUNCTION pg_temp.loud(n int) RETURNS int LANGUAGE plpgsql AS"
        " $$BEGIN RAISE WARNING E'd\\n%', n; RETURN n; END$$; SELECT 1",
    )
    rows = read_all(opener(connection), "SELECT pg_temp.loud(n), 'd' FROM generate_series(1, 500) n", 2)
    assert rows == [(b"%d" % n, b"d") for n in range(1, 501)]


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("SELECT nothing FROM generate_series(1, 9)", "42703"),
        ("SELECT 1 / (50000 - n) FROM generate_series(1, 90000) n", "22012"),
    ],
)
def test_a_refusal_before_or_between_rows_is_the_servers_own(
    connection: Connection, opener: Callable[[Connection], Rows], query: str, state: str
) -> None:
    with pytest.raises(CopyError) as refused:
        read_all(opener(connection), query, 1)
    assert refused.value.sqlstate == state
    assert one(connection, "SELECT 7") == 7


def test_a_terminated_session_is_an_error_and_no_end(
    connection: Connection, database: Database, opener: Callable[[Connection], Rows]
) -> None:
    pid = connection.info.backend_pid
    query = "SELECT n, repeat('x', 5000), pg_sleep(0.01) FROM generate_series(1, 100000) n"
    threading.Timer(0.3, lambda: database.execute(f"SELECT pg_terminate_backend({pid})")).start()
    with pytest.raises(CopyError):
        read_all(opener(connection), query, 3)


def test_rows_that_nobody_takes_stay_on_the_server_until_the_reader_closes(
    connection: Connection, database: Database, opener: Callable[[Connection], Rows]
) -> None:
    sent: list[list[tuple[int]]] = []
    pid, copy = connection.info.backend_pid, opener(connection)

    def waits() -> bool:
        sent.append(
            database.execute("SELECT bytes_processed FROM pg_stat_progress_copy WHERE pid = %s", (pid,))
        )
        return len(sent) > 9 and all(each == sent[-1] for each in sent[-9:])

    copy.start("COPY (SELECT repeat('x', 5000) FROM generate_series(1, 1000000)) TO STDOUT")
    copy.read()
    wait_until(waits, "the server waits")
    assert BUFFER_BYTES < sent[-1][0][0] < 32 << 20
    copy.close()
    wait_until(
        lambda: not database.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)), "it is told"
    )
    assert connection.closed


def test_a_reader_that_closes_while_the_server_is_silent_does_not_wait_for_it(
    connection: Connection, database: Database
) -> None:
    copy = by_psycopg2.open_rows(connection)
    copy.start("COPY (SELECT pg_sleep(600)) TO STDOUT")
    sleeps = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = %s"
    wait_until(lambda: database.execute(sleeps, (connection.info.backend_pid,)), "the server sleeps")
    copy.close()
    assert connection.closed
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")


@pytest.fixture
def encrypted(postgres_servers: PostgresServers) -> Iterator[Connection]:
    """A connection under TLS, to the first server that was built with it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH to make a certificate with")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -subj /CN=localhost"
    for version in postgres_versions():
        server = postgres_servers.get(version)
        with closing(psycopg2.connect(server.url())) as session, session.cursor() as cursor:
            session.autocommit = True
            try:
                cursor.execute(f"COPY (SELECT 1) TO PROGRAM 'umask 077; {make} 2> /dev/null'")
                cursor.execute("ALTER SYSTEM SET ssl = on")
            except psycopg2.errors.InvalidParameterValue:
                continue
            cursor.execute("SELECT pg_reload_conf()")
            with closing(
                wait_until(lambda url=server.url(): _under_tls(url), "the server offers TLS")
            ) as found:
                yield found
            cursor.execute("ALTER SYSTEM RESET ssl")
            cursor.execute("SELECT pg_reload_conf()")
            return
    pytest.skip("no PostgreSQL here was built with TLS")


def _under_tls(url: str) -> Connection | None:
    try:
        connection = psycopg2.connect(url, sslmode="require")
    except psycopg2.OperationalError:
        return None
    connection.autocommit = True
    return connection


def test_an_encrypted_connection_is_never_read_by_its_socket(encrypted: Connection) -> None:
    for open_rows in (by_libpq.open_rows, by_psycopg2.open_rows):
        copy = open_rows(encrypted)
        assert isinstance(copy, RowCopy)
        rows = read_all(copy, "SELECT n, repeat('d', n % 300) FROM generate_series(1, 90000) n", 2)
        assert rows == [(b"%d" % n, b"d" * (n % 300)) for n in range(1, 90_001)]
