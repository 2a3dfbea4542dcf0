"""Connections to PostgreSQL, and its errors in our own families. Passwords never get into a message.

Invariant: every session, the log's and the dump's, writes values as the same text, since both land by one
codec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import make_dsn, parse_dsn

from connector.errors import ConfigurationError, DeltatideError, PreconditionError, TransientError
from connector.postgres.libpq import CopyError

SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # A role's own limits are for people; a dump's SELECT may rightly take long.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
CONNECT_SECONDS = 10
"""An unreachable host must be noticed well before an operator loses patience."""

# Connection errors carry no SQLSTATE; the server's text does not depend on its language where libpq speaks.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"password authentication failed|no password supplied", "check user and password in source.url"),
    (r'database ".*" does not exist', "check the database's name in source.url"),
    (r'role ".*" does not exist', "check the user's name in source.url"),
    (r"no pg_hba\.conf entry", "add a line for this user, database and address to pg_hba.conf"),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        "ALTER ROLE {user} REPLICATION",
    ),
    (r"permission denied for database", "GRANT CONNECT ON DATABASE {database} TO {user}"),
    (r"server does not support SSL|certificate|sslmode", "check sslmode in source.url"),
)
_UNREACHABLE = (
    r"could not translate host name|[Cc]onnection refused|timeout expired|timed out|No route to host"
    r"|could not connect|No such file or directory|Network is unreachable"
)
_TRANSIENT_STATES = ("08", "40", "53", "57P", "55006", "55P03", "25P03", "58030")
"""Connection, rollback, resources, shutdown and recovery, object in use, lock, idle, I/O."""


def parse_url(url: str) -> dict[str, str]:
    """Read a connection URL's parameters; `ConfigurationError` when libpq can't."""
    try:
        return {name: str(value) for name, value in parse_dsn(url).items()}
    except psycopg2.ProgrammingError:
        # libpq's message repeats the URL, password and all.
        raise ConfigurationError(
            "source.url is not a PostgreSQL url", hint="write postgresql://user:password@host:5432/database"
        ) from None


def connect(url: str, name: str, *, replication: bool = False) -> Connection:
    """Open an autocommit connection with our session settings; `name` is shown in pg_stat_activity.

    Raises `TransientError` where the server can't be reached or is busy, `PreconditionError` where it
    refuses.
    """
    parameters = parse_url(url)
    settings = " ".join(f"-c {setting}={value}" for setting, value in SESSION.items())
    ours: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        # Sent data that nobody acknowledges: a dead peer must not hold a commit for the kernel's 15 minutes.
        "tcp_user_timeout": 30000,
    }
    fixed: dict[str, Any] = {
        "application_name": name,
        "options": f"{parameters.get('options', '')} {settings}".strip(),
    }
    if replication:
        fixed["replication"] = "database"
    try:
        connection = psycopg2.connect(make_dsn(**{**ours, **parameters, **fixed}))
        connection.autocommit = True
    except psycopg2.Error as error:
        raise refused(error, parameters) from None
    return connection


def refused(error: Exception, parameters: dict[str, str]) -> DeltatideError:
    """Turn a failure to connect into one of our errors."""
    user, database = parameters.get("user", ""), parameters.get("dbname", "")
    host, port = parameters.get("host", "localhost"), parameters.get("port", "5432")
    where = f"{host}:{port}/{database} as {user or 'default user'}"
    text = _one_line(error, parameters.get("password"))
    for pattern, hint in _REFUSALS:
        if re.search(pattern, text):
            mend = hint.format(user=quote(user), database=quote(database))
            return PreconditionError(f"postgres at {where}: {text}", hint=mend)
    if re.search(_UNREACHABLE, text):
        return TransientError(
            f"can't reach postgres at {where}: {text}",
            hint="check host and port in source.url, and the network",
        )
    return TransientError(f"postgres at {where}: {text}")


def _one_line(error: Exception, password: str | None = None) -> str:
    """Give the line that tells the reason, of the several that libpq writes around it."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    reason = next((line for line in lines if re.search("(FATAL|ERROR):", line)), None)
    if reason is None:  # "Is the server running on that host and accepting TCP/IP connections?" follows it
        told = [line for line in lines if line and not line.startswith("Is the server running")]
        reason = told[-1] if told else type(error).__name__
    text = re.sub(r"^.*?(FATAL|ERROR):\s+|^connection to server .*? failed: ", "", reason)
    if password and len(password) > 2:
        text = text.replace(password, "***")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Turn the driver's errors on an open connection into ours, telling what was being done.

    Lost connections and busy servers are `TransientError`, everything else `PreconditionError`.
    """
    try:
        yield
    except CopyError as error:
        raise failed(doing, str(error), error.sqlstate) from error
    except psycopg2.Error as error:
        text = error.diag.message_primary or _one_line(error)
        lost = error.pgcode is None and isinstance(
            error, (psycopg2.OperationalError, psycopg2.InterfaceError)
        )
        raise failed(doing, text, None if lost else error.pgcode or "?") from error


def failed(doing: str, message: str, sqlstate: str | None) -> DeltatideError:
    """Choose the family of an error by its SQLSTATE; None stands for a lost connection."""
    if sqlstate is None or sqlstate.startswith(_TRANSIENT_STATES):
        return TransientError(f"{doing}: {message}")
    return PreconditionError(f"{doing}: {message}", hint="run `deltatide check`")


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string, whatever standard_conforming_strings says."""
    body = text.replace("'", "''")
    return f" E'{body.replace(chr(92), chr(92) * 2)}'" if "\\" in body else f"'{body}'"


def one_row(connection: Connection, query: str, parameters: Any = None) -> tuple[Any, ...] | None:
    """Run a query and give its first row."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def all_rows(connection: Connection, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Run a query and give its rows."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def close(connection: Connection | None) -> None:
    """Close a connection, whatever state it is in."""
    if connection is not None:
        try:
            connection.close()
        except psycopg2.Error:
            pass
