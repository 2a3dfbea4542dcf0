"""Retries what a store or database did not answer, with growing pauses, until the agent stops.

Other retries are where they are needed, with tenacity as well: conflicting commits (`merge.lake.retry`),
writes (`connector.store.s3`), a slot in use (`connector.postgres.slot`), merges (`merge.schedule`). Dump
workers don't repeat a call: they give a task back to its queue, which decides when it is due again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_chain,
    wait_exponential,
    wait_fixed,
    wait_random,
)

from connector.errors import TransientError

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""The first wait for a missing answer, and its jitter; each next wait is twice as long, up to 10 s."""

RECONNECT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The waits before the log is opened again; the last one repeats."""


_Result = TypeVar("_Result")


def retrying(stop: threading.Event, asked: str = "the landing zone") -> Retrying:
    """Retry transient errors with backoff, until `stop`; `asked` names the service in the log."""

    def log_attempt(state: RetryCallState) -> None:
        log.warning("%s did not answer, retrying: %s", asked, _text(state))

    return Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait_exponential(multiplier=RETRY_SECONDS, max=10) + wait_random(0, RETRY_SECONDS),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=log_attempt,
        reraise=True,
    )


def reconnecting(
    stop: threading.Event, lose: Callable[[], None], progressed: Callable[[], bool] = lambda: False
) -> Callable[[Callable[[], _Result]], _Result | None]:
    """Retry work on the log after transient errors; once `stop` is set, begin none and return None instead.

    Call `lose` before each pause. Pauses start over if the last attempt `progressed`.
    """

    def count(state: RetryCallState) -> None:
        if progressed():
            state.attempt_number = 1

    def log_pause(state: RetryCallState) -> None:
        lose()
        log.warning("%s; reopening the log in %s s", _text(state), state.upcoming_sleep)

    def log_stop(state: RetryCallState) -> None:
        log.warning("%s; stopping without a last commit; nothing is lost", _error(state))

    patiently = Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait_chain(*map(wait_fixed, RECONNECT_SECONDS)),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        after=count,
        before_sleep=log_pause,
        retry_error_callback=log_stop,
    )
    return lambda work: patiently(lambda: None if stop.is_set() else work())


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _text(state: RetryCallState) -> str:
    error = _error(state)
    return f"{error} ({error.hint})" if isinstance(error, TransientError) and error.hint else str(error)
