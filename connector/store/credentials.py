"""Credentials for S3, as boto's default chain finds them, renewed before a request has to wait for that.

Temporary ones (of a role, a pod, a machine) are to be renewed minutes before they expire. boto has a request
that comes then do it: if the service that gives them hangs, that request waits for it, and an agent may lose
its lease, whose credentials hold. So here a thread renews them, and requests go on with the former ones.

Invariant: a request waits for new credentials only if it has none that hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import botocore.session
from botocore.config import Config as ClientConfig
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

HOLD_SECONDS = 60
"""Credentials that hold for less count as expired: a request takes time, and clocks differ."""

RENEW_AGAIN_SECONDS = 10.0
"""The pause before credentials that could not be renewed are renewed again."""

ANSWER_SECONDS = 5.0
"""How long a service that gives credentials may take to answer; it is asked four times."""


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
    """botocore's chain of providers; what it finds is renewed ahead."""

    def __init__(self, chain: Any) -> None:
        self._chain = chain

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
        self._asking, self._renewing = threading.Lock(), threading.Lock()
        self.method = renewable.method

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return credentials that hold, for one request; blocks only if there are none."""
        held = self._holding()
        if held is None:
            return self._ask()
        if self._renewable.refresh_needed() and self._renewing.acquire(blocking=False):
            try:
                threading.Thread(target=self._renew, name="credentials", daemon=True).start()
            except RuntimeError:  # no thread is to be had now; those that we have still hold
                self._renewing.release()
        return held

    def get_deferred_property(self, property_name: str) -> Callable[[], str | None]:
        """Return a function that returns a property as it is then."""
        return lambda: getattr(self.get_frozen_credentials(), property_name, None)

    def _holding(self) -> ReadOnlyCredentials | None:
        if self._held is None:
            return None
        left = self._held[1] - datetime.now(timezone.utc)
        return self._held[0] if left > timedelta(seconds=HOLD_SECONDS) else None

    def _ask(self, *, ahead: bool = False) -> ReadOnlyCredentials:
        """Ask botocore; one thread at a time, so that credentials and expiry are of one answer."""
        with self._asking:
            if not ahead and (held := self._holding()) is not None:
                return held
            try:
                found: ReadOnlyCredentials = self._renewable.get_frozen_credentials()
            except RuntimeError as error:  # what it raises for new ones that have expired
                raise CredentialRetrievalError(provider=self.method, error_msg=str(error)) from error
            self._held = found, self._renewable._expiry_time
            return found

    def _renew(self) -> None:
        try:
            with suppress(Exception):  # botocore has logged it, and those that we have still hold
                self._ask(ahead=True)
            if self._renewable.refresh_needed():
                time.sleep(RENEW_AGAIN_SECONDS)
        finally:
            self._renewing.release()
