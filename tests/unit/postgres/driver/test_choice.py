"""The way to copy and stream, chosen in a process of its own, as libpq's functions are found once."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHOOSE = """
import ctypes, logging
import psycopg2.extensions
{hide}
from connector.postgres.driver.choice import driver
logging.basicConfig(format="%(levelname)s %(message)s")
assert driver() is driver()
print(driver().__name__)
"""

HIDE = {
    "no libpq linked": "ctypes.PyDLL = lambda path: ctypes.CDLL(None)",
    "a library that can't be opened": "ctypes.PyDLL = lambda path: ctypes.CDLL('/nowhere.so')",
    "no address of the connection": "psycopg2.extensions.connection = type('connection', (), {})",
    "another libpq": "psycopg2.extensions.libpq_version = lambda: 90000",
}


def choose(hide: str) -> tuple[str, list[str]]:
    """The chosen module's name, and the warnings."""
    program = [sys.executable, "-c", CHOOSE.format(hide=hide)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout.strip().rpartition(".")[2], done.stderr.splitlines()


def test_libpq_is_called_where_it_can_be_without_a_word() -> None:
    assert choose("") == ("by_libpq", [])


@pytest.mark.parametrize("hidden", HIDE)
def test_psycopg2_alone_is_used_where_it_cannot_with_one_warning(hidden: str) -> None:
    name, said = choose(HIDE[hidden])
    assert name == "by_psycopg2"
    (line,) = said
    assert line.startswith("WARNING can't call psycopg2's libpq directly (")
