"""The demo, from an empty folder to the comparison: `deltatide demo`.

::

    database <- writer
        |
      agent (deltatide run) -> landing zone -> merges (deltatide merge) -> lake
        |                                                                   |
        +------------------------------ compared --------------------------+

The first rows are dumped while the writer writes and merges run. Then the writer stops, the rest lands and is
merged, and the last cut is compared with the database, row by row and column by column.

An interruption leaves no process, only a folder that the next demo empties.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from connector.config import Config
from connector.demo.compare import Comparison, compare, other_columns, source_rows, source_table, target_rows
from connector.demo.display import Display, Figures
from connector.demo.folder import DemoFolder
from connector.demo.landing_stats import LandingStats
from connector.demo.merge_stats import MergeStats, last_cut, write_in_key_order
from connector.demo.report import print_comparison, print_figures, print_next_steps
from connector.demo.shop import TABLES, Sizes, create_shop
from connector.demo.source import DemoSource
from connector.demo.start import start_source
from connector.demo.subprocesses import Child
from connector.demo.writer import Writer
from connector.errors import OperatorError, PreconditionError
from connector.signals import SignalEvent, stopped_by_signals
from connector.store.factory import open_store
from connector.store.protocol import Store

CHANGES_PER_SECOND = 2_000
"""Few enough to leave Spark time on a small machine."""

KEPT_CHANGES_PER_SECOND = 50
"""Enough for the status page to show something, for as long as it is watched."""

MERGE_SECONDS = 3
PATIENCE_SECONDS = 300.0
"""The longest wait for a dump, a first merge, or the end of the log; a busy machine is slow."""

REFRESH_SECONDS = 0.25


def demo(
    folder: Path | None = None,
    rows: int = 1_000_000,
    seconds: int = 60,
    source: str = "postgres",
    keep: bool = False,
) -> int:
    """Run the demo and return the exit status: 1 if a single value differs.

    `source`: the kind of database (postgres, mariadb, mysql). `folder` (``demo-data`` by default) is emptied
    if an earlier demo created it, and keeps the landing zone and the lake afterward. `seconds`: how long the
    writer runs; longer if the dump takes longer. `keep`: afterward, keep database, writer and agent running
    until Ctrl-C or SIGTERM, with the status page.
    """
    _require_spark()
    console = Console()
    demo = DemoFolder.create(folder)
    with ExitStack() as cleanup:
        cleanup.enter_context(_interruptible())
        cleanup.callback(demo.drop_database)
        display = Display(console)
        run = _start(source, demo, Sizes.of(rows), display, cleanup)
        with display.live():
            run.capture(seconds)
            run.finish(keep=keep)
        with _spark() as spark:
            comparisons = run.compare(spark)
        print_comparison(console, comparisons, run.watch)
        print_figures(console, run.figures())
        differences = sum(each.differences for each in comparisons)
        both = f"{run.source.title} and Delta"
        verdict = (
            f"[bold red]{differences:,} differences[/] between {both}"
            if differences
            else f"[bold green]{both} hold the same rows, value by value[/]"
        )
        console.print(f"\n{verdict}", highlight=False)
        print_next_steps(console, demo, run.source.namespace)
        if keep:
            run.run_on()
    return 1 if differences else 0


def _require_spark() -> None:
    try:
        import merge.spark.session  # noqa: F401
    except ModuleNotFoundError as error:
        raise PreconditionError(
            f"the demo needs Spark: {error.name} is not installed", hint="pip install 'deltatide[demo]'"
        ) from error


@contextmanager
def _spark() -> Iterator[Any]:
    """Yield a session.

    Spark's own Ctrl-C handler, which fails once its Java process is gone, ends with it.
    """
    from merge.spark.session import local_session

    before = signal.getsignal(signal.SIGINT)
    session = local_session("deltatide-demo")
    try:
        yield session
    finally:
        with suppress(Exception):  # after an interruption, its Java process may be gone
            session.stop()
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM and Ctrl-C stop us and everything that we started, without Spark's messages about it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for each, handler in before.items():
            signal.signal(each, handler)


def _start(kind: str, demo: DemoFolder, sizes: Sizes, display: Display, cleanup: ExitStack) -> _Run:
    """Start everything; `cleanup` stops it in reverse order."""
    display.step("starting the database")
    source = cleanup.enter_context(start_source(kind, demo.database))
    total = sum(vars(sizes).values())
    display.step(f"{source.title} {source.version} runs, loading {total:,} rows into {len(TABLES)} tables")
    create_shop(source, sizes)
    config = demo.configure(source.kind, source.namespace, source.url, source.password)
    writer = Writer(source, sizes, changes_per_second=CHANGES_PER_SECOND)
    agent = Child(demo.agent_log, "run", "-c", str(demo.configuration))
    cleanup.callback(agent.close)
    merges = Child(
        demo.merge_log, "merge", "-c", str(demo.configuration), "--every", str(MERGE_SECONDS), "--json"
    )
    cleanup.callback(merges.close)
    cleanup.callback(writer.stop)
    store = open_store(config.landing, config.source.name)
    return _Run(demo, config, source, writer, agent, merges, store, display)


class _Run:
    """The running parts, and the steps from capture to comparison."""

    def __init__(
        self,
        demo: DemoFolder,
        config: Config,
        source: DemoSource,
        writer: Writer,
        agent: Child,
        merges: Child,
        store: Store,
        display: Display,
    ) -> None:
        self.source, self.watch = source, LandingStats(store)
        self._merge_watch = MergeStats(demo.merge_log, store)
        self._demo, self._config, self._store = demo, config, store
        self._writer, self._agent, self._merges, self._display = writer, agent, merges, display
        self._page: str | None = None
        self._position: int | None = None
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}

    def capture(self, seconds: int) -> None:
        """Write, dump, capture and merge concurrently, for `seconds` and until everything is dumped."""
        self._display.step("dumping, capturing, merging and writing at the same time")
        self._writer.start()
        began = time.monotonic()
        self._wait(lambda: time.monotonic() - began >= seconds, "writing", float(seconds) + PATIENCE_SECONDS)
        self._wait(self._is_dumped, "writing until all tables are dumped")
        self._writer.stop()
        self._raise_failures()

    def finish(self, *, keep: bool) -> None:
        """Wait until everything written is merged, then stop the merges, and the agent unless `keep`."""
        with closing(self.source.connect()) as connection:
            self._position = end = self.source.end_of_log(connection)
        self._display.step("the writer has stopped; landing and merging the rest")
        with self._timed("landing the rest"):
            self._wait(self._is_landed, "landing the rest")
        with self._timed("merging the rest"):
            self._wait(lambda: self._merge_watch.is_settled(end), "merging the rest")
        self._merges.stop()
        if not keep:
            self._agent.stop()
        self.watch.refresh()

    def run_on(self) -> None:
        """Keep writing slowly, with the agent, until Ctrl-C or SIGTERM."""
        self._writer.changes_per_second = KEPT_CHANGES_PER_SECOND
        self._writer.start()
        self._display.step(f"agent and writer keep running until Ctrl-C; try {self._page}")
        stopping = SignalEvent()
        with stopped_by_signals(lambda _signal: stopping.set()):
            while not stopping.wait(REFRESH_SECONDS):
                self._agent.require_running()
                self._raise_writer_failure()

    def compare(self, spark: Any) -> list[Comparison]:
        """Compare the last cut with the database, table by table."""
        manifest, frames = last_cut(spark, self._config)
        self._display.step(
            f"comparing the cut at manifest {manifest} with {self.source.title}, value by value"
        )
        with self._timed("comparison"), closing(self.source.connect()) as connection:
            return [self._compare(connection, frames, name) for name in TABLES]

    def _compare(self, connection: Any, frames: Mapping[str, Any], name: str) -> Comparison:
        table = source_table(self.source, connection, name)
        folder = self._demo.compared / name
        columns = write_in_key_order(frames[f"{table.namespace}.{name}"], table.key, folder)
        if set(columns) != set(table.order):
            return other_columns(table, columns)
        result = compare(table, source_rows(self.source, connection, table), target_rows(folder, table.order))
        connection.rollback()
        return result

    def figures(self) -> dict[str, str]:
        """Return the figures of the whole run."""
        watch, merges = self.watch, self._merge_watch
        steps = ", ".join(
            f"{name} {seconds:.0f} s" for name, seconds in self._seconds.items() if seconds >= 1
        )
        return {
            "written": f"{self._writer.changes:,} changes in {self._writer.transactions:,} transactions",
            "captured": f"{watch.changes:,} changes after the agent's start; "
            f"{watch.dumped:,} rows dumped in {watch.chunks:,} chunks",
            "landed": f"{watch.files:,} files, {watch.bytes / 2**20:,.0f} MiB, {watch.manifests:,} manifests",
            "merged": f"{merges.merges:,} cuts, {merges.requested:,} rows requested again",
            "time": f"{time.monotonic() - self._began:.0f} s ({steps})",
        }

    def _is_dumped(self) -> bool:
        newest = self.watch.newest
        return newest is not None and bool(newest.tables) and all(t.dumped for t in newest.tables.values())

    def _is_landed(self) -> bool:
        newest = self.watch.newest
        return newest is not None and newest.exact and newest.position >= (self._position or 0)

    def _show_page(self) -> None:
        """Print the address of the agent's status page, once it is known."""
        if self._page is None and (page := self._demo.status_page()) is not None:
            self._page = page
            self._display.step(f"the agent's status page: {page}")

    def _wait(self, condition: Callable[[], bool], phase: str, seconds: float = PATIENCE_SECONDS) -> None:
        limit = time.monotonic() + seconds
        while True:
            self.watch.refresh()
            self._merge_watch.refresh()
            self._show_page()
            self._display.show(self._shown(phase))
            if condition():
                return
            self._raise_failures()
            if time.monotonic() > limit:
                raise OperatorError(
                    f"{phase}: not done within {seconds:g} s", hint=f"see {self._demo.agent_log}"
                )
            time.sleep(REFRESH_SECONDS)

    def _raise_failures(self) -> None:
        self._agent.require_running()
        self._merges.require_running()
        self._raise_writer_failure()

    def _raise_writer_failure(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure

    def _shown(self, phase: str) -> Figures:
        watch, merges = self.watch, self._merge_watch
        return Figures(
            phase,
            watch.tables,
            self._writer.changes,
            self._writer.transactions,
            watch.changes,
            watch.changes_per_second,
            watch.lag_seconds(self._position),
            watch.newest.number if watch.newest else 0,
            merges.merges,
            merges.cut,
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = time.monotonic() - began
