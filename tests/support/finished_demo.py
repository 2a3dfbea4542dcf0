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


@functools.cache
def finished_demo(folder: Path, source: str = "postgres") -> Demo:
    """Run the demo with few rows, once per test run; keep its landing zone and lake."""
    command = [sys.executable, "-m", "connector.cli", "demo", "--source", source]
    command += ["--folder", str(folder), "--rows", "5000", "--seconds", "8"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEMO_SECONDS_LIMIT,
        check=False,
    )
    return Demo(folder, done.returncode, done.stdout + done.stderr)
