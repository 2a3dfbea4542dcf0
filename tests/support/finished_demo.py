"""One finished demo, run by the installed command; several tests check what it leaves."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DEMO_SECONDS_LIMIT = 900
"""For a busy machine; a quiet one needs about one."""


@dataclass(frozen=True)
class Demo:
    """A demonstration that has ended."""

    folder: Path
    status: int
    output: str


@functools.cache
def finished_demo(folder: Path, source: str = "postgres") -> Demo:
    """Run the demonstration with few rows, once in a test run; landing zone and lake stay."""
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
