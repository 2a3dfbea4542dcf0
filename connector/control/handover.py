"""Asks the active agent to hand over to a standby, and waits until one has taken over.

Like all requests, this one is an object in the landing zone. The active agent carries it out within seconds:
it commits what it has read and releases the lease. A standby that sees this takes the lease; if none does,
the agent takes it back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from connector.control.dump_requests import request_control
from connector.control.source_view import SourceView
from connector.errors import PreconditionError, RequestError
from connector.landing.lease import Holder
from connector.landing.requests import pending_ids, rejection_of

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Handover:
    """The agent that took over, and how many seconds after the former one had ended."""

    agent: str
    term: int
    seconds: float


def request_handover(view: SourceView) -> Handover:
    """Request a handover and wait; `RequestError` if refused, or if nobody takes over in half a minute."""
    before = view.lease()
    if before is None or not before.active:
        raise PreconditionError("no agent is active", hint="start one: deltatide run --standby")
    request = request_control(view, kind="handover")
    released: float | None = None
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        now = view.lease()
        if now is None or now.term > before.term:
            return _done(before, now, released)
        if now.released and released is None:
            released = time.monotonic()
        if (why := rejection_of(view.store, request)) is not None:
            raise RequestError(f"not handed over: {why}", hint="start all agents with: run --standby")
        time.sleep(POLL_SECONDS)
    if request in pending_ids(view.store):
        raise RequestError("the active agent has not taken the request", hint="see: deltatide status")
    raise RequestError("nobody took over", hint="see: deltatide status")


def _done(before: Holder, now: Holder | None, released: float | None) -> Handover:
    if now is None:
        raise RequestError("somebody removed the lease", hint="see: deltatide status")
    if _process(now) == _process(before):
        raise RequestError(
            "no standby took over, so the same agent continues", hint="start another: deltatide run --standby"
        )
    seconds = 0.0 if released is None else time.monotonic() - released
    return Handover(f"process {now.pid} on {now.host}", now.term, seconds)


def _process(holder: Holder) -> tuple[object, ...]:
    """Return what tells processes apart: containers may share a host's name, and each has a process 1."""
    return holder.host, holder.process
