"""Measure, print a table and write bench.json into the current folder: ``python -m tests.bench --help``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.console import Console

from connector.errors import PreconditionError
from tests.bench.capture.backlog import backlog
from tests.bench.capture.dump import dump
from tests.bench.capture.latency import latency
from tests.bench.capture.log import WaitingLog, waiting_log
from tests.bench.capture.memory import memory
from tests.bench.capture.standby import standby
from tests.bench.capture.streaming import capture
from tests.bench.capture.tables import tables
from tests.bench.databases.database import Bench, Server
from tests.bench.databases.mysql import started_mariadb, started_mysql
from tests.bench.databases.postgres import started_postgres
from tests.bench.lake.merge import AUTO_CDC, merge
from tests.bench.lake.visible import visible
from tests.bench.report import Measurement, show, write

SOURCES: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "postgres": started_postgres,
    "mariadb": started_mariadb,
    "mysql": started_mysql,
}
OF_THE_LOG: dict[str, Callable[[WaitingLog], Iterator[Measurement]]] = {
    "capture": capture,
    "backlog": backlog,
}
OTHERS: dict[str, Callable[[Bench], Iterator[Measurement]]] = {
    "dump": dump,
    "latency": latency,
    "standby": standby,
    "memory": memory,
    "tables": tables,
    "merge": merge,
    "visible": visible,
}
OF_POSTGRES_ALONE = ("backlog", "standby", "merge", "visible")
"""Other databases have no bulk catch-up; neither standbys nor merges nor live views depend on the source."""
SHARED_WITH_MARIADB = ("latency", "memory", "tables")
"""Measured on MySQL only by `--source mysql`: these run through the same code as MariaDB's."""


def main() -> int:
    """Return exit status 1 if a measurement failed or, with --strict, missed its target."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 160)
    folder = Path(tempfile.mkdtemp(prefix="deltatide-bench-"))
    folder.chmod(0o755)  # the server's user must reach its data
    results = _Results(console)
    begun = time.monotonic()
    try:
        for source in arguments.source or SOURCES:
            with results.reported(source, optional=not arguments.source), SOURCES[source](folder) as server:
                bench = Bench(server, folder, arguments.quick)
                console.print(f"{server.title} {server.version}" + (", quick" if bench.quick else ""))
                left_out = () if source == "postgres" else OF_POSTGRES_ALONE
                if source == "mysql" and not arguments.source:
                    left_out += SHARED_WITH_MARIADB
                chosen = arguments.only or [*OF_THE_LOG, *OTHERS]
                _measure(bench, [name for name in chosen if name not in left_out], results)
    except KeyboardInterrupt:
        console.print("interrupted")
        results.failed = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(results.measurements, console)
    if not arguments.only or "merge" in arguments.only:
        console.print(AUTO_CDC, highlight=False)
    write(results.measurements, Path("bench.json"))
    console.print(f"bench.json is written; it took {time.monotonic() - begun:.0f} s")
    missed = any(not m.ok for m in results.measurements)
    return 1 if results.failed or (arguments.strict and missed) else 0


class _Results:
    """The measurements so far; one that fails does not stop the others."""

    def __init__(self, console: Console) -> None:
        self.measurements: list[Measurement] = []
        self.failed = False
        self._console = console

    def collect(self, name: str, measurements: Iterator[Measurement]) -> None:
        """Collect the measurements of one kind."""
        begun = time.monotonic()
        with self.reported(name):
            self.measurements.extend(measurements)
        self._console.print(f"{name}: {time.monotonic() - begun:.0f} s", style="dim", highlight=False)

    @contextmanager
    def reported(self, name: str, *, optional: bool = False) -> Iterator[None]:
        """Print an error instead of raising it. `optional`: a missing server is not a failure."""
        try:
            yield
        except Exception as error:
            if optional and isinstance(error, PreconditionError):
                self._console.print(f"{name} is left out: {error} ({error.hint})", markup=False)
                return
            self.failed = True
            self._console.print(f"{name}: {type(error).__name__}: {error}", markup=False, style="bold red")


def _measure(bench: Bench, names: Sequence[str], results: _Results) -> None:
    of_the_log = [name for name in OF_THE_LOG if name in names]
    if of_the_log:
        with results.reported("log"), waiting_log(bench) as log:
            for name in of_the_log:
                results.collect(name, OF_THE_LOG[name](log))
    for name in OTHERS:
        if name in names:
            results.collect(name, OTHERS[name](bench))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--source",
        action="append",
        choices=list(SOURCES),
        help="only this database, may be repeated; else all that are installed",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; ratios are less reliable")
    parser.add_argument("--strict", action="store_true", help="exit status 1 when a target is missed")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=[*OF_THE_LOG, *OTHERS],
        help=f"only this measurement, may be repeated: {', '.join([*OF_THE_LOG, *OTHERS])}",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
