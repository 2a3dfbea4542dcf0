"""Short waits for the tests of capture: its retries and polls, not what they wait for."""

from __future__ import annotations

import pytest

from connector import capture, dumper, ledger, request_desk, watch


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry and poll within hundredths of a second."""
    monkeypatch.setattr(capture, "RECONNECT_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(dumper, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(dumper, "REST_SECONDS", 0.05)
    monkeypatch.setattr(ledger, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(request_desk, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
