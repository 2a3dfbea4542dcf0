"""Which process of `pytest -n` runs which files, and in which order.

Spark tests keep a processor busy, tests with servers mostly wait: run beside each other, they leave none
idle. So every other process begins with the one kind, the rest with the other. It also saves work: half of
the processes start no Spark session, which takes 40 seconds of CPU time until it is warm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

BUSY = (
    "tests/acceptance/agent/test_missing_columns.py",
    "tests/acceptance/agent/test_schema_changes.py",
    "tests/acceptance/agent/test_tables.py",
    "tests/acceptance/lake/",
    "tests/acceptance/test_bad_input.py",
    "tests/spark/",
    "tests/unit/",
)
"""Beginnings of the files that use the tests' Spark session, or need no server."""

LONGEST = (
    "tests/acceptance/test_demo.py",
    "tests/integration/mysql/log/test_failover.py",
    "tests/integration/test_schema_changes.py",
    "tests/acceptance/test_chaos.py",
    "tests/integration/mysql/log/test_statements.py",
    "tests/integration/test_lost_connections.py",
    "tests/spark/test_change_set.py",
    "tests/acceptance/lake/test_verify.py",
    "tests/spark/columns/test_columns.py",
    "tests/spark/reading/test_live_views.py",
    "tests/spark/test_oracle.py",
    "tests/spark/columns/test_built_with.py",
)
"""Begun first: one that begins last keeps a single process at work in the end."""


class SideBySide(LoadFileScheduling):
    """Whole files, first those of a process's own kind; then the last ones of the others, which are short."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        files = list(self.workqueue)
        busy = int(node.gateway.id.removeprefix("gw")) % 2 == 1
        own = [file for file in files if file.startswith(BUSY) == busy]
        first = next((file for file in LONGEST if file in own), own[0] if own else files[-1])
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def scheduler(config: Any, log: Any) -> SideBySide | None:
    """Return the scheduler for `--dist loadfile`; None for xdist's own ones."""
    return SideBySide(config, log) if config.getoption("dist") == "loadfile" else None
