"""Short waits for capture tests: shorter retries and polls, the same conditions."""

from __future__ import annotations

import pytest

from connector.capture import catalog_watcher, request_intake, retry
from connector.capture.dumps import workers as dump_workers


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries and polls take hundredths of a second."""
    monkeypatch.setattr(retry, "RECONNECT_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(dump_workers, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(dump_workers, "REST_SECONDS", 0.05)
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(request_intake, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 0.02)
