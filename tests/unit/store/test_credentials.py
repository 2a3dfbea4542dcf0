"""Temporary credentials are held with their own expiry, whatever a renewal brings."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError, CredentialRetrievalError

from connector.errors import PreconditionError, TransientError
from connector.store import credentials as credentials_module
from connector.store.credentials import RenewedAhead, new_session
from connector.store.s3 import S3Store
from tests.support.waiting import wait_until


class Given:
    """What gives credentials: each holds for `seconds` from when it is asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times, self.answers = seconds, 0, threading.Event()
        self.answers.set()

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        self.answers.wait(30)
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


def test_in_their_last_minute_no_request_waits_for_what_gives_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process, for example, whose time nobody limits."""
    given = Given(30)
    credentials = renewed(given)
    first = credentials.get_frozen_credentials()
    wait_until(lambda: credentials._asked is None or credentials._asked.done(), "it is not asked now")
    given.answers.clear()
    monkeypatch.setattr(credentials, "_again_at", 0.0)
    begun, asked = time.monotonic(), given.times
    for _ in range(3):
        assert credentials.get_frozen_credentials().secret_key == first.secret_key
    assert time.monotonic() - begun < 5
    wait_until(lambda: given.times == asked + 1, "one renewal is under way")
    given.answers.set()


def test_what_gives_credentials_and_never_answers_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials_module, "WAIT_SECONDS", 0.1)
    given = Given(3)
    credentials = renewed(given)
    given.answers.clear()
    asked = given.times
    for _ in range(3):
        with pytest.raises(CredentialRetrievalError, match=r"no answer for 0.1 s"):
            credentials.get_frozen_credentials()
    assert given.times == asked + 1, "it is asked once"
    given.seconds = 3600
    given.answers.set()
    wait_until(lambda: credentials._holding() is not None, "its answer is used")


@pytest.mark.parametrize(
    ("renews", "operation", "error"),
    [
        (True, "PutObject", TransientError),
        (False, "PutObject", PreconditionError),
        (True, "AssumeRole", PreconditionError),
        (True, "AssumeRoleWithWebIdentity", PreconditionError),
    ],
)
def test_credentials_that_the_store_calls_expired_are_a_passing_failure_if_they_are_renewed(
    renews: bool, operation: str, error: type[Exception]
) -> None:
    """Those with which a role is asked for are not."""

    class Client:
        def put_object(self, **_: Any) -> Any:
            raise ClientError({"Error": {"Code": "ExpiredToken"}}, operation)

    client: Any = Client()
    with pytest.raises(error):
        S3Store(client, "bucket", "landing", renews=renews).put("a", b"")


def test_credentials_of_the_environment_are_not_renewed_and_the_store_says_when_they_have_expired(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """With their expiry, as `aws configure export-credentials` writes them."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00+00:00")
    found = new_session("us-east-1").get_credentials()
    assert found is not None
    assert found.get_frozen_credentials()[:3] == ("key", "secret", "token")
    assert not isinstance(found, RenewedAhead)
    # As those with which a role is asked for, too.
    (tmp_path / "config").write_text("[profile any]\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "any")
    chain = new_session("us-east-1")._session.get_component("credential_provider")._chain
    role = next(provider for provider in chain.providers if provider.METHOD == "assume-role")
    source = role._credential_sourcer.source_credentials("Environment")
    assert source.get_frozen_credentials()[:3] == ("key", "secret", "token")


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
