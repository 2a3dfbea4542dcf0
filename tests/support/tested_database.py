"""What scenarios shared by all databases need from a test database; each implements it in its own SQL."""

from __future__ import annotations

from typing import Any, Protocol

KINDS = ("postgres", "mariadb", "mysql")


class TestedDatabase(Protocol):
    """One test's own database. `kind` is that of `[source]`; tables are `namespace.name`."""

    __test__ = False  # pytest: no class of tests

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
        """What the driver raises when a session was lost, and the transaction with it."""

    def settings(self) -> dict[str, Any]:
        """What `[source]` says beside name and tables."""

    def script(self, text: str) -> None:
        """Run statements separated by semicolons in one transaction, as far as the database has such."""

    def session(self) -> Any:
        """A new session that commits when told to; the test closes it."""

    def changed_unseen(self, statements: str) -> None:
        """Run statements of which the log tells nothing."""

    def end_of_log(self) -> int:
        """The position at the end of the server's log."""

    def all_sent(self, end: int) -> bool:
        """Whether the log up to there was sent to the agent."""

    def end_sessions(self) -> None:
        """End the agent's sessions, that of the log among them."""

    def crash(self) -> None:
        """End the server as a crash does."""

    def restart(self) -> None:
        """Start the server again."""

    def columns(self, table: str) -> dict[str, str]:
        """A table's columns in alphabetic order, each as the SQL that selects it."""

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query, as values that the lake gives too."""
