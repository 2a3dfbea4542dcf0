"""Latency from a commit in the source to the manifest that holds it, under steady load; then the idle cost.

Latency counts from when a statement is sent, because MariaDB's log has commit times in whole seconds.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tests.bench.capture.agent import Agent, Moment
from tests.bench.databases.database import Bench, Database
from tests.bench.report import Measurement, at_most

FLUSH_SECONDS = 1.0
CHANGES_PER_SECOND = 1000
CHANGES_PER_COMMIT = 10
LOAD_SECONDS, IDLE_SECONDS = 12, 10

ASKED, POLL_SECONDS = ("api/agent", "api/overview"), 2.0
"""As in the page's own program, `connector/control/page/page.js`."""

Times = npt.NDArray[np.float64]
"""Seconds since 1970."""


def latency(bench: Bench) -> Iterator[Measurement]:
    """Measure both with one agent."""
    folder = bench.folder / "latency"
    with bench.server.database("bench_latency") as database:
        database.create_table("changes")
        with Agent(folder, database, landing=f"flush_seconds = {FLUSH_SECONDS}") as agent:
            agent.until(lambda manifest: manifest.exact)
            cpu = agent.cpu_seconds()
            seconds = LOAD_SECONDS // 3 if bench.quick else LOAD_SECONDS
            sent = write_steadily(database, seconds, CHANGES_PER_SECOND)
            cpu = agent.cpu_seconds() - cpu
            latencies = _latencies(agent, sent)
            seconds = IDLE_SECONDS // 2 if bench.quick else IDLE_SECONDS
            idle = _idle_percent(agent, seconds)
            with _page_open(agent.address):
                shown = _idle_percent(agent, seconds)
    shutil.rmtree(folder)
    load = f"{CHANGES_PER_SECOND:,} changes/s, flush_seconds {FLUSH_SECONDS:g}"
    for percentile, target in ((50, None), (99, at_most(FLUSH_SECONDS + 0.5))):
        found = float(np.percentile(latencies, percentile))
        yield Measurement(bench.name(f"commit to manifest, p{percentile}, {load}"), found, "s", target=target)
    rows = len(latencies)
    name = bench.name(f"agent under {CHANGES_PER_SECOND:,} changes/s")
    yield Measurement(name, cpu / rows * CHANGES_PER_SECOND * 100, "% of a core")
    yield Measurement(bench.name("idle agent, serving its page"), idle, "% of a core", target=at_most(2))
    yield Measurement(
        bench.name("idle agent, its page open in a browser"), shown, "% of a core", target=at_most(2)
    )


def write_steadily(database: Database, seconds: float, rate: int, rows: int = 0) -> Times:
    """Insert at a steady rate per second, after the first `rows`; return when each row was sent, in order."""
    period = CHANGES_PER_COMMIT / rate
    begun, written, sent = time.monotonic(), 0, []
    with database.inserting("changes") as insert:
        while written < seconds * rate:
            sent += [time.time()] * CHANGES_PER_COMMIT
            insert(rows + written + 1, rows + written + CHANGES_PER_COMMIT)
            written += CHANGES_PER_COMMIT
            time.sleep(max(0.0, begun + written / CHANGES_PER_COMMIT * period - time.monotonic()))
    return np.array(sent)


def _latencies(agent: Agent, sent: Times) -> list[float]:
    """Return the seconds from commit to manifest for each change."""
    seconds: list[float] = []
    while len(seconds) < len(sent):
        seconds += _latencies_of(agent, agent.next(), sent)
    return seconds


def _latencies_of(agent: Agent, moment: Moment, sent: Times) -> list[float]:
    seconds: list[float] = []
    for file in moment.manifest.files:
        numbers = pq.read_table(agent.zone / file.path, columns=["id"])["id"].to_numpy()
        seconds += (moment.created - sent[numbers - 1]).tolist()
    return seconds


@contextmanager
def _page_open(address: str) -> Iterator[None]:
    """Ask the agent what its page asks, as often; fail if it is not answered.

    The first answer is awaited: for it the agent reads the last hundred manifests, each only once.
    """
    closed, failure = threading.Event(), list[Exception]()

    def ask() -> None:
        for path in ASKED:
            with urlopen(f"http://{address}/{path}", timeout=10) as answer:
                answer.read()

    def ask_until_closed() -> None:
        try:
            while not closed.wait(POLL_SECONDS):
                ask()
        except Exception as error:
            failure.append(error)

    ask()
    thread = threading.Thread(target=ask_until_closed, name="page", daemon=True)
    thread.start()
    yield
    closed.set()
    thread.join()
    if failure:
        raise failure[0]


def _idle_percent(agent: Agent, seconds: float) -> float:
    time.sleep(1.0)  # work left over from the load is not idle cost
    cpu, begun = agent.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (agent.cpu_seconds() - cpu) / (time.monotonic() - begun) * 100
