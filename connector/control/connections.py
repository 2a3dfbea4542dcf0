"""Limits the connections of the HTTP side: they must never take the capture's file descriptors.

Connections are counted when they are accepted: over TLS, the server does not know about one until its
handshake is done, which may never begin.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Any

MOST_CONNECTIONS = 100


class Listener(socket.socket):
    """A listening socket; one connection too many closes the oldest one that is not being answered.

    `served`: the connections that the server (uvicorn) knows.
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
            if connection.fileno() == number  # closed sockets have none
        }
        if len(self._accepted) >= MOST_CONNECTIONS:
            self._end_oldest()
        self._accepted[accepted.fileno()] = accepted
        return accepted, address

    def _end_oldest(self) -> None:
        sockets = [(each, each.transport.get_extra_info("socket")) for each in self._served]
        served = {end.fileno(): each for each, end in sockets if end is not None}  # none once TLS has ended
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
