"""Short waits for tests of the capture: shorter retries and polls, the same conditions."""

from __future__ import annotations

import pytest

from connector.capture import catalog_watcher, request_intake, retry
from connector.capture.dumps import workers as dump_workers


def shorten_waits(monkeypatch: pytest.MonkeyPatch, seconds: float, check_seconds: float) -> None:
    """Make retries and polls take about `seconds`, and check the catalog every `check_seconds`."""
    monkeypatch.setattr(retry, "RECONNECT_SECONDS", (seconds / 2, seconds))
    monkeypatch.setattr(retry, "RETRY_SECONDS", seconds / 2)
    monkeypatch.setattr(dump_workers, "RETRY_SECONDS", (seconds / 2, seconds))
    monkeypatch.setattr(dump_workers, "REST_SECONDS", 0.05)
    monkeypatch.setattr(request_intake, "POLL_SECONDS", seconds)
    monkeypatch.setattr(request_intake, "POSTPONED_SECONDS", seconds)
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", check_seconds)
