"""What the measurements need of a database, and the server and folder that they share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from connector.errors import PreconditionError


class Database(Protocol):
    """One measurement's own database; its rows have about 100 bytes in 10 columns, made of a number.

    `kind` and `tables` are as in the configuration. `urls`: by transport, TCP first. `reader` and `decoder`
    name the database's own tools that `read_table` and `decode_log` run.
    """

    kind: str
    tables: str
    urls: Mapping[str, str]
    reader: str
    decoder: str

    def create_table(self, table: str, rows: int = 0) -> None:
        """Make a table with so many rows, numbered from 1."""

    def insert(self, table: str, first: int, last: int) -> None:
        """Insert rows in one transaction."""

    def inserting(self, table: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return what inserts rows (first, last), each time in a transaction, over one session."""

    def execute(self, *statements: str) -> None:
        """Run statements over one session, each in its own transaction."""

    def write_changes(self, table: str, first: int, last: int) -> None:
        """Write the transactions of these numbers: each 60 inserts, 30 updates and 10 deletes."""

    def end_of_log(self) -> int:
        """Return the position behind the last commit."""

    def mark(self) -> None:
        """Remember where the log goes on for an agent that has just ended."""

    def rewind(self) -> None:
        """Let the log go on from the mark for the next agent, whose landing zone is as it was there."""

    def forget(self) -> None:
        """Remove what an agent leaves in the database; its landing zone is gone."""

    def decode_log(self, url: str, end: int) -> float:
        """Let the database's own tool decode the log from the mark to `end`, to nowhere; the seconds."""

    def read_table(self, table: str) -> float:
        """Let the database's own client read a table over TCP, to nowhere; the seconds."""


class Server(Protocol):
    """A running server. `title`: its name for people; `targets`: by measurement, what has to be reached."""

    title: str
    version: str
    targets: Mapping[str, float]

    def database(self, name: str) -> AbstractContextManager[Database]:
        """A fresh database, dropped at the end."""


class Bench:
    """A running server and a folder. `quick`: a tenth of the rows."""

    def __init__(self, server: Server, folder: Path, quick: bool) -> None:
        self.server, self.folder, self.quick = server, folder, quick

    def rows(self, full: int) -> int:
        """How many rows to use where a full run uses so many."""
        return full // 10 if self.quick else full

    def name(self, measurement: str) -> str:
        """A measurement's name with the database's."""
        return f"{self.server.title}: {measurement}"


def timed(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> float:
    """Run a program, its output to nowhere; the seconds it took."""
    begun = time.monotonic()
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise PreconditionError(f"{command[0]} failed: {done.stderr.strip()}")
    return time.monotonic() - begun
