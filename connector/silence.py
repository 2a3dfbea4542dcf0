"""Ends connections to a server that answers nothing, and notes who waits for one.

A peer that is gone is noticed by TCP. But behind a proxy, a balancer or a tunnel that lives on, a server that
can't be reached is silent, and the drivers wait for ever: then the agent would hold its lease and capture
nothing, while a standby could.

Four ways: a quick question that is not `answered` ends its own connection; who reads what the peer should
never interrupt for long counts its pauses (`Patience`); whoever finds the server silent
(`connector.listening`) ends all connections of an agent (`end_all`), whatever they wait for; and one whose
server no longer works for it (`connector.lost_sessions`) is ended alone (`end`).

What has no connection yet can't be ended: no driver limits how long a host's name is looked up. It is given
up (`logged_in`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from connector.background import TimedCalls
from connector.errors import UnreachableError

SILENCE_SECONDS = 30.0
"""As long as TCP takes for a peer that is gone: a busy server may take seconds to answer anything."""

LOOKUP_SECONDS = 20.0
"""How long a host's name may be looked up: as long as usual resolvers ask for it and for one that they derive
from it, ten seconds each. One that asks a second server after five has an answer by then.
"""

ASK_AGAIN_SECONDS = 2.0
"""Between two questions whether the peer works for a connection on which nothing comes."""

_BYTES_RECEIVED = struct.Struct("128xQ")
"""``tcpi_bytes_received`` of Linux's ``struct tcp_info``, whose fields keep their places."""


class Awaited:
    """Whether somebody waits for the peer on a connection: then `count` is odd. It differs for each wait."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count += 1

    def resting(self) -> Awaited:
        """Return a context in which whoever waits does something else, whose time does not count."""
        return self  # which makes the count even, and odd again


def awaited_of(connection: Any) -> Awaited:
    """Return who waits on a connection of ours; for another one, what nobody looks at."""
    return getattr(connection, "awaited", None) or Awaited()


class _Opened(NamedTuple):
    descriptor_of: Callable[[Any], int]
    session: Hashable


_open: dict[str, WeakKeyDictionary[Any, _Opened]] = {}
"""The connections of this process by their name, which all of an agent share."""

_opening = threading.Lock()


def note_open(
    name: str, connection: Any, descriptor_of: Callable[[Any], int], session: Hashable = None
) -> None:
    """Have `end_all` end a connection, too, as long as it is used.

    `session`: what its server knows it by, and no other one; None: that can't be relied on.
    """
    with _opening:
        _open.setdefault(name, WeakKeyDictionary())[connection] = _Opened(descriptor_of, session)


def end_all(name: str) -> None:
    """Shut down all connections of a name. Whoever waits for one, in any thread, finds it ended.

    They are left to their users to close.
    """
    _end(name, lambda _session: True)


def end(name: str, sessions: Collection[Hashable]) -> None:
    """Shut down the connections of these sessions, as `end_all` does."""
    _end(name, lambda session: session in sessions)


def _end(name: str, chosen: Callable[[Hashable], bool]) -> None:
    for connection, (descriptor_of, session) in _opened(name):
        if chosen(session):
            with suppress(Exception):  # it has ended by itself, with one of its driver's errors
                shut_down(descriptor_of(connection))


def _opened(name: str) -> list[tuple[Any, _Opened]]:
    with _opening:
        return list(_open.get(name, {}).items())


def awaited_sessions(name: str) -> dict[Hashable, tuple[int, int]]:
    """Return the sessions on which somebody waits, each with what changes once anything comes."""
    found: dict[Hashable, tuple[int, int]] = {}
    for connection, (descriptor_of, session) in _opened(name):
        count = awaited_of(connection).count
        if session is not None and count % 2:
            with suppress(Exception):  # it has ended by itself
                found[session] = (count, _bytes_received(descriptor_of(connection)))
    return found


def _bytes_received(descriptor: int) -> int:
    """Return how many bytes came on a TCP connection; 0 for another one."""
    with _another(descriptor) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        found = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
        return int(_BYTES_RECEIVED.unpack(found)[0]) if len(found) == _BYTES_RECEIVED.size else 0


def shut_down(descriptor: int) -> None:
    """Shut a connection down; its descriptor stays its owner's. `OSError` if it has ended."""
    with _another(descriptor) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def _another(descriptor: int) -> socket.socket:
    """Return another socket for a connection, whose number stays ours; `OSError` if it has ended."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # another thread has closed it, and its number is a file's by now
        os.close(copy)
        raise


@contextmanager
def answered(descriptor: int, doing: str) -> Iterator[None]:
    """Shut a connection down if the block does not end in time; `UnreachableError` if it fails for that.

    The block must be one that waits for nobody's lock or transaction. Whoever else waits for the connection,
    in any thread, finds it ended.
    """
    silent = threading.Event()
    try:
        connection = _another(descriptor)
    except OSError as error:
        raise UnreachableError(f"{doing}: the connection has ended") from error
    with connection:

        def end() -> None:
            silent.set()
            with suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(SILENCE_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if silent.is_set():
                text = f"{doing}: the server has not answered for {SILENCE_SECONDS:g} s"
                raise UnreachableError(text) from error
            raise
        finally:
            timer.cancel()
            timer.join()


class Patience:
    """How long nothing has come from a peer that sends something all the time, if only that it lives.

    Only waits of ours are counted. So a process that was paused, or was busy with other things, hears what
    came meanwhile before it judges. `works` returns whether the peer is known to be at work for us: then it
    may be silent for longer. Used by one thread.
    """

    def __init__(self, doing: str, works: Callable[[], bool] = lambda: False) -> None:
        self._doing, self._works = doing, works
        self._quiet, self._doubted = 0.0, False

    def heard(self) -> None:
        """Note that something came."""
        self._quiet, self._doubted = 0.0, False

    def waited(self, seconds: float) -> None:
        """Note a wait in which nothing came; `UnreachableError` once the connection counts as lost.

        For that, the peer is found not to be at work twice in a row: an answer may be on its way.
        """
        self._quiet += max(0.0, seconds)
        if self._quiet <= SILENCE_SECONDS:
            return
        self._quiet = SILENCE_SECONDS - min(ASK_AGAIN_SECONDS, SILENCE_SECONDS / 2)
        lost, self._doubted = self._doubted, not self._works()
        if lost and self._doubted:
            raise UnreachableError(f"{self._doing}: the server was silent for {SILENCE_SECONDS:g} s")


_Result = TypeVar("_Result")

_logins = TimedCalls(64)


def logged_in(
    connect: Callable[[], _Result], hosts: Collection[str], seconds: float, close: Callable[[_Result], object]
) -> _Result:
    """Return the connection that `connect` opens to one of the hosts; `TimeoutError` if it takes too long.

    Its driver limits it to `seconds` for each address, but not how long names are looked up. So they are
    looked up before, which also counts their addresses, and the driver has as long to do so again.
    """
    names = [host for host in hosts if _is_name(host)]
    if not names:
        return connect()
    lookup_seconds, which = LOOKUP_SECONDS * len(names), ", ".join(names)
    addresses = _logins.run(lambda: sum(map(_addresses, names)), lookup_seconds, f"looking up {which}")
    limit = (addresses + len(hosts) - len(names)) * seconds + lookup_seconds
    return _logins.run(connect, limit, f"connecting to {which}", close)


def _is_name(host: str) -> bool:
    if not host or host.startswith(("/", "@")):  # a socket's file
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def _addresses(name: str) -> int:
    """Return how many addresses a name has; 1 for one that is unknown, as the driver says."""
    try:
        return len(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return 1
