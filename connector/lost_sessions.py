"""Finds connections that were lost alone, while the server answers others: who waits there waits for ever.

A proxy, a balancer or a firewall that forgets one connection drops its packets without a word. If the peer of
our TCP connection lives on, nothing shows that there. But the server's list of sessions does, by the session
that asks whether the server answers: where somebody has long waited, and the server has no such session any
more, or one that waits for us, the question or its answer is lost.

Invariants:

- A query that the server is running is never ended, however long it takes. Nor is a connection on which
  anything comes.
- Time is counted in short pauses of our own: no clocks are compared, and none runs while we are paused.
- Before a connection is ended, a new session confirms it: an address may lead to another server by now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from connector.errors import DeltatideError
from connector.silence import awaited_sessions, end

log = logging.getLogger(__name__)


class SessionList(Protocol):
    """A server's list of sessions, seen over one of them."""

    def idle(self, sessions: Collection[Hashable]) -> set[Hashable]:
        """Return those that the server does not have, or that wait for us; none if that can't be told."""

    def end(self, session: Hashable) -> None:
        """End a session at the server."""

    def close(self) -> None:
        """Close the session; the next call opens another one."""


@dataclass
class _Wait:
    """One wait: `sign` changes once anything comes; seconds without, and of these without work for it."""

    sign: Hashable
    quiet: float = 0.0
    idle: float = 0.0


class LostSessions:
    """Ends the connections of a name on which nothing can come any more.

    Each wait is judged after half of `seconds`, and ended after another half in which the server did nothing
    for it. `awaited` and `end_here` are `connector.silence`'s.
    """

    def __init__(
        self,
        name: str,
        sessions: SessionList,
        seconds: float,
        awaited: Callable[[str], dict[Hashable, tuple[int, int]]] = awaited_sessions,
        end_here: Callable[[str, Collection[Hashable]], None] = end,
    ) -> None:
        self._name, self._sessions, self._half = name, sessions, seconds / 2
        self._awaited, self._end_here = awaited, end_here
        self._waits: dict[Hashable, _Wait] = {}

    def look(self, pause: float) -> None:
        """Look at all waits, `pause` seconds after the last look; raises if the server can't be asked."""
        before, self._waits = self._waits, {}
        for session, sign in self._awaited(self._name).items():
            wait = before.get(session)
            if wait is None or wait.sign != sign:
                wait = _Wait(sign, -pause)
            wait.quiet += pause
            self._waits[session] = wait
        suspects = {session: wait for session, wait in self._waits.items() if wait.quiet >= self._half}
        if not suspects:
            return
        idle = self._sessions.idle(suspects.keys())
        for session, wait in suspects.items():
            wait.idle = wait.idle + pause if session in idle else 0.0
        if lost := {session for session, wait in suspects.items() if wait.idle >= self._half}:
            self._end(lost)

    def _end(self, found: set[Hashable]) -> None:
        self._sessions.close()
        lost = self._sessions.idle(found)
        if not lost:
            return
        text = "%s connections to the database are lost, though it answers others: ending them"
        log.warning(text, len(lost))
        self._end_here(self._name, lost)
        for session in lost:
            with suppress(DeltatideError):  # it ends by itself, at the latest when the server finds out
                self._sessions.end(session)
