"""Ends connections to a server that answers nothing.

A peer that is gone is noticed by TCP. But behind a proxy, a balancer or a tunnel that lives on, a server that
can't be reached is silent, and the drivers wait for ever: then the agent would hold its lease and capture
nothing, while a standby could.

Two ways: a quick question that is not `answered` ends its own connection, and whoever finds the server silent
(`connector.listening`) ends all connections of an agent (`end_all`), whatever they wait for.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from connector.errors import UnreachableError

SILENCE_SECONDS = 30.0
"""As long as TCP takes for a peer that is gone: a busy server may take seconds to answer anything."""

_open: dict[str, WeakKeyDictionary[Any, Callable[[Any], int]]] = {}
"""The connections of this process by their name, which all of an agent share, and what returns the descriptor
of one.
"""

_opening = threading.Lock()


def note_open(name: str, connection: Any, descriptor_of: Callable[[Any], int]) -> None:
    """Have `end_all` end a connection, too, as long as it is used."""
    with _opening:
        _open.setdefault(name, WeakKeyDictionary())[connection] = descriptor_of


def end_all(name: str) -> None:
    """Shut down all connections of a name. Whoever waits for one, in any thread, finds it ended.

    They are left to their users to close.
    """
    with _opening:
        connections = list(_open.get(name, {}).items())
    for connection, descriptor_of in connections:
        with suppress(Exception):  # it has ended by itself, with one of its driver's errors
            shut_down(descriptor_of(connection))


def shut_down(descriptor: int) -> None:
    """Shut a connection down; its descriptor stays its owner's. `OSError` if it has ended."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


@contextmanager
def answered(descriptor: int, doing: str) -> Iterator[None]:
    """Shut a connection down if the block does not end in time; `UnreachableError` if it fails for that.

    The block must be one that waits for nobody's lock or transaction. Whoever else waits for the connection,
    in any thread, finds it ended.
    """
    silent = threading.Event()
    try:
        copy = os.dup(descriptor)  # whose number stays ours until the end
    except OSError as error:
        raise UnreachableError(f"{doing}: the connection has ended") from error
    with socket.socket(fileno=copy) as connection:

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
