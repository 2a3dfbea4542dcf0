"""Helps start servers: finds a free port, and waits until a new process answers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

POLL_SECONDS = 0.05


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_it_answers(
    not_yet: Callable[[BaseException], bool], running: Callable[[], bool], seconds: float
) -> Retrying:
    """Retry a call while its error is `not_yet` and the server is `running`, for at most `seconds`."""
    timed_out = stop_after_delay(seconds)
    return Retrying(
        retry=retry_if_exception(not_yet),
        stop=lambda state: not running() or timed_out(state),
        wait=wait_fixed(POLL_SECONDS),
        reraise=True,
    )
