"""Connections to PostgreSQL, and the translation of its errors into ours.

Passwords never appear in a message. Invariants:

- Every session, for the log and for dumps, formats values as the same text, since both land through one
  codec. No setting of the role, the database or the environment changes that.
- Only the url decides where a session connects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from threading import Thread
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extensions import make_dsn, parse_dsn

from connector.errors import (
    LIMIT_HINT,
    ConfigurationError,
    DeltatideError,
    PreconditionError,
    TransientError,
    UnreachableError,
)
from connector.listening import SessionProbe
from connector.postgres.driver.interface import CopyError
from connector.silence import SILENCE_SECONDS, Awaited, answered, logged_in, note_open, shut_down

SESSION = {
    # Whoever may create in another schema can't have operators or functions of theirs run with our rights,
    # and types have one name. What is elsewhere, we name with its schema.
    "search_path": "pg_catalog",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "row_security": "off",  # then the server refuses to read a table if a policy hides some of its rows
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "gin_fuzzy_search_limit": "0",
    "client_min_messages": "warning",
    "exit_on_error": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # The agent's own few writes must not hang when no standby answers.
    "synchronous_commit": "local",
    # A role's own limits are for people; a dump's SELECT may well take long.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "constraint_exclusion": "partition",  # else a SELECT of a partition locks its root, too
    "jit": "off",  # with 10,000 tables, 90 ms to compile what then reads the catalog for 2 ms
}
"""Settings that determine a value's text, a name's meaning, a session's life or its pace. Set in every
session, after the settings of the role, the database and the url's `options`.
"""

_LATER_SETTINGS = {"transaction_timeout": (170000, "0")}
"""Settings that only newer servers have, with the first version."""

# The number of decimals is part of the value, which counts the smallest unit; the rest is formatting.
_LC_MONETARY = """CASE WHEN pg_catalog.scale(0::pg_catalog.money::pg_catalog.numeric) OPERATOR(pg_catalog.=) 2
    THEN 'C' ELSE pg_catalog.current_setting('lc_monetary') END"""

IGNORED_VARIABLES = (
    *("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"),
    *("PGTARGETSESSIONATTRS", "PGLOADBALANCEHOSTS", "PGCONNECT_TIMEOUT", "PGAPPNAME"),
    *("PGOPTIONS", "PGCLIENTENCODING", "PGDATESTYLE", "PGTZ", "PGGEQO"),
)
"""libpq's variables for where to connect and how a session behaves, which only the configuration decides.
Those for secrets, TLS and Kerberos (PGPASSWORD, PGPASSFILE, PGSSL..., PGGSS..., PGCHANNELBINDING) apply.
"""

STOPPING_SECONDS = 0.2
"""How often a query that may take long looks whether the agent is stopping."""

CONNECT_SECONDS = 10
"""An unreachable host must be reported well before an operator loses patience."""

# Connection errors carry no SQLSTATE; text that comes from libpq does not depend on the server's language.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"authentication failed|no password supplied", "check user and password in source.url"),
    (r"is not permitted to log in", "ALTER ROLE {user} LOGIN"),
    (r'database ".*" does not exist', "check the database's name in source.url"),
    (r'role ".*" does not exist', "check the user's name in source.url"),
    (r"no pg_hba\.conf entry", "add a line for this user, database and address to pg_hba.conf"),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        "ALTER ROLE {user} REPLICATION",
    ),
    (r"permission denied for database", "GRANT CONNECT ON DATABASE {database} TO {user}"),
    (r"does not match host name", "use the host name of the server's certificate in source.url"),
    (
        r"certificate verify failed|root certificate file|sslrootcert",
        "set sslrootcert in source.url to the certificate of the CA that signed the server's",
    ),
    (r"server does not support SSL|certificate|sslmode", "check sslmode in source.url"),
    (r"^invalid (port|integer|connection|\w+ value)", "fix source.url"),
)
_UNREACHABLE = (
    r"could not (translate host name|create socket|send|receive)|timeout expired|timed out"
    # A proxy or a tunnel takes the connection and closes it, since there is no server behind it.
    r"|server closed the connection|[Cc]onnection reset by peer|Broken pipe|SSL SYSCALL error|unexpected eof"
    r"|SSL connection has been closed|received invalid response|expected authentication request"
    # PgBouncer answers for a server that it can't reach; otherwise it cites what that one said.
    r"|login has been failing, cached error:\s*\(server_login_retry\)"
)
_ANSWER = r"(FATAL|ERROR):"
_CONNECT_FAILED = "Is the server running"
"""libpq appends this whatever the network's error is, which it gives in words only."""

_TOO_MANY = r"too many (clients|connections)|connection slots are reserved|max_wal_senders"

_ADVICE = (
    _CONNECT_FAILED,
    "Either provide the file",
    "This probably means the server terminated",
    "before or while processing",
)
"""What libpq appends after the line with the reason."""

_TRANSIENT_STATES = ("40", "53", "57", "55006", "55P03", "25P03", "58030", "72")
"""Rollback, resources, operator intervention (shutdown, recovery, a statement that somebody
canceled, since no timeout of ours does), object in use, lock, idle, I/O, a snapshot that is too old."""


class _Cursor(Cursor):
    """Notes who waits for the server."""

    def execute(self, query: Any, vars: Any = None) -> None:
        """Run a statement."""
        with self.connection.awaited:  # type: ignore[attr-defined]
            super().execute(query, vars)


class _Connection(Connection):
    """Has a note of who waits for the server. `session`: what that knows it by, if that is certain."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.awaited = Awaited()
        self.session: Hashable = None
        super().__init__(*given, **named)


def parse_url(url: str) -> dict[str, str]:
    """Parse a connection URL's parameters; `ConfigurationError` if libpq can't."""
    try:
        return {name: str(value) for name, value in parse_dsn(url).items()}
    except psycopg2.ProgrammingError:
        # libpq's message repeats the URL, password included.
        raise ConfigurationError(
            "source.url is not a PostgreSQL url", hint="write postgresql://user:password@host:5432/database"
        ) from None


def connect(url: str, name: str, *, replication: bool = False) -> Connection:
    """Open an autocommit connection with our session settings; `name` is shown in pg_stat_activity.

    Raises `UnreachableError` if the server can't be reached, `TransientError` if it is busy,
    `PreconditionError` if it refuses. Removes `IGNORED_VARIABLES` from the process's environment, since libpq
    always reads it.
    """
    for variable in IGNORED_VARIABLES:
        os.environ.pop(variable, None)
    parameters = parse_url(url)
    ours: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        # Unacknowledged data: a dead peer must not hold up a commit for the kernel's 15 minutes.
        "tcp_user_timeout": 30000,
    }
    fixed: dict[str, Any] = {
        "application_name": name,
        "client_encoding": "UTF8",
        "options": f"{parameters.get('options', '')} {_startup_options()}".strip(),
    }
    if replication:
        fixed["replication"] = "database"
    hosts = (parameters.get("hostaddr") or parameters.get("host", "")).split(",")
    limit = parameters.get("connect_timeout", str(CONNECT_SECONDS))
    seconds = int(limit) if limit.isdecimal() and int(limit) else SILENCE_SECONDS
    try:
        dsn = make_dsn(**{**ours, **parameters, **fixed})
        connection = logged_in(
            lambda: psycopg2.connect(dsn, connection_factory=_Connection, cursor_factory=_Cursor),
            hosts,
            seconds + 1,  # which libpq counts as whole ones
            close,
        )
    except (psycopg2.Error, TimeoutError) as error:
        raise refused(error, parameters) from None
    connection.autocommit = True
    note_open(name, connection, Connection.fileno)
    doing = "setting up a session"
    with driver_errors(doing), answered(connection.fileno(), doing):
        settings = one_row(connection, _session_query(connection.server_version))
    assert settings is not None
    pid, begun = settings[-2:]
    if pid == connection.info.backend_pid:  # else a pooler's, which may let other processes answer
        connection.session = pid, begun
        note_open(name, connection, Connection.fileno, connection.session)
    return connection


_BEGUN = """SELECT extract(epoch FROM backend_start)::pg_catalog.text
    FROM (SELECT pg_catalog.set_config('role', 'none', true)) AS own (role),
    pg_catalog.pg_stat_get_activity(coalesce(pg_catalog.pg_backend_pid(), own.role::pg_catalog.int4))"""
"""When a session began: with its process id, it has no other's. See `_SESSIONS`."""

_SESSIONS = """(SELECT set_config('role', 'none', true)) AS own (role),
    pg_stat_get_activity(nullif(own.role, 'none')::int)"""
"""All sessions, as the role that has logged in: one that acts as another (SET ROLE, also as a setting of the
role or the url) may neither see the states of its own sessions nor end them. After the query it does again.
"""

_ON_SESSION = f"""SELECT {{}}(pid) FROM {_SESSIONS}
    WHERE pid = %s AND extract(epoch FROM backend_start)::text = %s"""
"""Signals a session's process, if it is still there; never another one with its number."""


def _startup_options() -> str:
    """Build the settings that must apply from the start of a session, since the role's could end it early."""
    return " ".join("-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in SESSION.items())


def _session_query(version: int) -> str:
    """Build one statement that sets everything and that replication connections of every version accept."""
    later = {name: value for name, (since, value) in _LATER_SETTINGS.items() if version >= since}
    values = {name: literal(value) for name, value in {**SESSION, **later}.items()}
    values |= {"lc_monetary": _LC_MONETARY}
    calls = (f"pg_catalog.set_config('{name}', {value}, false)" for name, value in values.items())
    return f"SELECT {', '.join(calls)}, pg_catalog.pg_backend_pid(), ({_BEGUN})"


def refused(error: Exception, parameters: dict[str, str]) -> DeltatideError:
    """Convert a failure to connect into one of our errors."""
    user, database = parameters.get("user", ""), parameters.get("dbname", "")
    host, port = parameters.get("host", "localhost"), parameters.get("port", "5432")
    where = f"{host}:{port}/{database} as {user or 'default user'}"
    text = one_line(error, parameters.get("password"))
    for pattern, hint in _REFUSALS:
        if re.search(pattern, text):
            fix = hint.format(user=quote(user), database=quote(database))
            return PreconditionError(f"postgres at {where}: {text}", hint=fix)
    reached = _CONNECT_FAILED not in str(error) or re.search(_ANSWER, str(error))
    if not reached or re.search(_UNREACHABLE, text):
        return UnreachableError(
            f"can't reach postgres at {where}: {text}",
            hint="check host and port in source.url, and the network",
        )
    return TransientError(
        f"postgres at {where}: {text}", hint=LIMIT_HINT if re.search(_TOO_MANY, text) else None
    )


def one_line(error: Exception, password: str | None = None) -> str:
    """Return the line that states the reason, out of libpq's several."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    reason = next((line for line in lines if re.search(_ANSWER, line)), None)
    if reason is None:
        meaningful = [line for line in lines if line and not line.startswith(_ADVICE)]
        reason = meaningful[-1] if meaningful else type(error).__name__
    text = re.sub(r"^.*?(FATAL|ERROR):\s+|^connection to server .*? failed: ", "", reason)
    if password and len(password) > 2:
        text = text.replace(password, "***")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


@contextmanager
def driver_errors(doing: str, transient: tuple[str, ...] = ()) -> Iterator[None]:
    """Convert the driver's errors on an open connection into ours, prefixed with what was being done.

    Lost connections, busy servers and SQLSTATEs that begin with one of `transient` become `TransientError`,
    everything else `PreconditionError`.
    """
    try:
        yield
    except CopyError as error:
        raise failed(doing, str(error), error.sqlstate, transient) from error
    except psycopg2.Error as error:
        text = error.diag.message_primary or one_line(error)
        raise failed(doing, text, sqlstate_of(error), transient) from error


def sqlstate_of(error: psycopg2.Error) -> str | None:
    """Return the server's SQLSTATE; None for a lost connection, "?" if the driver itself refused.

    The server's errors all have one. Without one, and where libpq does not call the connection broken yet,
    psycopg2 raises a bare `DatabaseError` for what libpq met instead of an answer: the end of a TLS
    connection, what is no message, or nothing at all.
    """
    bare = type(error) is psycopg2.DatabaseError
    lost = bare or isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return error.pgcode or (None if lost else "?")


def failed(doing: str, message: str, sqlstate: str | None, transient: tuple[str, ...] = ()) -> DeltatideError:
    """Choose the error class by SQLSTATE; None means a lost connection, as a proxy says by class 08."""
    if sqlstate is None or sqlstate.startswith("08"):
        return UnreachableError(f"{doing}: {message}")
    if sqlstate.startswith(_TRANSIENT_STATES + transient):
        return TransientError(f"{doing}: {message}")
    return PreconditionError(f"{doing}: {message}", hint="run `deltatide check`")


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string, whatever standard_conforming_strings is."""
    body = text.replace("'", "''")
    return f" E'{body.replace(chr(92), chr(92) * 2)}'" if "\\" in body else f"'{body}'"


def one_row(connection: Connection, query: str, parameters: Any = None) -> tuple[Any, ...] | None:
    """Run a query and return its first row."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def one_row_unless(
    stopping: Callable[[], bool],
    connection: Connection,
    query: str,
    connect: Callable[[], Connection],
) -> tuple[Any, ...] | None:
    """Run a query that may take as long as others' transactions, as `one_row`; cancel it once `stopping`.

    It runs in a thread: the driver waits without returning to Python, where a signal is handled. Another
    session, which `connect` opens, cancels it: the driver's own cancel stops all of Python until the server
    has answered, which a silent one never does. One that refuses another session does, and needs none for it.
    Nor does a pooler, which alone knows what process runs the query: its own number may be another's session.
    """
    canceling: Thread | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="query") as thread:
        running = thread.submit(one_row, connection, query)
        while wait([running], STOPPING_SECONDS).not_done:
            if stopping() and (canceling is None or not canceling.is_alive()):
                canceling = Thread(target=_cancel, args=(connection, connect), name="cancel", daemon=True)
                canceling.start()
        return running.result()


def _cancel(connection: Connection, connect: Callable[[], Connection]) -> None:
    session: Any = getattr(connection, "session", None)
    with suppress(DeltatideError, psycopg2.Error):
        if session is None:
            connection.cancel()
            return
        try:
            with closing(connect()) as another:
                one_row(another, _ON_SESSION.format("pg_cancel_backend"), session)
        except DeltatideError as error:
            if error.hint == LIMIT_HINT:
                connection.cancel()


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Run all queries of the block in one snapshot, except functions that read the catalog on their own."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not connection.closed:
                cursor.execute("ROLLBACK")


def all_rows(connection: Connection, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def ask(connection: Connection) -> None:
    """Wait for any answer; `UnreachableError` if the connection is lost."""
    with driver_errors("asking whether the server answers"):
        one_row(connection, "SELECT 1")


_AT_WORK = f"""
    SELECT pid, extract(epoch FROM backend_start)::text FROM {_SESSIONS}
    WHERE pid = ANY (%s) AND coalesce(lower(wait_event), '') NOT IN (
        'clientread', 'clientwrite', 'walsendermain', 'walsenderwaitforwal', 'walsenderwritedata')"""
"""Sessions whose processes don't wait for their clients, as one that has sent all log does, too."""


def idle_sessions(connection: Connection, sessions: Collection[Any]) -> set[Hashable]:
    """Return the sessions (as noted by `connect`) that the server no longer has, or that wait for us.

    None on a standby: an address that leads to several servers may lead elsewhere now.
    """
    with driver_errors("looking for our sessions"):
        standby = one_row(connection, "SELECT pg_is_in_recovery()")
        at_work = set(all_rows(connection, _AT_WORK, ([pid for pid, _ in sessions],)))
    return set() if standby == (True,) else set(sessions) - at_work


def end_session(connection: Connection, session: Any) -> None:
    """End a session's process, which may hold locks and a snapshot for as long as TCP takes."""
    with driver_errors("ending a session of ours"):
        one_row(connection, _ON_SESSION.format("pg_terminate_backend"), session)


def close(connection: Connection | None) -> None:
    """Close a connection in any state."""
    if connection is not None:
        try:
            connection.close()
        except psycopg2.Error:
            pass


def cut(connection: Connection | None) -> None:
    """Close a connection for which another thread may be waiting, which finds it ended.

    Closing alone waits for that thread, and so for the server.
    """
    if connection is not None:
        with suppress(psycopg2.Error, OSError):  # it has ended by itself
            shut_down(connection.fileno())
    close(connection)


def probe(url: str, name: str) -> SessionProbe[Connection]:
    """Return a session that asks whether the server answers, and on which connections it works for us."""
    return SessionProbe(lambda: connect(url, name), ask, cut, idle_sessions, end_session)
