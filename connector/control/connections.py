"""How many connections the HTTP side holds: they must never take the capture's file descriptors.

They are counted where they are accepted: over TLS, the server knows nothing of one until its handshake is
done, which it may never begin.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Any

MOST_CONNECTIONS = 100


class Listener(socket.socket):
    """A listening socket; one connection too many ends the oldest of those on which no request is answered.

    `served`: the connections that the server knows, by its own protocol (uvicorn's).
    """

    def __init__(self, listener: socket.socket, served: Collection[Any]) -> None:
        super().__init__(fileno=listener.detach())
        self._served = served
        self._accepted: dict[int, socket.socket] = {}  # by descriptor, the oldest first

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, in place of another if there are too many."""
        accepted, address = super().accept()
        self._accepted = {
            number: connection
            for number, connection in self._accepted.items()
            if connection.fileno() == number  # a closed one has none
        }
        if len(self._accepted) >= MOST_CONNECTIONS:
            self._end_oldest()
        self._accepted[accepted.fileno()] = accepted
        return accepted, address

    def _end_oldest(self) -> None:
        served = {each.transport.get_extra_info("socket").fileno(): each for each in self._served}
        for number, connection in self._accepted.items():
            protocol = served.get(number)
            if protocol is None or protocol.cycle is None or protocol.cycle.response_complete:
                del self._accepted[number]
                if protocol is not None:
                    protocol.transport.abort()
                else:
                    with suppress(OSError):  # it is gone already
                        connection.shutdown(socket.SHUT_RDWR)
                return
