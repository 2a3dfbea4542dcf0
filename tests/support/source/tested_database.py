"""What scenarios for all databases need from a test database; each implements it in its own SQL."""

from __future__ import annotations

from typing import Any, Protocol

KINDS = ("postgres", "mariadb", "mysql")


class TestedDatabase(Protocol):
    """One test's database. `kind` is the one in `[source]`; tables are `namespace.name`."""

    __test__ = False  # not a test class, for pytest

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """Return the exceptions that the driver raises when a session is lost, with its transaction."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of `[source]` other than name and tables."""

    def script(self, text: str) -> None:
        """Run semicolon-separated statements in one transaction, as far as the database allows."""

    def session(self) -> Any:
        """Open a session without autocommit; the test closes it."""

    def changed_unseen(self, statements: str) -> None:
        """Run statements whose changes the agent does not find in the log."""

    def end_of_log(self) -> int:
        """Return the position at the end of the server's log."""

    def all_sent(self, end: int) -> bool:
        """Return whether the log up to `end` has been sent to the agent."""

    def end_sessions(self) -> None:
        """Terminate the agent's sessions, including the one that reads the log."""

    def crash(self) -> None:
        """Stop the server as in a crash."""

    def restart(self) -> None:
        """Restart the server."""

    def columns(self, table: str) -> dict[str, str]:
        """Return a table's columns in alphabetical order, with the SQL that selects each."""

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, as the same Python values that the lake returns."""
