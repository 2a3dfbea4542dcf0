"""`deltatide run`: what it hands to the agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from connector.cli import agent as commands
from connector.config import Config
from connector.figures.progress import Progress

FILE = """
[source]
name = "shop"
kind = "postgres"
url = "postgresql://${PGUSER}@${PGHOST}/shop"
tables = ["public.*"]
[landing]
url = "/landing"
"""


def test_a_reload_knows_the_variables_that_connecting_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenure but the first refuses to begin with a file that it can't read."""
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    loaded: list[Config] = []

    def run(config: Config, load_config: Callable[[], Config], *, standby: bool, stopped: object) -> Progress:
        for name in ("PGUSER", "PGHOST"):
            del os.environ[name]
        loaded.extend((config, load_config()))
        return Progress()

    monkeypatch.setenv("PGUSER", "deltatide")
    monkeypatch.setenv("PGHOST", "db")
    monkeypatch.setattr("connector.agent.run", run)
    monkeypatch.setattr("connector.footprint.keep_small", lambda: None)
    monkeypatch.setattr(commands, "log_to_stderr", lambda *_, **__: None)
    commands.run(file)
    assert loaded[0] == loaded[1]
