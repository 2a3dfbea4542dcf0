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
from typing import Any

import boto3
import botocore.session
from botocore.config import Config as ClientConfig
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials

HOLD_SECONDS = 60
"""Credentials that hold for less count as expired: a request takes time, and clocks differ."""

RENEW_AGAIN_SECONDS = 10.0
"""The pause before credentials that could not be renewed are renewed again."""

ANSWER_SECONDS = 5.0
"""How long a service that gives credentials may take to answer; it is asked four times."""


def new_session() -> boto3.session.Session:
    """Return a session for one thread to open clients with, which share its credentials."""
    session = botocore.session.Session()
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
    """Temporary credentials, which a thread renews as soon as botocore would; safe for threads."""

    def __init__(self, renewable: RefreshableCredentials) -> None:
        self._renewable = renewable
        self._held: ReadOnlyCredentials | None = None
        self._renewing = threading.Lock()
        self.method = renewable.method

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return credentials that hold, for one request; blocks only if there are none yet."""
        held = self._held
        if held is None or self._renewable.refresh_needed(HOLD_SECONDS):
            held = self._held = self._renewable.get_frozen_credentials()
        elif self._renewable.refresh_needed() and self._renewing.acquire(blocking=False):
            threading.Thread(target=self._renew, name="credentials", daemon=True).start()
        return held

    def get_deferred_property(self, property_name: str) -> Callable[[], str | None]:
        """Return a function that returns a property as it is then."""
        return lambda: getattr(self.get_frozen_credentials(), property_name, None)

    def _renew(self) -> None:
        try:
            with suppress(Exception):  # botocore has logged it, and those that we have still hold
                self._held = self._renewable.get_frozen_credentials()
            if self._renewable.refresh_needed():
                time.sleep(RENEW_AGAIN_SECONDS)
        finally:
            self._renewing.release()
