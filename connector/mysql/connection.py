"""Connections to MySQL and MariaDB, and the translation of their errors into ours.

No message shows a password. Invariants:

- Every session reads in UTC and with the same `sql_mode`, since log and dump land through one codec. It
  writes every string literal as hexadecimal digits (`literal`), so no sql_mode or character set matters.
- A session is encrypted and the server's certificate checked as the url asks (`ssl_mode`, with the meaning it
  has for MySQL's own programs), or there is no session: nothing falls back to less.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from connector.errors import (
    LIMIT_HINT,
    ConfigurationError,
    DeltatideError,
    PreconditionError,
    TransientError,
    UnreachableError,
)
from connector.silence import SILENCE_SECONDS, Awaited, answered, logged_in, note_open, shut_down

CONNECT_SECONDS = 10
"""An unreachable host must be reported well before an operator loses patience."""

LOCK_SECONDS = 10
"""A SELECT waits this long for an ALTER of its table, then is retried."""

IDLE_SECONDS = 28_800
"""How long a session may idle, or be read slowly, before the server considers it dead."""

_SESSION = (
    "time_zone = '+00:00'",
    "sql_mode = 'ALLOW_INVALID_DATES'",
    f"lock_wait_timeout = {LOCK_SECONDS}",
    f"innodb_lock_wait_timeout = {LOCK_SECONDS}",
    f"wait_timeout = {IDLE_SECONDS}",
    f"net_write_timeout = {IDLE_SECONDS}",
    "group_concat_max_len = 1000000",
    "sql_select_limit = 18446744073709551615",
    "sql_big_selects = ON",
    "sql_safe_updates = OFF",
    "sql_auto_is_null = OFF",
    "completion_type = NO_CHAIN",
    "sql_quote_show_create = ON",
)
"""Settings whose defaults differ by server, some so much that a dump would miss rows, or a check of the
catalog a foreign key. Any user may set them.
"""

_SESSION_WHERE_KNOWN = {
    "max_execution_time": "0",
    "max_statement_time": "0",
    "query_cache_type": "OFF",
    "show_gipk_in_create_table_and_information_schema": "ON",
    "system_versioning_asof": "DEFAULT",
    "transaction_read_only": "OFF",
    "tx_read_only": "OFF",
}
"""The same for variables that not all servers and releases have.

A statement that MariaDB answers from its cache of queries locks no table, and its rows may be older than the
snapshot.
"""

_IDENTITY = ("server_uuid", "server_id", "gtid_domain_id", "pseudo_thread_id")  # whose session it is

_TLS = frozenset(("ssl_ca", "ssl_cert", "ssl_key", "ssl_mode", "ssl_verify_cert", "ssl_verify_identity"))
_PARAMETERS = _TLS | {"unix_socket"}

_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")  # from the laxest

_LOST = frozenset((0, 2000, 2002, 2003, 2006, 2013, 2014, 2055))
_KEPT_WARNINGS = "max_error_count = 64"
"""MariaDB says only in a warning what its catalog leaves out. On MySQL, not every user may set this."""

_CLUSTER_LOST = 1047  # a Galera node refuses all statements

_TOO_MANY = (1040, 1203, 1226)  # connections of the server, or of the user

_TRANSIENT = _LOST | {1040, 1053, 1077, 1078, 1079, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317}
_TRANSIENT |= {_CLUSTER_LOST, 1021, 1037, 1041, 1135}
READ_ONLY = frozenset((1290, 1836))
"""A write on a server that was made read-only, as in a switchover. A new connection shows its state now."""

_TRANSIENT |= READ_ONLY | {1412, 1615, 1927, 1928, 1969, 3024, 3032, 3100, 3169}
"""Too many connections, shutdown, network, locks, killed, out of disk space, memory or threads, a changed
definition, temporarily read-only, time."""

_REFUSALS = {
    1044: "GRANT the user rights on the database in source.url, or omit the database",
    1045: "check user and password in source.url",
    1049: "check the database's name in source.url",
    1130: "CREATE USER for the host that the agent connects from",
    1142: "run `deltatide check`, which names the missing rights",
    1227: "run `deltatide check`, which names the missing rights",
    1698: "give the user a password: ALTER USER ... IDENTIFIED BY ...",
    2026: "configure ssl_cert and ssl_key at the server, or set a weaker ssl_mode in source.url",
    3118: "ALTER USER ... ACCOUNT UNLOCK",
}


class _Connection(Connection):  # type: ignore[misc]  # which has no types
    """Notes who waits for the server. `session`: what the server knows it by, if that is certain."""

    def __init__(self, **given: Any) -> None:
        self.awaited = Awaited()
        self.session: Hashable = None
        super().__init__(**given)

    def _read_bytes(self, num_bytes: int) -> bytes:
        with self.awaited:
            found: bytes = super()._read_bytes(num_bytes)
            return found


def parse_url(url: str) -> dict[str, Any]:
    """Parse a url into the driver's parameters; `ConfigurationError` if it is not a MySQL or MariaDB url."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        raise ConfigurationError("source.url is not a MySQL url", hint=_URL_HINT) from None
    if parts.scheme not in ("mysql", "mariadb"):
        raise ConfigurationError("source.url is not a MySQL url", hint=_URL_HINT)
    found: dict[str, Any] = {
        "host": unquote(parts.hostname or "localhost"),
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.strip("/")) or None,
    }
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in given.items():
        if name not in _PARAMETERS:
            known = ", ".join(sorted(_PARAMETERS))
            raise ConfigurationError(f"source.url has an unknown parameter {name}", hint=f"known are {known}")
        if not value:
            hint = "set it, or leave it out; a variable in the url may be empty"
            raise ConfigurationError(f"source.url: parameter {name} is empty", hint=hint)
    return {**found, **{n: v for n, v in given.items() if n not in _TLS}, **_encryption(given)}


_URL_HINT = "write mysql://user:password@host:3306/database"


def _encryption(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver's parameters for the strictest mode that a url asks for.

    `ssl_ca` asks for `verify_ca`, `ssl_cert` for `required`; the driver's own names are accepted, too.
    `ConfigurationError` for an unknown mode, or a file that can't be used.
    """
    asked = {given.get("ssl_mode", "preferred").lower()}
    if unknown := asked.difference(_MODES):
        raise ConfigurationError(
            f"source.url has an unknown ssl_mode {unknown.pop()!r}", hint=f"known are {', '.join(_MODES)}"
        )
    implied = {"ssl_ca": "verify_ca", "ssl_cert": "required"}
    implied |= {"ssl_verify_cert": "verify_ca", "ssl_verify_identity": "verify_identity"}
    asked |= {mode for name, mode in implied.items() if given.get(name, "false") not in ("0", "false")}
    mode = max(asked, key=_MODES.index)
    if mode == "preferred":
        return {}
    return {"ssl_disabled": True} if mode == "disabled" else {"ssl": _tls_context(given, mode)}


def _tls_context(given: Mapping[str, str], mode: str) -> ssl.SSLContext:
    files = [f"{name} {given[name]}" for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in given]
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"), password="")  # no prompt
    except OSError as error:
        reason = "not a valid PEM file" if isinstance(error, ssl.SSLError) else (error.strerror or "").lower()
        raise ConfigurationError(
            f"source.url: {', '.join(files)}: {reason}",
            hint="name files in PEM format that the agent may read",
        ) from None
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates that servers make lack what it asks for
    context.check_hostname = mode == "verify_identity"
    context.verify_mode = ssl.CERT_NONE if mode == "required" else ssl.CERT_REQUIRED
    return context


def connect(url: str, name: str, *, replication: bool = False) -> Connection[Any]:
    """Open an autocommit connection with our session settings; `name` is one of its connection attributes.

    Raises `UnreachableError` if the server can't be reached, `TransientError` if it is busy,
    `PreconditionError` if it refuses.
    """
    parameters = parse_url(url)
    opened = partial(
        _Connection,
        **{**parameters, "password": parameters["password"].encode()},  # a str is sent as Latin-1
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=SILENCE_SECONDS,  # of the handshake: the server may look up our host's name first
        program_name=name,
        max_allowed_packet=1 << 30,
        init_command=f"SET SESSION {', '.join(_SESSION)}",
    )
    hosts = [] if "unix_socket" in parameters else [parameters["host"]]
    try:
        connection = logged_in(opened, hosts, CONNECT_SECONDS + SILENCE_SECONDS, close)
    except (pymysql.Error, OSError, RuntimeError) as error:
        raise refused(error, parameters) from None
    try:
        _keep_alive(connection._sock)
        if not replication:  # else its few statements may take as long as the handshake
            known = _variables(connection)
            query(connection, f"SET SESSION {', '.join(_further_settings(connection, known))}")
            connection.session = _session_of(connection, known)
            connection._read_timeout = None
        note_open(name, connection, descriptor_of, connection.session)
    except (pymysql.Error, OSError) as error:
        close(connection)
        raise refused(error, parameters) from None
    return connection


def _variables(connection: Connection[Any]) -> dict[str, str]:
    names = ", ".join(map(literal, (*_SESSION_WHERE_KNOWN, "transaction_isolation", *_IDENTITY)))
    found = rows(connection, f"SHOW VARIABLES WHERE variable_name IN ({names})")
    return {str(name): str(value) for name, value in found}


def _session_of(connection: Connection[Any], known: Mapping[str, str]) -> Hashable:
    """Return what no other session has; None behind a proxy that has numbers of its own.

    Numbers begin again when the server restarts, so the client's host and port belong to it.
    """
    number: int = connection.thread_id()
    if known.get("pseudo_thread_id") != str(number) or (host := host_of(connection, number)) is None:
        return None
    return uuid_of(known), number, host


def host_of(connection: Connection[Any], number: int) -> str | None:
    """Return a session's client, host and port, as the server sees it; None if there is no such session."""
    return next((host for id_, _, host, *_ in listed_sessions(connection) if id_ == number), None)


def listed_sessions(connection: Connection[Any]) -> list[tuple[Any, ...]]:
    """Return number, user, host, command and state of the sessions that we may see.

    What they execute is shown, too, and need not be text. MySQL's information_schema fails even at emoji.
    """
    found = raw_rows(connection, "SHOW PROCESSLIST")
    return [(r[0], *(bytes(r[at] or b"").decode(errors="replace") for at in (1, 2, 4, 6))) for r in found]


def uuid_of(variables: Mapping[str, str]) -> str:
    """Return what identifies a server: MySQL's server_uuid; MariaDB has none, but alone a gtid_domain_id."""
    if "gtid_domain_id" in variables:
        return f"{variables['server_id']}-{variables['gtid_domain_id']}"
    return str(variables.get("server_uuid", ""))


def _further_settings(connection: Connection[Any], known: Mapping[str, str]) -> list[str]:
    """Return the settings that not all servers have; MySQL renamed tx_isolation in 8.0, MariaDB in 11.1."""
    isolation = "transaction_isolation" if "transaction_isolation" in known else "tx_isolation"
    further = [f"{name} = {value}" for name, value in _SESSION_WHERE_KNOWN.items() if name in known]
    if "MariaDB" in connection.get_server_info():
        further.append(_KEPT_WARNINGS)
    return [f"{isolation} = 'REPEATABLE-READ'", *further]


def _keep_alive(sock: socket.socket) -> None:
    """Detect a dead peer within half a minute, instead of the kernel's hours."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def code_of(error: BaseException) -> int:
    """Return the server's or driver's error number; 0 means a lost connection."""
    if isinstance(error, pymysql.Error) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return 0 if isinstance(error, (OSError, pymysql.InterfaceError, pymysql.OperationalError)) else -1


def text_of(error: BaseException) -> str:
    """Return an error's text on one line."""
    text = str(error.args[-1] if error.args else error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line[:1].lower() + line[1:] if line[1:2].islower() else line


def is_transient(code: int) -> bool:
    """Return whether an error's number means that a retry may help."""
    return code in _TRANSIENT


def refused(error: Exception, parameters: dict[str, Any]) -> DeltatideError:
    """Convert a failure to connect into one of our errors."""
    code, text, password = code_of(error), text_of(error), parameters.get("password") or ""
    if len(password) > 2:
        text = text.replace(password, "***")
    where = f"{parameters['host']}:{parameters['port']} as {parameters['user'] or 'default user'}"
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _untrusted(where, cause)
    if code in (2002, 2003):
        return UnreachableError(
            f"can't reach the server at {where}: {text}",
            hint="check host and port in source.url, and the network",
        )
    if code in _REFUSALS:
        return PreconditionError(f"the server at {where}: {text}", hint=_REFUSALS[code])
    if code in _LOST:
        return UnreachableError(f"the server at {where}: {text}")
    if is_transient(code):
        hint = LIMIT_HINT if code in _TOO_MANY else None
        return TransientError(f"the server at {where}: {text}", hint=hint)
    return PreconditionError(f"the server at {where}: {text}", hint="check source.url")


def _untrusted(where: str, error: ssl.SSLCertVerificationError) -> DeltatideError:
    """Return the error for a server whose certificate fails verification: a retry would not help."""
    reason = error.verify_message.rstrip(".")
    named = "mismatch" in reason  # of the host's name or address
    return PreconditionError(
        f"the server at {where}: its certificate is refused: {reason[:1].lower()}{reason[1:]}",
        hint="use the host name of the server's certificate in source.url"
        if named
        else "set ssl_ca in source.url to the certificate of the CA that signed the server's",
    )


def descriptor_of(connection: Connection[Any]) -> int:
    """Return the descriptor of an open connection; the driver's error for one that has ended."""
    sock = connection._sock  # which another thread may take away
    if sock is None:
        raise pymysql.err.InterfaceError(0, "the connection has ended")
    descriptor: int = sock.fileno()
    return descriptor


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Convert the driver's errors on an open connection into ours, prefixed with what was being done.

    Lost connections and busy servers become `TransientError`, everything else `PreconditionError`.
    """
    try:
        yield
    except (pymysql.Error, OSError) as error:
        raise failed(doing, error) from error


def failed(doing: str, error: Exception) -> DeltatideError:
    """Choose the error class by number."""
    code, text = code_of(error), text_of(error)
    if code in _LOST:
        return UnreachableError(f"{doing}: {text}")
    if is_transient(code):
        return TransientError(f"{doing}: {text}")
    return PreconditionError(f"{doing}: {text}", hint=_REFUSALS.get(code, "run `deltatide check`"))


def quote(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Format a string literal, valid whatever sql_mode does with backslashes."""
    return f"_utf8mb4 X'{text.encode().hex()}'"


def query(connection: Connection[Any], statement: str) -> None:
    """Run a statement that returns no rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def rows(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def raw_rows(connection: Connection[Any], statement: str, kind: Any = None) -> list[Any]:
    """Run a query whose texts may have binary values, or end within a character; return them as bytes."""
    connection.use_unicode = False
    try:
        with connection.cursor(kind) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    finally:
        connection.use_unicode = True


def row(connection: Connection[Any], statement: str) -> tuple[Any, ...] | None:
    """Run a query and return its first row."""
    return next(iter(rows(connection, statement)), None)


@contextmanager
def brief_wait(connection: Connection[Any]) -> Iterator[None]:
    """Wait at most a second for locks of others: the log is not read meanwhile."""
    query(connection, "SET SESSION lock_wait_timeout = 1")
    try:
        yield
    finally:
        with suppress(pymysql.Error):  # the session is lost, and with it this setting
            query(connection, f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")


def ask(connection: Connection[Any]) -> None:
    """Wait for any answer; `UnreachableError` if the connection is lost."""
    with driver_errors("asking whether the server answers"):
        row(connection, "SELECT 1")


def alive(connection: Connection[Any]) -> bool:
    """Return whether the server answers on a connection, soon enough."""
    with suppress(Exception), answered(descriptor_of(connection), "checking the session"):
        ask(connection)
        return True
    return False


def close(connection: Connection[Any] | None) -> None:
    """Close a connection in any state. Nothing is sent, since rows may still be arriving.

    Whoever waits for the server on it, in another thread, finds it ended: closing waits for that thread.
    """
    if connection is not None:
        with suppress(OSError, pymysql.Error):  # it has ended by itself
            shut_down(descriptor_of(connection))
        connection._force_close()
