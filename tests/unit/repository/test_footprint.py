from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import connector.cli.agent
assert "pyarrow" not in sys.modules, "Arrow is imported before its allocator can be chosen"
from connector.footprint import keep_small
keep_small()
import connector.agent, connector.postgres.source
import numpy, pyarrow
pyarrow.array(numpy.arange(3))
assert "pandas" not in sys.modules, "Arrow has imported pandas"
print(pyarrow.default_memory_pool().backend_name)
"""


def run(program: str, **environment: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


def test_the_agents_process_imports_no_pandas() -> None:
    pytest.importorskip("pandas")
    run(PROGRAM)


def test_an_allocator_that_the_user_chose_stays() -> None:
    assert run(PROGRAM, ARROW_DEFAULT_MEMORY_POOL="system") == "system"
