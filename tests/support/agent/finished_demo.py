"""One finished demo, run by the installed command; several tests check its results."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DEMO_SECONDS_LIMIT = 900
"""Enough for a busy machine; an idle one needs about a minute."""


@dataclass(frozen=True)
class Demo:
    """A finished demo."""

    folder: Path
    status: int
    output: str


def demo_command(folder: Path, source: str = "postgres", rows: int = 5000) -> list[str]:
    """Return the command of a demo with few rows."""
    command = [sys.executable, "-m", "connector.cli", "demo", "--source", source]
    return [*command, "--folder", str(folder), "--rows", str(rows), "--seconds", "8"]


@functools.cache
def finished_demo(folder: Path) -> Demo:
    """Run the demo once per test run; keep its landing zone and lake."""
    done = subprocess.run(
        demo_command(folder),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEMO_SECONDS_LIMIT,
        check=False,
    )
    return Demo(folder, done.returncode, done.stdout + done.stderr)
