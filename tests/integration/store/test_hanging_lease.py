"""A request for the lease that hangs, on a real S3 server: it is given up while the lease still holds."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from connector import agent
from connector.config import LandingConfig
from connector.landing.lease import Lease, read_lease
from connector.store.factory import open_store
from connector.store.protocol import Store
from tests.support.agent.agents import AnsweringProbe, CheckedSource, config_of, shop
from tests.support.background import Background
from tests.support.servers.faulty_s3 import TIMEOUT, TIMEOUT_AFTER, FaultyS3
from tests.support.servers.s3_server import S3
from tests.support.waiting import wait_until

LEASE_SECONDS = 6.0


class Standby(Background):
    """Waits for the lease, which it should not get."""

    lease: Lease | None = None

    def __init__(self, store: Store) -> None:
        super().__init__("standby")
        self.store = store

    def work(self) -> None:
        """Wait until stopped."""
        with suppress(SystemExit):
            self.lease = Lease.acquire(self.store, LEASE_SECONDS, standby=True, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise SystemExit


@pytest.mark.parametrize("kinds", [[TIMEOUT, TIMEOUT_AFTER], [TIMEOUT_AFTER, TIMEOUT]])
def test_an_agent_keeps_its_lease_though_requests_for_it_hang(
    s3: S3, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    """Whether they took effect is unknown: a renewal that did is its own, and not another agent's."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    settings: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "endpoint": s3.endpoint}
    settings["url"] = f"s3://{s3.bucket}/landing"  # which for a source means another thing
    landing = LandingConfig(**settings)
    direct = open_store(landing, "shop")
    monkeypatch.setattr(agent, "open_source", lambda of: CheckedSource(shop(rows=3), of.source, direct))
    monkeypatch.setattr(agent, "open_probe", lambda _of: AnsweringProbe())

    with FaultyS3(s3.endpoint) as proxy:

        def capture(self: Any) -> None:
            def renewals() -> int:
                found = read_lease(direct)
                assert found is not None
                assert (standby.lease, standby.failure, self._failure, found.term) == (None, None, None, 1)
                return found.renewals

            with Standby(direct) as standby:
                proxy.force(*kinds)
                wait_until(lambda: renewals() and proxy.counts.keys() >= set(kinds), "requests hang")
                before = renewals()
                wait_until(lambda: renewals() > before + 1, "it is renewed")

        monkeypatch.setattr(agent.Capture, "run", capture)
        config, through = config_of(), landing.model_copy(update={"endpoint": proxy.endpoint})
        agent.run(config.model_copy(update={"landing": through}))
    assert dict(proxy.counts) == dict.fromkeys(kinds, 1)
