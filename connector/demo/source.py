"""What the demonstration needs of a database: a server with a shop on it, and its way to spell SQL.

Shop, writer and comparison are written once, in SQL that all databases read, with a dialect's words where
they differ. What is left of each database lies in its own file: `postgres_source`, `mysql_source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from connector.errors import ConfigurationError

Row = tuple[Any, ...]

ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Dialect:
    """The words that databases do not share.

    `types`: of the columns that are spelled differently. `now`: the time of the statement or later, in
    microseconds. `series`: a FROM item with a column {name} that counts from {first} to {last} (numbers).
    `later`: {base} and so many {seconds}. `digest`: 32 hexadecimal digits made of {text}.
    `joined`: all values of {text} as one text. `some_labels`: a value
    made of the number `i`, `final_labels`: one value. `replace_body`: what makes an INSERT of a document that
    is there change its body. `analyze`: collects statistics of {tables}. `writer`: statements that begin the
    writer's session.
    """

    types: Mapping[str, str]
    now: str
    new_uuid: str
    series: str
    later: str
    digest: str
    joined: str
    json_object: str
    some_labels: str
    final_labels: str
    replace_body: str
    analyze: str
    writer: Sequence[str] = ()


class Cursor(Protocol):
    """What is used of a DB-API cursor."""

    connection: Any
    rowcount: int

    def execute(self, statement: str, parameters: Any = None, /) -> Any:
        """Run a statement."""


class DemoSource(Protocol):
    """A server that runs, with an empty database for the shop; a context manager that ends it.

    `title` is the database's name for people, `kind` the one in the configuration, `namespace` where its
    tables lie, `url` has the password. Sessions are DB-API connections in UTC without autocommit, whose
    parameters are written %s and whose identifiers may stand in double quotes.
    """

    title: str
    kind: str
    namespace: str
    version: str
    url: str
    password: str
    dialect: Dialect

    def connect(self) -> Any:
        """Open a session."""

    def end_of_log(self, connection: Any) -> int:
        """Give the position behind the last commit."""

    def selected(self, column: str, data_type: str) -> str:
        """Spell what to select of a quoted column so that its values compare with those of Parquet.

        Times in UTC and without zone, numbers as they are, what lands as the source's text as that text.
        """

    def ordered(self, column: str, data_type: str) -> str:
        """Spell what to order by, so that texts are in the order of their bytes."""

    def read(self, connection: Any, query: str) -> Iterator[list[Row]]:
        """Run a query and give ROWS_AT_ONCE rows at a time, which is all that is held in memory."""


def start_source(kind: str, folder: Path) -> AbstractContextManager[DemoSource]:
    """Start a server of this kind; files go into the folder as far as its user can reach it."""
    if kind == "postgres":
        from connector.demo.postgres_source import PostgresSource

        return PostgresSource.start(folder)
    if kind in ("mariadb", "mysql"):
        from connector.demo.mysql_source import MysqlSource

        return MysqlSource.start(kind, folder)
    raise ConfigurationError(f"unknown source {kind}", hint="known are postgres, mariadb and mysql")
