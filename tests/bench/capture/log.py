"""A log of row changes, written once and read repeatedly, by the agent or by the database's own decoder.

The landing zone (and the slot, where there are slots) is saved at the start of the log; each run starts from
copies. No run has to dump the table first, and all read the same bytes.

More changes follow the measured ones, as in a continuing log. So a run ends with a full manifest, not with
one that waited for `flush_seconds`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.capture.agent import Agent
from tests.bench.databases.database import Bench, Database

CHANGES = 500_000
CHANGES_BEHIND = 400_000
"""More than fills a manifest, which holds 32 MiB of log."""
CHANGES_PER_TRANSACTION = 100
"""60 inserts, 30 updates and 10 deletes."""


@dataclass(frozen=True)
class Run:
    """The cost of one run of the agent, from its first manifest to the one that covers the end."""

    changes_per_second: float
    cpu_seconds_per_million: float
    peak_mb: float


class WaitingLog:
    """`changes` row changes up to `end`, followed by others up to `last`; each run reads them again."""

    def __init__(
        self, bench: Bench, database: Database, folder: Path, changes: int, end: int, last: int
    ) -> None:
        self.database, self.changes, self.end, self.last = database, changes, end, last
        self.name, self.targets = bench.name, bench.server.targets
        self._folder = folder

    def decode(self, url: str) -> float:
        """Return the changes per second of the database's own decoder, up to `end`."""
        return self.changes / self.database.decode_log(url, self.end)

    def stream(self, url: str) -> Run:
        """Read up to `end` with an agent that never reads in bulk."""
        return self._run(url, self.end, streaming=self.database.kind == "postgres")

    def catch_up(self) -> Run:
        """Read all of the log with the default agent."""
        return self._run("", self.last, streaming=False)

    def _run(self, url: str, end: int, *, streaming: bool) -> Run:
        self.database.rewind()
        folder = self._folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "template", folder)
        with Agent(folder, self.database, url, streaming=streaming) as agent:
            moment = begun = agent.next()
            landed = 0
            while moment.manifest.position < end:
                moment = agent.next()
                landed += sum(file.rows for file in moment.manifest.files)
            peak = agent.peak_mb()
        if landed < self.changes:
            raise AssertionError(f"{landed} of {self.changes} changes have landed")
        cpu_seconds = moment.cpu_seconds - begun.cpu_seconds
        return Run(landed / (moment.created - begun.created), cpu_seconds / landed * 1e6, peak)


@contextmanager
def waiting_log(bench: Bench) -> Iterator[WaitingLog]:
    """Write the log; drop it at the end."""
    folder = bench.folder / "log"
    changes = bench.rows(CHANGES)
    transactions = changes // CHANGES_PER_TRANSACTION
    behind = CHANGES_BEHIND // CHANGES_PER_TRANSACTION
    with bench.server.database("bench_log") as database:
        database.create_table("changes")
        with Agent(folder / "template", database) as agent:
            agent.until(lambda manifest: manifest.exact)
        database.mark()
        database.write_changes("changes", 0, transactions - 1)
        end = database.end_of_log()
        database.write_changes("changes", transactions, transactions + behind - 1)
        try:
            yield WaitingLog(bench, database, folder, changes, end, database.end_of_log())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
