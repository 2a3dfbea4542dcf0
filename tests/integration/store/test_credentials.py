"""Temporary credentials, on a real S3 server: they are renewed without a request that waits for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connector.config import LandingConfig
from connector.errors import TransientError
from connector.store import credentials
from connector.store.s3 import S3Store
from tests.support.servers.s3_server import S3
from tests.support.servers.sts_server import StsServer
from tests.support.waiting import wait_until

MINUTE = 60.0
Open = Callable[[float], tuple[StsServer, S3Store, S3Store]]


@pytest.fixture
def opened(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Open]:
    """Opens an agent's two stores as a role whose credentials hold for so many seconds."""
    with ExitStack() as ending:

        def open_both(seconds: float) -> tuple[StsServer, S3Store, S3Store]:
            sts = ending.enter_context(StsServer(s3, tmp_path, seconds))
            for name in s3.environment:
                monkeypatch.delenv(name, raising=False)
            for name, value in sts.environment.items():
                monkeypatch.setenv(name, value)
            landing = LandingConfig.model_validate(
                {"url": f"s3://{s3.bucket}/landing", "endpoint": s3.endpoint}
            )
            patient, hurried = S3Store.open_both(landing, "shop", answer_seconds=3)
            return sts, patient, hurried

        yield open_both


def accounts_of(store: S3Store) -> list[int]:
    """Return the accounts whose credentials requests are signed with from now on."""
    seen: list[int] = []

    def note(request_signer: Any, **_: object) -> None:
        seen.append(int(request_signer._credentials.get_frozen_credentials().account_id))

    store._client.meta.events.register("before-sign.s3", note)
    return seen


@pytest.mark.parametrize(
    "minutes", [12, 5, 0.5], ids=["botocore may renew", "botocore must renew", "they are about to expire"]
)
def test_no_request_waits_for_credentials_while_the_former_ones_hold(opened: Open, minutes: float) -> None:
    sts, patient, hurried = opened(minutes * MINUTE)
    patient.put("a", b"1")
    assert (sts.asked, sts.answered) == (1, 1)
    sts.hangs.set()
    sts.seconds = 60 * MINUTE
    used = accounts_of(hurried)
    begun = time.monotonic()
    for store in (patient, hurried) * 3:
        assert store.read("a") == b"1"
    assert time.monotonic() - begun < credentials.ANSWER_SECONDS / 2
    assert (set(used), sts.answered) == ({1}, 1), "those of the other store, too"
    wait_until(lambda: sts.asked > 1, "they are renewed")
    sts.hangs.clear()
    wait_until(lambda: (hurried.read("a"), used[-1])[1] > 1, "the new ones are used", seconds=20)


def test_what_gives_credentials_and_hangs_is_given_up_and_asked_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be done without; but a request that never ends would be no failure that is retried."""
    monkeypatch.setattr(credentials, "ANSWER_SECONDS", 0.1)
    sts, patient, hurried = opened(credentials.HOLD_SECONDS / 2)
    sts.hangs.set()
    for store in (patient, hurried):
        with pytest.raises(TransientError):
            store.read("a")
    sts.hangs.clear()
    assert hurried.read("a") is None


def test_credentials_that_could_not_be_renewed_are_renewed_again_after_a_pause(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(credentials, "RENEW_AGAIN_SECONDS", 0.5)
    sts, _, hurried = opened(5 * MINUTE)
    hurried.put("a", b"1")
    sts.hangs.set()
    before = sts.asked

    def asked() -> bool:
        assert hurried.read("a") == b"1"
        return sts.asked >= before + 8

    begun = time.monotonic()
    wait_until(asked, "two rounds of four are over", seconds=60)
    assert time.monotonic() - begun > 0.5
