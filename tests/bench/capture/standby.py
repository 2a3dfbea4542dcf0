"""How long capture pauses when a standby takes over: from one that is paused, killed, or asked to hand over.

Each is counted until the first change that the new agent commits, under steady load.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.capture.agent import REPOSITORY, Agent
from tests.bench.databases.database import Bench, Database
from tests.bench.report import Measurement, at_most

LEASE_SECONDS = 5.0
LANDING = f"lease_seconds = {LEASE_SECONDS}\nflush_seconds = 0.2"
STANDS_BY = "standing by: process"
PERIOD_SECONDS = 0.05
HANDOVER_SECONDS = 2.0
TAKEOVER_SECONDS = LEASE_SECONDS + 3.0


def standby(bench: Bench) -> Iterator[Measurement]:
    """Measure each with two agents."""
    folder = bench.folder / "standby"
    with bench.server.database("bench_standby") as database:
        database.create_table("changes")
        with Agent(folder, database, landing=LANDING, standby=True) as one:
            one.until(lambda manifest: manifest.exact)
            with _written(database), Agent(folder, database, landing=LANDING, standby=True) as other:
                one.wait_says(STANDS_BY)
                asked = _handed_over(one)
                one.wait_says(STANDS_BY, times=2)
                paused = _taken_over(other, signal.SIGSTOP, by=one)
                other.signal(signal.SIGCONT)
                one.wait_says(STANDS_BY, times=3)
                killed = _taken_over(one, signal.SIGKILL, by=other)
    shutil.rmtree(folder)
    yield Measurement(bench.name("pause of capture, handover"), asked, "s", target=at_most(HANDOVER_SECONDS))
    lease = f"lease_seconds {LEASE_SECONDS:g}"
    name = bench.name(f"pause of capture, agent paused, {lease}")
    yield Measurement(name, paused, "s", target=at_most(TAKEOVER_SECONDS))
    name = bench.name(f"pause of capture, agent killed, {lease}")
    yield Measurement(name, killed, "s", target=at_most(TAKEOVER_SECONDS))


def _handed_over(agent: Agent) -> float:
    """Return the seconds between the last commit of the former agent and the first one of the new."""
    command = [sys.executable, "-m", "connector.cli", "handover", "-c", str(agent.configuration)]
    agent.skip()
    asking = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    last = agent.until(lambda manifest: bool(manifest.files))
    while (moment := agent.next()).manifest.term == last.manifest.term or not moment.manifest.files:
        if moment.manifest.term == last.manifest.term:
            last = moment
    if asking.wait(60):
        raise RuntimeError("deltatide handover failed")
    return moment.created - last.created


def _taken_over(agent: Agent, number: signal.Signals, *, by: Agent) -> float:
    """Signal the active agent; return the seconds until the other one commits changes."""
    by.skip()
    term = by.until(lambda manifest: bool(manifest.files)).manifest.term
    begun = time.time()
    agent.signal(number)
    return by.until(lambda m: m.term > term and bool(m.files)).created - begun


@contextmanager
def _written(database: Database) -> Iterator[None]:
    """Insert rows at a steady rate meanwhile."""
    ended = threading.Event()

    def write() -> None:
        row = 0
        with database.inserting("changes") as insert:
            while not ended.wait(PERIOD_SECONDS):
                row += 1
                insert(row, row)

    thread = threading.Thread(target=write, name="writer", daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()
