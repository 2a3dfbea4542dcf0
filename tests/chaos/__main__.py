"""Run a database, agents and a lake amid faults, and print reliability figures."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from connector.demo.servers.mariadb import MariadbServer
from tests.chaos.run import Options, Run, show
from tests.support.servers.mysql_database import DURABLE_SETTINGS
from tests.support.servers.mysql_database import fresh_database as fresh_mysql
from tests.support.servers.mysql_server import ChrootedMysqlServer, find_root
from tests.support.servers.postgres import PostgresServers
from tests.support.servers.postgres import fresh_database as fresh_postgres
from tests.support.servers.s3_server import S3Server
from tests.support.source.tested_database import KINDS, TestedDatabase


def main() -> int:
    """Return exit status 1 if anything was wrong, or a kind of fault never happened."""
    arguments = _arguments()
    for number in (signal.SIGTERM, signal.SIGINT):  # also where a shell has started us in the background
        signal.signal(number, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    _say(f"chaos: {arguments.source}, {arguments.minutes:g} minutes, lake: {arguments.lake}, seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="deltatide-chaos-"))
    folder.chmod(0o755)  # the server's user must reach its data
    place = folder / "place"
    place.mkdir()
    options = Options(
        arguments.minutes * 60, seed, lake_on_s3=arguments.lake == "s3",
        commits_per_second=arguments.commits_per_second,
    )  # fmt: skip
    try:
        with _started(arguments.source, folder) as database, S3Server(folder) as server:
            with Run(place, database, server.s3.with_bucket("chaos"), options, _say) as run:
                figures = run.carry_out()
    except KeyboardInterrupt:
        _say(f"interrupted; everything is kept in {folder}")
        return 130
    show(figures, _say)
    if figures.ok and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        again = f"--source {arguments.source} --lake {arguments.lake} --seed {seed}"
        _say(f"everything is kept in {folder}; again: {again}")
    return 0 if figures.ok else 1


@contextmanager
def _started(kind: str, folder: Path) -> Iterator[TestedDatabase]:
    """Start a server, and yield a database on it."""
    if kind == "postgres":
        with PostgresServers(folder) as servers, fresh_postgres(servers.get(), "chaos") as database:
            yield database
    elif kind == "mariadb":
        with MariadbServer.start(folder / "mariadb", settings=DURABLE_SETTINGS) as server:
            with fresh_mysql(server, "chaos") as database:
                yield database
    else:
        root = find_root()
        if root is None:
            raise SystemExit("MySQL is not installed: .ci/fetch-servers makes .cache/mysql, as root")
        with ChrootedMysqlServer.start(folder / "mysql", base=root) as server:
            with fresh_mysql(server, "chaos") as database:
                yield database


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3, help="how long faults happen (default: 3)")
    parser.add_argument("--seed", type=int, help="of what happens, and when; printed, random by default")
    parser.add_argument("--source", choices=KINDS, default="postgres", help="the database")
    parser.add_argument("--lake", choices=("s3", "folder"), default="s3", help="where it lies (default: s3)")
    parser.add_argument("--commits-per-second", type=float, default=20, help="of all writers (default: 20)")
    parser.add_argument("--keep", action="store_true", help="keep all files, even if nothing was wrong")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
