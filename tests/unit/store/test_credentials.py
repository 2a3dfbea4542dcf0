"""Temporary credentials are held with their own expiry, whatever a renewal brings."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from connector.store.credentials import RenewedAhead, new_session
from tests.support.waiting import wait_until


class Given:
    """What gives credentials: each holds for `seconds` from when it is asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times = seconds, 0

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        expiry = datetime.now(timezone.utc) + timedelta(seconds=self.seconds)
        return {"access_key": f"key{self.times}", "secret_key": "s", "token": "t",
                "expiry_time": expiry.isoformat()}  # fmt: skip


def renewed(given: Given) -> RenewedAhead:
    renewable = RefreshableCredentials.create_from_metadata(given(), refresh_using=given, method="test")
    return RenewedAhead(renewable)


def test_a_renewal_that_brings_expired_credentials_leaves_those_that_hold() -> None:
    given = Given(620)
    credentials = renewed(given)
    first, asked = credentials.get_frozen_credentials(), given.times
    given.seconds = -60
    credentials.get_frozen_credentials()
    wait_until(lambda: given.times > asked, "they are renewed ahead")
    for _ in range(3):
        assert credentials.get_frozen_credentials() == first


def test_credentials_that_have_expired_when_they_come_are_a_failure_that_a_store_knows() -> None:
    given = Given(5)
    credentials = renewed(given)
    given.seconds = -60
    with pytest.raises(CredentialRetrievalError, match="still expired"):
        credentials.get_frozen_credentials()


def test_a_thread_that_can_not_start_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    given = Given(620)
    credentials = renewed(given)
    first = credentials.get_frozen_credentials()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert credentials.get_frozen_credentials() == first
    given.seconds = 3600
    wait_until(lambda: credentials.get_frozen_credentials() != first, "they are renewed")


def test_a_role_is_asked_for_in_the_region_of_the_bucket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "token").write_text("token")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    session = new_session("cn-north-1")
    chain = session._session.get_component("credential_provider")._chain
    provider = next(p for p in chain.providers if p.METHOD == "assume-role-with-web-identity")
    client = provider._client_creator("sts")
    assert client.meta.endpoint_url == "https://sts.cn-north-1.amazonaws.com.cn"
