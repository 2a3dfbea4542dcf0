"""Sessions of a merge: each lent to one thread at a time, opened when needed, fewer if there are no more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from pyspark.errors import PySparkException

from merge.spark.session_pool import SessionPool, own_session_pool


def test_each_session_is_lent_to_one_thread_at_a_time() -> None:
    opened, together, lock, used = [1], threading.Barrier(3), threading.Lock(), set[int]()

    def another() -> Any:
        opened[0] += 1
        return opened[0]

    sessions = SessionPool(1, 3, another)  # type: ignore[arg-type]

    def work(_: int) -> bool:
        with sessions.lend() as session:
            number: Any = session
            with lock:
                alone = number not in used
                used.add(number)
            together.wait(10)
            with lock:
                used.discard(number)
            return alone

    with ThreadPoolExecutor(9) as threads:
        assert all(threads.map(work, range(9)))
    assert opened == [3]


def test_a_platform_without_more_sessions_merges_with_those_it_has() -> None:
    def another() -> Any:
        raise PySparkException("no more sessions here")

    sessions = SessionPool("only", 4, another)  # type: ignore[arg-type]
    begun, done = threading.Event(), threading.Event()

    def hold(_: int) -> object:
        with sessions.lend() as session:
            begun.set()
            done.wait(10)
            return session

    with ThreadPoolExecutor(4) as threads:
        held = [threads.submit(hold, n) for n in range(4)]
        assert begun.wait(10)
        done.set()
        assert [each.result(10) for each in held] == ["only"] * 4
    assert sessions.most == 1


UNCHANGED = SimpleNamespace(getAll={})
"""Settings of a session in which nobody has set any."""


class Connected:
    """A Connect session as of Spark 3.5 and 4.0: it can't be copied, and 3.5 raises when asked for that."""

    conf = UNCHANGED

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class Cloneable:
    """A Connect session as of Spark 4.1: the server knows it from its first request on."""

    conf, known = UNCHANGED, False

    def __init__(self) -> None:
        self.client = Mock()

    @property
    def version(self) -> str:
        self.known = True
        return "4.1"

    def cloneSession(self) -> Cloneable:
        if not self.known:
            raise PySparkException("[INVALID_HANDLE.SESSION_NOT_FOUND]")
        return Cloneable()


def test_a_connect_session_that_can_not_be_copied_is_the_only_one() -> None:
    session: Any = Connected()
    with own_session_pool(session, 4, {}) as sessions:
        assert (sessions.first, sessions.most) == (session, 1)


def test_a_connect_session_is_cloned_even_before_its_first_request_and_closed_once() -> None:
    session: Any = Cloneable()
    with own_session_pool(session, 4, {}) as sessions:
        clone: Any = sessions.first
        assert clone is not session
        assert sessions.most == 4
        close = clone.client.close
    close.assert_called_once()
    clone.client.close()
    close.assert_called_once()
