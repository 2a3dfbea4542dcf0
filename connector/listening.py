"""Listens for the database: asks it at intervals whether it answers, and ends all connections if it does not.

While it answers, connections that were lost alone are looked for (`connector.lost_sessions`).

Whoever waits for a database may have to wait long: for a lock, for the first row of a large chunk. So a
session that asks for nothing else (`Probe`) tells a silent server from a busy one. What else is heard of it,
such as log that arrives, counts too: a server that has no time for the probe is not silent.

Invariants:

- Silence is counted in short waits of our own. So a process that was paused hears what came meanwhile before
  it judges.
- The session that asks may be lost alone: another one asks before the server counts as silent.
- Only a server that can't be reached is silent. One that refuses the probe, for want of connections, has
  answered.
- A login may take longer than an answer: the server looks up our host's name, or an address leads to a host
  that is gone first. So silence is judged later while a session logs in, and whoever took a first login for
  silence waits longer for the next one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from connector.background import BackgroundThread
from connector.errors import DeltatideError, UnreachableError
from connector.lost_sessions import SessionList
from connector.silence import SILENCE_SECONDS

log = logging.getLogger(__name__)

TAKEOVER_SECONDS = 3.0
"""A standby takes over within the length of the lease and this, whatever befalls the active agent.

Except if the database falls silent while an agent logs in for the first time whose last first login took too
long (`first_seconds`).
"""

ASK_SECONDS = 2.0
"""The longest pause between two questions: they cost next to nothing."""


class Probe(SessionList, Protocol):
    """A session that asks nothing but whether the server answers, and whom. Used by one thread.

    `logs_in`: whether it is being opened; for any thread.
    """

    logs_in: bool

    def ask(self) -> None:
        """Wait for an answer; `UnreachableError` if the server can't be reached, or the session was lost.

        Connects on first use, and again after an error.
        """

    def close(self) -> None:
        """Close the session, even while another thread waits for its server; never raises."""


_Connection = TypeVar("_Connection")
_Result = TypeVar("_Result")


class SessionProbe(Generic[_Connection]):
    """A `Probe`, from a driver's functions on a connection: `ask` waits for an answer."""

    def __init__(
        self,
        connect: Callable[[], _Connection],
        ask: Callable[[_Connection], None],
        close: Callable[[_Connection | None], None],
        idle: Callable[[_Connection, Collection[Any]], set[Hashable]],
        end: Callable[[_Connection, Any], None],
    ) -> None:
        self._connect, self._ask, self._close, self._idle, self._end = connect, ask, close, idle, end
        self._connection: _Connection | None = None
        self.logs_in = False

    def ask(self) -> None:
        """Wait for an answer."""
        self._on_session(self._ask)

    def idle(self, sessions: Collection[Hashable]) -> set[Hashable]:
        """Return the sessions that the server does not have, or that wait for us."""
        return self._on_session(lambda connection: self._idle(connection, sessions))

    def end(self, session: Hashable) -> None:
        """End a session at the server."""
        self._on_session(lambda connection: self._end(connection, session))

    def _on_session(self, use: Callable[[_Connection], _Result]) -> _Result:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._log_in()
        try:
            return use(connection)
        except Exception as error:
            # Whatever the driver fails with for that, it is no answer.
            if self._connection is not connection:
                text = "asking the server: another thread has closed the session"
                raise UnreachableError(text) from error
            if isinstance(error, DeltatideError):
                self.close()
            raise

    def _log_in(self) -> _Connection:
        self.logs_in = True
        try:
            return self._connect()
        finally:
            self.logs_in = False

    def close(self) -> None:
        """Close the session; the next question opens another one."""
        connection, self._connection = self._connection, None
        self._close(connection)


def silence_seconds(lease_seconds: float, *, standbys: bool) -> float:
    """Return how long a server may answer nothing until it counts as silent.

    Where standbys may be waiting, half of the time in which one takes over. Otherwise a hasty judgement only
    has what was being read read again.
    """
    if not standbys:
        return SILENCE_SECONDS
    return min((lease_seconds + TAKEOVER_SECONDS) / 2, SILENCE_SECONDS)


def login_seconds(lease_seconds: float, *, standbys: bool) -> float:
    """Return how long a server may answer nothing while a session logs in: longer, if the lease allows.

    Whoever takes over keeps at least `TAKEOVER_SECONDS`, as after an agent that does not renew its lease.
    """
    seconds = silence_seconds(lease_seconds, standbys=standbys)
    return min(max(seconds, (seconds + lease_seconds) / 2), SILENCE_SECONDS)


class Listener(BackgroundThread):
    """A thread that judges whether the server is silent; another one asks it.

    `end` ends all connections; it is called again each time that another `seconds` have passed without an
    answer: while the probe logs in `login_seconds`, and until the first answer `first_seconds`, if these are
    more. `signs` returns something that differs once more was heard of the server. `look` is called after
    each answer, with the seconds of the pause before it: it looks for connections that were lost alone.
    `silent`: whether the server has been silent since its last answer; `late`: whether its first one took
    longer than `seconds`, None as long as that is not known.
    """

    def __init__(
        self,
        probe: Probe,
        end: Callable[[], None],
        seconds: float,
        signs: Callable[[], object] = lambda: None,
        *,
        first_seconds: float = 0.0,
        login_seconds: float = 0.0,
        look: Callable[[float], None] = lambda _pause: None,
    ) -> None:
        super().__init__("listening")
        self.silent = False
        self.late: bool | None = None
        self._probe, self._end, self._seconds, self._signs, self._look = probe, end, seconds, signs, look
        self._first_seconds, self._login_seconds = first_seconds, login_seconds
        self._answers, self._ask_at_once = 0, False
        self._broken: Exception | None = None

    def work(self) -> None:
        """Judge at intervals, until `stopping`."""
        threading.Thread(target=self._ask, name="asking", daemon=True).start()
        tick, quiet, waited, before, doubted = min(1.0, self._seconds / 8), 0.0, 0.0, None, False
        while not self.stopping.wait(tick):
            now = (self._answers, self._signs())
            quiet, waited = quiet + tick if now == before else 0.0, waited + tick
            before, limit = now, self._limit(answered=now[0] > 0)
            if self.late is None and (now[0] or waited >= self._seconds):
                self.late = not now[0]
            if quiet == 0.0:
                self.silent = doubted = False
            elif quiet >= self._seconds / 2 and now[0] and not doubted:
                doubted = self._ask_at_once = True
                self._probe.close()  # the question is asked again by another session
            elif quiet >= limit:
                self.silent, quiet = True, 0.0
                text = "the database has not answered for %.3g s: ending all connections to it"
                log.warning(text, limit)
                self._end()
            if self._broken is not None:
                raise self._broken
        self._probe.close()

    def _limit(self, *, answered: bool) -> float:
        """Return how long the server may answer nothing as things are."""
        login_seconds = self._login_seconds if self._probe.logs_in else 0.0
        return max(self._seconds, login_seconds, 0.0 if answered else self._first_seconds)

    def _ask(self) -> None:
        pause = min(self._seconds / 8, ASK_SECONDS)
        while not self.stopping.is_set():
            try:
                self._probe.ask()
                self._answers += 1
                self._look(pause)
            except UnreachableError as error:
                log.debug("%s", error)
                if self._ask_at_once:  # as it may take long to log in
                    self._ask_at_once = False
                    continue
            except DeltatideError:  # it refuses, so it is there
                self._answers += 1
            except Exception as error:  # for `failure`, since without questions nothing can be judged
                self._broken = error
                return
            self.stopping.wait(pause)
        self._probe.close()


def listening(
    probe: Probe,
    end: Callable[[], None],
    seconds: float,
    signs: Callable[[], object] = lambda: None,
    *,
    first_seconds: float = 0.0,
    login_seconds: float = 0.0,
    look: Callable[[float], None] = lambda _pause: None,
) -> AbstractContextManager[Listener]:
    """Listen while the block runs, as `Listener` does."""
    listener = Listener(
        probe, end, seconds, signs, first_seconds=first_seconds, login_seconds=login_seconds, look=look
    )
    return listener.running()
