"""Retries calls that a store or database did not answer, with exponential backoff, until the agent stops.

Other retries are where they are needed, with tenacity as well: conflicting commits (`merge.lake.retry`) and
writes (`connector.store.s3`), a slot in use (`connector.postgres.slot`). The capture loop and the dump
workers start their work over instead of repeating a call, so they have their own pauses.
"""

from __future__ import annotations

import logging
import threading

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)

from connector.errors import TransientError

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""The first wait for a missing answer, and its jitter; each next wait is twice as long, up to 10 s."""


def retrying(stop: threading.Event, asked: str = "the landing zone") -> Retrying:
    """Retry transient errors with backoff, until `stop`; `asked` names the service in the log."""

    def log_attempt(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        hint = f" ({error.hint})" if isinstance(error, TransientError) and error.hint else ""
        log.warning("%s did not answer, retrying: %s%s", asked, error, hint)

    return Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait_exponential(multiplier=RETRY_SECONDS, max=10) + wait_random(0, RETRY_SECONDS),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=log_attempt,
        reraise=True,
    )
