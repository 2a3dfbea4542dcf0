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
    command = [*_command(Path(linter(name))), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _command(program: Path) -> list[str]:
    """Return how to run a program: a script of an environment that was moved names its former interpreter."""
    interpreter = program.with_name("python")
    is_script = program.read_bytes().startswith(b"#!") and interpreter.exists()
    return [str(interpreter), str(program)] if is_script else [str(program)]
