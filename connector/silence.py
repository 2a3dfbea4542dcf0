"""Ends connections on which a quick question is not answered.

A peer that is gone is noticed by TCP. But behind a proxy, a balancer or a tunnel that lives on, a server that
can't be reached is silent, and the drivers wait for ever: then the agent would hold its lease and capture
nothing, while a standby could.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from connector.errors import TransientError

SILENCE_SECONDS = 30.0
"""As long as TCP takes for a peer that is gone: a busy server may take seconds to answer anything."""


@contextmanager
def answered(descriptor: int, doing: str) -> Iterator[None]:
    """Shut a connection down if the block does not end in time; `TransientError` if it fails for that.

    The block must be one that waits for nobody's lock or transaction. Whoever else waits for the connection,
    in any thread, finds it ended.
    """
    silent = threading.Event()
    try:
        copy = os.dup(descriptor)  # whose number stays ours until the end
    except OSError as error:
        raise TransientError(f"{doing}: the connection has ended") from error
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
                raise TransientError(text) from error
            raise
        finally:
            timer.cancel()
            timer.join()
