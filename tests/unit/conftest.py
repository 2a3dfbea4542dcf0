"""Short waits for capture tests: shorter retries and polls, the same conditions."""

from __future__ import annotations

import pytest

from tests.support.agent.short_waits import shorten_waits


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries and polls take hundredths of a second."""
    shorten_waits(monkeypatch, 0.02, check_seconds=0.02)
