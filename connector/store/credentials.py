"""Credentials for S3, as boto's default chain finds them, renewed before a request has to wait for that.

Temporary ones (of a role, a pod, a machine) are to be renewed minutes before they expire. boto has a request
that comes then do it: if the service that gives them hangs, that request waits for it, and an agent may lose
its lease, whose credentials hold. So here a thread renews them, and requests go on with the former ones.

Invariants: a request waits for new credentials only if it has none that hold, and not for ever: of what gives
them, some know no limit (a process).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import botocore.session
from botocore.config import Config as ClientConfig
from botocore.credentials import Credentials, EnvProvider, ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

HOLD_SECONDS = 5
"""Credentials that hold for less count as expired: a request takes time. Where clocks differ by more, the
store may refuse them before, which passes (`S3Store`).
"""

RENEW_AGAIN_SECONDS = 10.0
"""The pause before credentials that could not be renewed are renewed again."""

ANSWER_SECONDS = 5.0
"""How long a service that gives credentials may take to answer; it is asked four times."""

WAIT_SECONDS = 30.0
"""How long a request waits for credentials: more than those four take."""


def new_session(region: str | None = None) -> boto3.session.Session:
    """Return a session for one thread to open clients with, which share its credentials.

    `region`: if not the default one; a role is asked for there, too.
    """
    session = botocore.session.Session()
    if region is not None:  # before its chain of providers is built, which keeps it
        session.set_config_variable("region", region)
    session.set_default_client_config(
        ClientConfig(
            connect_timeout=ANSWER_SECONDS,
            read_timeout=ANSWER_SECONDS,
            retries={"mode": "standard", "total_max_attempts": 4},
        )
    )
    session.register_component("credential_provider", _Chain(session.get_component("credential_provider")))
    return boto3.session.Session(botocore_session=session)


class _Chain:
    """botocore's chain of providers; what it finds is renewed ahead.

    Not what our environment gives, which nobody changes: when it has expired is for the store to say, or for
    whoever gives a role for it.
    """

    def __init__(self, chain: Any) -> None:
        self._chain = chain
        sourcers = [getattr(provider, "_credential_sourcer", None) for provider in chain.providers]
        sources = [each for sourcer in sourcers for each in getattr(sourcer, "_providers", ())]
        environments: list[Any] = [e for e in (*chain.providers, *sources) if isinstance(e, EnvProvider)]
        for environment in environments:
            environment._mapping["expiry_time"] = ""  # no variable's name

    def load_credentials(self) -> Credentials | None:
        found: Credentials | None = self._chain.load_credentials()
        return RenewedAhead(found) if isinstance(found, RefreshableCredentials) else found


class RenewedAhead(Credentials):
    """Temporary credentials, which a thread renews as soon as botocore would; safe for threads.

    Those held are kept with their own expiry: a renewal may bring some that have expired already.
    """

    def __init__(self, renewable: RefreshableCredentials) -> None:
        self._renewable: Any = renewable  # its types leave out the expiry
        self._held: tuple[ReadOnlyCredentials, datetime] | None = None
        self._beginning = threading.Lock()
        self._asked: futures.Future[ReadOnlyCredentials] | None = None
        self._again_at = 0.0
        self.method = renewable.method

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return credentials that hold, for one request; blocks only if there are none."""
        held = self._holding()
        if held is None:
            return self._wait(self._ask())
        if self._renewable.refresh_needed() and time.monotonic() >= self._again_at:
            self._ask(ahead=True)
        return held

    def get_deferred_property(self, property_name: str) -> Callable[[], str | None]:
        """Return a function that returns a property as it is then."""
        return lambda: getattr(self.get_frozen_credentials(), property_name, None)

    def _holding(self) -> ReadOnlyCredentials | None:
        if self._held is None:
            return None
        left = self._held[1] - datetime.now(timezone.utc)
        return self._held[0] if left > timedelta(seconds=HOLD_SECONDS) else None

    def _ask(self, *, ahead: bool = False) -> futures.Future[ReadOnlyCredentials]:
        """Have a thread ask botocore, unless one does; return what will be its answer."""
        with self._beginning:
            if self._asked is None or self._asked.done():
                asked = self._asked = futures.Future()
                try:
                    threading.Thread(
                        target=self._answer, args=[asked, ahead], name="credentials", daemon=True
                    ).start()
                except RuntimeError as error:  # no thread is to be had now
                    asked.set_exception(self._failure(error))
            return self._asked

    def _answer(self, asked: futures.Future[ReadOnlyCredentials], ahead: bool) -> None:
        try:
            found: ReadOnlyCredentials = self._renewable.get_frozen_credentials()
            self._held = found, self._renewable._expiry_time
        except BaseException as error:  # for whoever waits; botocore has logged it
            # A RuntimeError is what it raises for new ones that have expired.
            answer = functools.partial(
                asked.set_exception, self._failure(error) if isinstance(error, RuntimeError) else error
            )
        else:
            answer = functools.partial(asked.set_result, found)
        if ahead and self._renewable.refresh_needed():
            self._again_at = time.monotonic() + RENEW_AGAIN_SECONDS
        answer()

    def _wait(self, asked: futures.Future[ReadOnlyCredentials]) -> ReadOnlyCredentials:
        if futures.wait([asked], WAIT_SECONDS).not_done:
            raise self._failure(f"no answer for {WAIT_SECONDS:g} s")
        return asked.result()

    def _failure(self, reason: object) -> CredentialRetrievalError:
        return CredentialRetrievalError(provider=self.method, error_msg=str(reason))
