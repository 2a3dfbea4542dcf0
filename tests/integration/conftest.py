"""What tests with real databases and stores share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_disk() -> Iterator[None]:
    """No landing zone here must survive a crash of the machine, and a test flushes dozens of files."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _handle: None)
        yield
