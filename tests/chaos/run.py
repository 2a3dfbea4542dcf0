"""One run: everything is started, faults happen for a time, then all must be right without anybody's help."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connector.landing.format import LEASE
from connector.store.factory import open_store
from tests.chaos import hurried
from tests.chaos.crew import KILLED_AT, Crew, Member
from tests.chaos.cut_checker import CutChecker, wait_checked
from tests.chaos.faults import QUICK, Faults
from tests.chaos.lake_reader import LakeReader
from tests.chaos.landed_checker import LandedChecker
from tests.chaos.manifest_line import ManifestLine
from tests.chaos.operators import Operators
from tests.chaos.shape_checker import SHAPED
from tests.chaos.tally import Tally
from tests.chaos.writers import COLUMNS, Journal, Writer, create_tables
from tests.support.agent.installed import Installation, Meddler
from tests.support.background import Background
from tests.support.servers import faulty_s3
from tests.support.servers.faulty_s3 import FaultyS3
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.s3_server import S3
from tests.support.source.tested_database import TestedDatabase
from tests.support.spark.lake import assert_lake
from tests.support.spark.spark_sessions import QUICK_START
from tests.support.waiting import wait_until

LEASE_SECONDS = 3
AGENT_MOMENTS = ("files-landed", "manifest-committed", "chunk-half-read")
MERGE_MOMENTS = (
    "table-merged", "cut-missing", "upkeep-recorded", "upkeep-done",
    "block-written", "block-recorded", "originals-given-up", "originals-removed",
)  # fmt: skip
STORE = "store: {}"
PROGRESS_SECONDS = 60.0
REST_SECONDS = 900.0
"""On a busy machine, a first merge alone may take minutes."""


@dataclass(frozen=True)
class Options:
    """How long faults happen, from which seed, amid how much. `quick`: the form in `make test`.

    `lake_on_s3`: several processes may write to the lake at a time. `shaped`: tables that it keeps in all
    shapes.
    """

    seconds: float
    seed: int
    quick: bool = False
    lake_on_s3: bool = True
    shaped: tuple[str, ...] = SHAPED
    agents: int = 3
    writers: int = 3
    commits_per_second: float = 20
    store_share: float = 0.02


@dataclass
class Figures:
    """What a run shows: faults by kind, those promised that never happened (`missing`), and named values.

    `problems` describes a few of what was wrong, `wrong` counts all.
    """

    faults: dict[str, int]
    missing: list[str]
    wrong: int
    problems: list[str]
    values: dict[str, str]

    @property
    def ok(self) -> bool:
        """Return whether nothing was wrong and every kind of fault happened."""
        return not self.wrong and not self.missing


class Run:
    """Writers on a database, agents and a merge on a store, with proxies between; a context manager."""

    def __init__(
        self, folder: Path, database: TestedDatabase, s3: S3, options: Options, say: Callable[[str], None]
    ) -> None:
        self.tally = Tally(say)
        self._database, self._options, self._say = database, options, say
        self._folder, self._s3 = folder, s3
        self._stack = ExitStack()
        self.journal = Journal(options.writers)
        self._beside: list[Member] = []

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            stack.enter_context(_environment(self._s3))
            self.store = stack.enter_context(FaultyS3(self._s3.endpoint, self._options.seed))
            self.connections = stack.enter_context(LossyProxy(self._database.port, self._options.seed))
            self.place = self._installation()
            self._create()
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _installation(self) -> Installation:
        options, place = self._options, Installation(self._folder, self._database)
        if options.lake_on_s3:
            place.lake_url, place.lake_options = f"s3://{self._s3.bucket}/lake", self._s3.delta_options
        shapes = {"shapes": ["current", "history", "changes"]}
        place.configure(
            source={"url": place.through(self.connections.port)},
            landing={
                "url": f"s3://{self._s3.bucket}/landing", "endpoint": self.store.endpoint,
                "region": self._s3.region, "flush_seconds": 1, "heartbeat_seconds": 1,
                "lease_seconds": LEASE_SECONDS, "retention_days": 0,
            },
            dump={"chunk_rows": 250, "workers": 2, "delay_seconds": 0.05},
            control={"listen": ""},
            lake={"url": place.lake_url},
            maintain={"every_hours": 0.01},
            tables={place.table(table): shapes for table in options.shaped},
        )  # fmt: skip
        return place

    def _create(self) -> None:
        options, place = self._options, self.place
        create_tables(self._database, options.writers)
        rate = options.commits_per_second / options.writers
        self.writers = [
            Writer(self._database, self.journal, number, seed=options.seed, per_second=rate)
            for number in range(1, options.writers + 1)
        ]
        agents = [
            Member("agent", lambda moment: place.start("run", "--standby", kill_at=moment), self.tally)
            for _ in range(options.agents)
        ]
        merge = Member("merge", self._started("merge", "--every", "2"), self.tally)
        self.agents = Crew(agents, AGENT_MOMENTS, options.seed, self.tally)
        self.merge = Crew([merge], MERGE_MOMENTS, options.seed + 1, self.tally)
        self.direct = open_store(
            place.config.landing.model_copy(update={"endpoint": self._s3.endpoint}), "shop"
        )
        self.landed = LandedChecker(self.direct, self._database.namespace, self.journal)
        self.line = ManifestLine(self.direct, self.landed.add)
        lake = LakeReader(place.lake_url, self._s3 if options.lake_on_s3 else None)
        self.checker = CutChecker(lake, self._database.namespace, self.journal, options.shaped)
        self.people = Operators(place, options.seed + 2, self.tally)
        self.faults = Faults(
            agents=self.agents, merge=self.merge, people=self.people, database=self._database,
            beside=self._started_beside, shared_lake=options.lake_on_s3,
            connections=self.connections, store=self.store, tally=self.tally, active=self._active,
            lease_seconds=LEASE_SECONDS, exact_cuts=lambda: self.checker.exact, seed=options.seed + 3,
        )  # fmt: skip

    def _started(self, *arguments: str) -> Callable[[str], Any]:
        return lambda moment: self.place.start(*arguments, kill_at=moment, module=hurried.MODULE)

    def _started_beside(self, command: str) -> Member:
        """Make a process that runs once, beside the merge or in its place."""
        member = Member(command, self._started(command), self.tally)
        self._beside.append(member)
        return member

    def _end(self) -> None:
        self.store.end_faults()
        for crew in (self.agents, self.merge):
            crew.kill()
        for member in self._beside:
            member.kill()

    def _active(self) -> int | None:
        data = self.direct.read(LEASE)
        return json.loads(data)["pid"] if data else None

    def carry_out(self) -> Figures:
        """Run it all, and return what it showed; never raises for what was wrong."""
        begun = time.monotonic()
        starts = [each.start for each in (self.agents, self.merge, self.line, self.checker)]
        for start in [*starts, *(writer.start for writer in self.writers)]:
            start()
        try:
            wait_until(lambda: self.line.number > 1, "the first manifests are committed", seconds=60)
            self._say(f"all is at work after {time.monotonic() - begun:.0f} s; faults begin")
            self._let_faults_happen()
            faults_ended = time.monotonic()
            self._come_to_rest()
            self._say(
                f"the lake equals the source {time.monotonic() - faults_ended:.0f} s after the last fault"
            )
        except AssertionError as error:
            self.tally.problem(str(error))
        self._report_failure(self.checker)
        self._look_through_output()
        return self._figures(time.monotonic() - begun)

    def _let_faults_happen(self) -> None:
        options = self._options
        self.store.share = options.store_share
        self.agents.share, self.merge.share = (0.0, 0.0) if options.quick else (0.3, 0.3)
        with Meddler(self._say_progress, PROGRESS_SECONDS):
            self.faults.run(options.seconds, quick=options.quick, missing=self._missing)
        self.agents.share = self.merge.share = 0.0

    def _say_progress(self) -> None:
        checker = self.checker
        differences = checker.differences + self.landed.differences
        self._say(
            f"{sum(w.commits for w in self.writers):,} commits, {self.line.number:,} manifests,"
            f" {sum(self._happened().values()):,} faults, {checker.checked:,} cuts and"
            f" {self.landed.checked:,} manifests checked,"
            f" {differences:,} differences, {self.tally.problems:,} problems"
        )

    def _come_to_rest(self) -> None:
        """Without faults, everything must catch up by itself: no process is started that was not there."""
        for writer in self.writers:
            writer.stop()
            self._report_failure(writer)
        self.people.resume()  # a command that failed may have left dumps paused
        end = self._database.end_of_log()
        wait_until(
            lambda: self.line.newest and self.line.newest.position >= end,
            "the end of the log is committed",
            seconds=REST_SECONDS,
        )
        wait_until(lambda: self._whole(), "all dumps end, and every table is whole", seconds=REST_SECONDS)
        number = self.line.number
        wait_until(
            wait_checked(self.checker, number), f"an exact cut of {number} is checked", seconds=REST_SECONDS
        )
        self.merge.stop(60)
        self.agents.stop(30)
        self.checker.stop()
        self.line.stop()
        assert_lake(self.place, *COLUMNS)

    def _report_failure(self, of: Background) -> None:
        if of.failure is not None:
            self.tally.problem(f"{of.name}: {type(of.failure).__name__}: {of.failure}")

    def _whole(self) -> bool:
        newest = self.line.newest
        return newest is not None and newest.exact and not any(dump.active for dump in newest.dumps)

    def _look_through_output(self) -> None:
        for log in sorted(self._folder.glob("*.log")):
            text = log.read_text(errors="replace")
            if "Traceback" in text:
                begin = text.index("Traceback")
                self.tally.problem(f"{log.name} has a traceback:\n{text[max(0, begin - 300) : begin + 2500]}")

    def _happened(self) -> dict[str, int]:
        return {**self.tally.counts, **{STORE.format(k): n for k, n in self.store.counts.items()}}

    def _missing(self) -> list[str]:
        """Return the kinds of faults that are promised and have not happened yet."""
        promised = [STORE.format(kind) for kind in faulty_s3.KINDS]
        promised += QUICK if self._options.quick else [*self.faults.weights, KILLED_AT.format("agent")]
        happened = self._happened()
        return [kind for kind in promised if not happened.get(kind)]

    def _figures(self, seconds: float) -> Figures:
        checker, line = self.checker, self.line
        for text in line.problems:
            self.tally.problem(text)
        if not checker.checked:
            self.tally.problem("no exact cut was checked")
        differences = checker.differences + self.landed.differences
        gave_up = f" ({self.landed.gave_up})" if self.landed.gave_up else ""
        values = {
            "seconds": f"{seconds:,.0f}",
            "commits": f"{sum(w.commits for w in self.writers):,}",
            "rows changed": f"{sum(w.changes for w in self.writers):,}",
            "manifests": f"{line.number:,}, of {len(line.terms)} terms",
            "store requests": f"{self.store.requests:,}",
            "commands that failed amid faults": ", ".join(
                f"{times:,} {kind}" for kind, times in self.people.unsuccessful.most_common()
            )
            or "0",
            "cuts": f"{checker.recorded:,} recorded, {checker.exact:,} exact, {checker.checked:,} checked",
            "exact manifests checked": f"{self.landed.checked:,}{gave_up}",
            "rows compared": f"{checker.rows:,} in cuts, {self.landed.rows:,} in manifests",
            "changes and versions compared": f"{checker.events:,}",
            "differences": f"{differences:,}",
        }
        wrong = self.tally.problems + differences
        return Figures(
            self._happened(),
            self._missing(),
            wrong,
            [*self.tally.first, *checker.first, *self.landed.first],
            values,
        )


def show(figures: Figures, say: Callable[[str], None]) -> None:
    """Print faults by kind, figures, and what was wrong."""
    for kind in sorted({*figures.faults, *figures.missing}):
        times = figures.faults.get(kind, 0)
        say(f"  {times:>7,}  {kind}" if times else f"    never  {kind}")
    for name, value in figures.values.items():
        say(f"{name}: {value}")
    say(f"problems: {figures.wrong:,}")
    for text in figures.problems:
        say(f"  {text}")


@contextmanager
def _environment(s3: S3) -> Iterator[None]:
    """Set what the commands need to reach the store, and to start Java quickly."""
    wanted = {**s3.environment, "AWS_EC2_METADATA_DISABLED": "true", "JDK_JAVA_OPTIONS": QUICK_START}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
