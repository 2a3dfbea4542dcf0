"""An in-memory landing zone and database for tests of the capture loop."""

from __future__ import annotations

import pytest

from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_store import MemoryStore
from tests.support.agent.agents import shop


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def database() -> MemoryDatabase:
    return shop(rows=20)
