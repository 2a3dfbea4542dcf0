"""Command lines in files of others (schedulers, units, images), parsed by the command's own parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

from connector.cli import app


def assert_parsed(arguments: Sequence[str], config: str) -> None:
    """Check that the command takes these arguments, and that they name this configuration."""
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name, *options = arguments
    parsed = commands[name].make_context(name, list(options))  # raises for what it does not know
    assert parsed.params["config"] == Path(config)
