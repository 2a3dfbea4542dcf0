"""Find the programs that check files of ours: on the PATH, or where ``.ci/fetch-servers`` puts them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache"
PLACES = (CACHE / "bin", CACHE / "linters" / "bin")


def linter(name: str) -> str:
    """Return the path of a program; skip the test where it is missing."""
    places = os.pathsep.join([os.environ["PATH"], *map(str, PLACES)])
    found = shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is not here, nor could .ci/fetch-servers get it")
    return found


def lint(name: str, *arguments: str | Path, text: str = "") -> str:
    """Run a program to completion; fail unless it finds nothing wrong, else return what it prints."""
    command = [linter(name), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
