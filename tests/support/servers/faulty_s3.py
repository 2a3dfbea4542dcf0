"""A proxy in front of an S3 server that fails as stores and networks do, and counts each fault that happened.

A fault counts once it has happened, not when it was chosen: a write is lost "after it took effect" only if
the server answered it with success, and a request timed out only if its sender gave up.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.support.servers.s3_proxy import Answer, Exchange, S3Proxy

ERROR = "500"
BUSY = "503"
LOST = "connection lost before it took effect"
TIMEOUT = "timeout before it took effect"
ERROR_AFTER = "500 after the write took effect"
LOST_AFTER = "connection lost after the write took effect"
TIMEOUT_AFTER = "timeout after the write took effect"
LATE = "write took effect after its sender gave up"
SLOW = "slow read"
TRUNCATED = "truncated body"
CREATE_LOST = "answer of a conditional create lost"
"""Counted beside the others: of the writes that took effect unanswered, the conditional creates."""

AFTER = (ERROR_AFTER, LOST_AFTER, TIMEOUT_AFTER, LATE)
HANGING = (TIMEOUT, TIMEOUT_AFTER, LATE)
KINDS = (ERROR, BUSY, LOST, TIMEOUT, *AFTER, SLOW, TRUNCATED, CREATE_LOST)
WEIGHTS = {ERROR: 5, BUSY: 5, LOST: 4, ERROR_AFTER: 4, LOST_AFTER: 4, SLOW: 3, TRUNCATED: 4} | dict.fromkeys(
    HANGING, 0.3
)
"""A timeout costs its sender half a minute, so it is rare."""

PATIENCE_SECONDS = 60.0
"""Longer than any client of ours waits for an answer."""

_ERRORS = {
    ERROR: (500, "InternalError", "We encountered an internal error. Please try again."),
    ERROR_AFTER: (500, "InternalError", "We encountered an internal error. Please try again."),
    BUSY: (503, "SlowDown", "Please reduce your request rate."),
}


class FaultyS3(S3Proxy):
    """Lets a `share` of the requests fail while it is not 0; `counts` tells how often each kind happened.

    `force` has requests that a kind applies to fail in that way, whatever the share, until it has happened.
    """

    def __init__(self, endpoint: str, seed: int = 1) -> None:
        super().__init__(endpoint)
        self.share = 0.0
        self.counts: Counter[str] = Counter()
        self.requests = 0
        self._forced: list[str] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def force(self, *kinds: str) -> None:
        """Have each of these kinds happen to the next request that it applies to."""
        with self._lock:
            self._forced += kinds

    def end_faults(self) -> None:
        """Let all requests pass from now on; those that hang are dropped."""
        with self._lock:
            self.share = 0.0
            self._forced.clear()
        self._calm.set()

    def handle(self, exchange: Exchange) -> None:
        kind, forced = self._choose(exchange)
        before = self.counts[forced] if forced else 0
        try:
            self._handle(exchange, kind)
        finally:
            if forced and self.counts[forced] == before and not self._calm.is_set():
                self.force(forced)  # it did not happen: the write was refused, or nobody gave up

    def _handle(self, exchange: Exchange, kind: str | None) -> None:
        if kind is None:
            exchange.answer(exchange.forward())
        elif kind in AFTER:
            self._fail_after(exchange, kind)
        elif kind in (SLOW, TRUNCATED):
            self._spoil(exchange, kind)
        else:
            self._fail_before(exchange, kind)

    def _choose(self, exchange: Exchange) -> tuple[str | None, str | None]:
        """Return how a request fails, if it does, and for which kind this was forced, if it was."""
        with self._lock:
            self.requests += 1
            kinds = applicable(exchange.command, exchange.headers.get("User-Agent", ""), exchange.path)
            for kind in self._forced:
                if (kind in kinds and not (kind == LATE and "If-Match" in exchange.headers)) or (
                    kind == CREATE_LOST and is_create(exchange)
                ):  # a late write is refused where its sender, or another one, has overtaken it
                    self._forced.remove(kind)
                    return (LOST_AFTER if kind == CREATE_LOST else kind), kind
            if not kinds or self._random.random() >= self.share:
                return None, None
            return self._random.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0], None

    def _fail_before(self, exchange: Exchange, kind: str) -> None:
        if kind == TIMEOUT:
            self._hang(exchange, lambda: self._count(kind))
            return
        self._count(kind)
        if kind == LOST:
            exchange.drop()
        else:
            exchange.answer(_error(kind))

    def _fail_after(self, exchange: Exchange, kind: str) -> None:
        if kind == LATE:
            self._hang(exchange, lambda: self._took_effect(exchange, exchange.forward(), kind))
            exchange.drop()
            return
        answer = exchange.forward()
        if answer.status >= 300:  # a write that was refused has no effect: the answer passes
            exchange.answer(answer)
        elif kind == TIMEOUT_AFTER:
            self._hang(exchange, lambda: self._took_effect(exchange, answer, kind))
        else:
            self._took_effect(exchange, answer, kind)
            if kind == LOST_AFTER:
                exchange.drop()
            else:
                exchange.answer(_error(kind))

    def _took_effect(self, exchange: Exchange, answer: Answer, kind: str) -> None:
        if answer.status < 300:
            self._count(kind)
            if is_create(exchange):
                self._count(CREATE_LOST)

    def _hang(self, exchange: Exchange, then: Callable[[], None]) -> None:
        """Answer nothing; when the client has given up, go on with `then`."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit and not self._calm.is_set():
            if exchange.wait_given_up(1.0):
                then()
                break
        exchange.drop()

    def _spoil(self, exchange: Exchange, kind: str) -> None:
        answer = exchange.forward()
        size = len(answer.content)
        if answer.status >= 300 or size < 2:
            exchange.answer(answer)
            return
        self._count(kind)
        exchange.answer(answer, size // 2)
        if kind == TRUNCATED:
            exchange.drop()
            return
        for begin in range(size // 2, size, max(1, size // 8)):
            time.sleep(0.25)
            exchange.wfile.write(answer.content[begin : min(size, begin + max(1, size // 8))])

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1


def applicable(method: str, client: str, path: str) -> Sequence[str]:
    """Return the kinds of faults that can befall a request: hanging ones only where a client gives up soon.

    Listings and multipart uploads are left whole: a truncated XML body is an error of its own in clients.
    """
    hanging = HANGING if "Boto3" in client else ()
    if method in ("GET", "HEAD"):
        kinds = [ERROR, BUSY, LOST, *(kind for kind in hanging if kind == TIMEOUT)]
        return [*kinds, SLOW, TRUNCATED] if method == "GET" and "?" not in path else kinds
    return [ERROR, BUSY, LOST, ERROR_AFTER, LOST_AFTER, *hanging]


def is_create(exchange: Exchange) -> bool:
    """Return whether a request creates an object only if it does not exist."""
    return exchange.command == "PUT" and exchange.headers.get("If-None-Match") == "*"


def _error(kind: str) -> Answer:
    status, code, message = _ERRORS[kind]
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, code, (("Content-Type", "application/xml"),), content.encode())
