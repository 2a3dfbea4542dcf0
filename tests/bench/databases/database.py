"""The interface of measured databases, and the server and folder that measurements share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from connector.errors import PreconditionError


class Database(Protocol):
    """The database of one measurement; rows are generated from a number, about 100 bytes in 10 columns.

    `kind` and `tables` are as in the configuration. `urls`: by transport, TCP first. `reader` and `decoder`
    name the database's own tools that `read_table` and `decode_log` run.
    """

    kind: str
    tables: str
    urls: Mapping[str, str]
    reader: str
    decoder: str

    def create_table(self, table: str, rows: int = 0) -> None:
        """Create a table with `rows` rows, numbered from 1."""

    def insert(self, table: str, first: int, last: int) -> None:
        """Insert rows `first` to `last` in one transaction."""

    def inserting(self, table: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Yield a function that inserts rows (first, last) over one session, one transaction per call."""

    def execute(self, *statements: str) -> None:
        """Run statements in one session, each in its own transaction."""

    def write_changes(self, table: str, first: int, last: int) -> None:
        """Write transactions `first` to `last`, each with 60 inserts, 30 updates and 10 deletes."""

    def end_of_log(self) -> int:
        """Return the position after the last commit."""

    def mark(self) -> None:
        """Remember where the log continues for an agent that has just ended."""

    def rewind(self) -> None:
        """Rewind the log to the mark for the next agent, whose landing zone is restored to the same point."""

    def forget(self) -> None:
        """Remove what an agent left in the database; its landing zone is gone."""

    def decode_log(self, url: str, end: int) -> float:
        """Decode the log from the mark to `end` with `decoder`, output discarded; return the seconds."""

    def read_table(self, table: str) -> float:
        """Read a table over TCP with `reader`, output discarded; return the seconds."""


class SqlTables:
    """The part of a `Database` that is SQL alone, over the sessions of the subclass."""

    columns: str
    """What a table is created with."""

    analyze: str
    """The statement that updates a table's statistics, up to the table's name."""

    def create_table(self, table: str, rows: int = 0) -> None:
        """Create a table with `rows` rows, numbered from 1."""
        self.execute(f"CREATE TABLE {table} ({self.columns})")
        if rows:
            self.insert(table, 1, rows)
            self.execute(f"{self.analyze} {table}")

    def insert(self, table: str, first: int, last: int) -> None:
        """Insert rows `first` to `last` in one transaction."""
        with self.inserting(table) as insert:
            insert(first, last)

    @contextmanager
    def inserting(self, table: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that inserts rows over one session, one transaction per call."""
        with self._session() as cursor:
            yield lambda first, last: cursor.execute(self._insert(table, first, last))

    def execute(self, *statements: str) -> None:
        """Run statements in one session."""
        with self._session() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _session(self) -> AbstractContextManager[Any]:
        """Yield a cursor over a session of its own that commits each statement."""
        raise NotImplementedError

    def _insert(self, table: str, first: int, last: int) -> str:
        """Build the statement that inserts rows `first` to `last`."""
        raise NotImplementedError


class Server(Protocol):
    """A running server. `title`: its display name; `targets`: minimum ratios by measurement."""

    title: str
    version: str
    targets: Mapping[str, float]

    def database(self, name: str) -> AbstractContextManager[Database]:
        """Create a fresh database; drop it at the end."""


class Bench:
    """A running server and a folder. `quick`: use a tenth of the rows."""

    def __init__(self, server: Server, folder: Path, quick: bool) -> None:
        self.server, self.folder, self.quick = server, folder, quick

    def rows(self, full: int) -> int:
        """Return the number of rows to use where a full run uses `full`."""
        return full // 10 if self.quick else full

    def name(self, measurement: str) -> str:
        """Return a measurement's name, prefixed with the server's title."""
        return f"{self.server.title}: {measurement}"


def timed(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> float:
    """Run a program with its output discarded; return the seconds it took."""
    begun = time.monotonic()
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise PreconditionError(f"{command[0]} failed: {done.stderr.strip()}")
    return time.monotonic() - begun
