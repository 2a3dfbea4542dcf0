"""What the demo needs from a database: a server for the shop, and its SQL dialect.

Shop, writer and comparison are written once, in common SQL plus a dialect where databases differ. The rest is
in one module per database: `postgres_source`, `mysql_source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Row = tuple[Any, ...]

ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Dialect:
    """SQL that differs between databases.

    `types`: column types with different names. `now`: the time of the statement or later, in microseconds.
    `series`: a FROM item with a column {name} that counts from {first} to {last} (numbers). `later`: {base}
    plus {seconds}. `digest`: 32 hexadecimal digits derived from {text}. `joined`: all values of {text} as one
    text. `some_labels`: a value computed from the row number `i`; `final_labels`: a constant. `replace_body`:
    makes an INSERT of an existing document change its body. `analyze`: collects statistics of {tables}.
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


class Cursor(Protocol):
    """The part of a DB-API cursor that the demo uses."""

    connection: Any
    rowcount: int

    def execute(self, statement: str, parameters: Any = None, /) -> Any:
        """Run a statement."""


class DemoSource(Protocol):
    """A running server with an empty database for the shop; a context manager that stops it.

    `title` is the database's display name, `kind` its name in the configuration, `namespace` that of its
    tables; `url` includes the password. Sessions are DB-API connections in UTC without autocommit, with %s
    parameters and identifiers that may be double-quoted.
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
        """Return the position after the last commit."""

    def selected(self, column: str, data_type: str) -> str:
        """Build the SELECT expression of a quoted column, with values that compare equal to those of Parquet.

        Times are in UTC without zone, numbers unchanged, and types that land as the source's text are
        selected as that text.
        """

    def ordered(self, column: str, data_type: str) -> str:
        """Build the ORDER BY expression; texts are ordered by their bytes."""

    def read(self, connection: Any, query: str) -> Iterator[list[Row]]:
        """Run a query and yield ROWS_AT_ONCE rows at a time; no more are held in memory."""
