"""Requests of an agent that hang, on a real S3 server: the lease is kept, or taken over without harm."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest

from connector import agent
from connector.capture.manifest_history import ManifestHistory
from connector.config import LandingConfig
from connector.landing.lease import Lease, read_lease
from connector.landing.manifest import SourceIdentity
from connector.store.factory import open_store
from connector.store.protocol import Store
from tests.support.agent.agents import AnsweringProbe, CheckedSource, config_of, shop
from tests.support.background import Background
from tests.support.servers.faulty_s3 import TIMEOUT, TIMEOUT_AFTER, FaultyS3, is_create
from tests.support.servers.s3_proxy import Exchange, S3Proxy
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


COMMITS = """
import sys
from connector.capture.manifest_history import ManifestHistory
from connector.config import LandingConfig
from connector.landing.lease import Lease
from connector.store.factory import open_store

store = open_store(LandingConfig.model_validate_json(sys.argv[1]), "shop")
history = ManifestHistory(store, Lease.acquire(store, 60).term)
history.load(lambda landed: landed.source)
history.commit()
"""


class HeldCommits(S3Proxy):
    """Keeps what creates a manifest until it `goes_on`, though its sender may be gone."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.is_held, self.goes_on, self.has_passed = (threading.Event() for _ in range(3))

    def handle(self, exchange: Exchange) -> None:
        if not (is_create(exchange) and "/manifest/" in exchange.path):
            exchange.answer(exchange.forward())
            return
        self.is_held.set()
        self.goes_on.wait(30)
        exchange.forward()
        self.has_passed.set()
        exchange.drop()


def test_a_commit_of_an_agent_that_was_killed_takes_effect_late_and_stops_nobody(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    landing = LandingConfig.model_validate({"url": f"s3://{s3.bucket}/landing", "endpoint": s3.endpoint})
    store = open_store(landing, "shop")
    shop_source = SourceIdentity(name="shop", kind="postgres", system_id="7", database="shop")
    ManifestHistory(store, 1).begin(shop_source, epoch=1, position=100)
    with HeldCommits(s3.endpoint) as proxy:
        through = landing.model_copy(update={"endpoint": proxy.endpoint}).model_dump_json(exclude_none=True)
        former = subprocess.Popen([sys.executable, "-c", COMMITS, through])
        try:
            wait_until(lambda: proxy.is_held.is_set() or former.poll() is not None, "it commits")
        finally:
            former.kill()
            former.wait()
        lease = Lease.acquire(store, 60)
        assert lease.term == 3, "its process is gone, so the lease is taken at once"
        history = ManifestHistory(store, lease.term, closes_fence=lease.unfenced)
        history.load(lambda landed: landed.source)
        proxy.goes_on.set()
        assert proxy.has_passed.wait(30)
        assert history.commit(position=200).term == 3
