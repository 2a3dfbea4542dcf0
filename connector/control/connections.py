"""How many connections the HTTP side holds: they must never take the capture's file descriptors."""

from __future__ import annotations

import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 100


class Protocol(H11Protocol):
    """One connection; one too many ends the oldest of those on which no request is being answered."""

    began = 0.0

    def connection_made(self, transport: Any) -> None:
        """Begin, in place of an idle connection if there are too many."""
        super().connection_made(transport)
        self.began = time.monotonic()
        held: Any = self.connections
        if len(held) > MOST_CONNECTIONS:
            idle = (c for c in held if c.cycle is None or c.cycle.response_complete)  # this one is
            oldest = min(idle, key=lambda connection: connection.began)
            held.discard(oldest)
            oldest.transport.abort()
