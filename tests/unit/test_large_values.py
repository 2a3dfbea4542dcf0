"""Values of many MiB: memory follows the largest one, and time its size."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("way", ["dump", "log"])
@pytest.mark.parametrize("type_", ["text", "bytea"])
def test_a_large_value_takes_three_times_its_text_and_time_in_proportion_to_it(way: str, type_: str) -> None:
    command = [sys.executable, "-m", "tests.support.source.large_value", way, type_, "48"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times, slower = map(float, done.stdout.split())
    assert times < 3.3
    assert slower < 100, "16 in proportion to the size, 256 with its square"
