"""A log of row changes that waits to be read, as often as one likes, by the agent or by pg_recvlogical.

A template slot and a copy of the landing zone stand where the log begins; each run starts from copies of
them. So no run has to dump the table first, and all read the same bytes.

Rates are those of a log that goes on: behind the changes that are measured come others, so that a run ends
with a manifest that was full, not with one that waited for `flush_seconds`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.agent import PUBLICATION, SLOT, Agent
from tests.bench.server import ROW, Bench, Database

CHANGES = 500_000
CHANGES_BEHIND = 250_000
"""More than fill a manifest, which has 32 MiB of log."""
CHANGES_PER_TRANSACTION = 100
TEMPLATE, REFERENCE = "bench_template", "bench_reference"

_WRITE = f"""
DO $$ BEGIN
    FOR t IN {{first}} .. {{last}} LOOP
        INSERT INTO changes SELECT {ROW} FROM generate_series(t * 60 + 1, t * 60 + 60) n;
        UPDATE changes SET quantity = quantity + 1, changed_at = changed_at + interval '1 day'
            WHERE id BETWEEN t * 60 + 1 AND t * 60 + 30;
        DELETE FROM changes WHERE id BETWEEN t * 60 + 51 AND t * 60 + 60;
        COMMIT;
    END LOOP;
END $$"""
"""60 inserts, 30 updates and 10 deletes in each transaction."""


@dataclass(frozen=True)
class Run:
    """What one run of the agent took, from its first manifest to the one that covers the end."""

    changes_per_second: float
    cpu_seconds_per_million: float
    peak_mb: float


class WaitingLog:
    """`changes` row changes up to `end`, and some behind them up to `last`; read again by each run."""

    def __init__(self, database: Database, folder: Path, changes: int, end: int, last: int) -> None:
        self.database, self.changes, self.end, self.last = database, changes, end, last
        self._folder = folder

    def receive(self, url: str) -> float:
        """Give the changes per second of pg_recvlogical, up to `end`."""
        self.database.copy_slot(TEMPLATE, REFERENCE)
        seconds = self.database.receive(url, REFERENCE, PUBLICATION, self.end)
        self.database.drop_slot(REFERENCE)
        return self.changes / seconds

    def stream(self, url: str) -> Run:
        """Let an agent read it that never reads in bulk."""
        return self._run(url, self.end, streaming=True)

    def catch_up(self, url: str) -> Run:
        """Let an agent read all of it, as it likes."""
        return self._run(url, self.last, streaming=False)

    def _run(self, url: str, end: int, *, streaming: bool) -> Run:
        self.database.copy_slot(TEMPLATE, SLOT)
        folder = self._folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "template", folder)
        with Agent(folder, url, streaming=streaming) as agent:
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
    """Write the log; it is dropped at the end."""
    folder = bench.folder / "log"
    changes = bench.rows(CHANGES)
    transactions = changes // CHANGES_PER_TRANSACTION
    behind = CHANGES_BEHIND // CHANGES_PER_TRANSACTION
    with bench.database("bench_log") as database:
        database.create_table("changes")
        with Agent(folder / "template", database.url) as agent:
            agent.until(lambda manifest: manifest.exact)
        database.copy_slot(SLOT, TEMPLATE)
        database.execute(_WRITE.format(first=0, last=transactions - 1))
        end = database.end_of_log()
        database.execute(_WRITE.format(first=transactions, last=transactions + behind - 1))
        try:
            yield WaitingLog(database, folder, changes, end, database.end_of_log())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
