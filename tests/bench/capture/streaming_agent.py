"""The command with an agent that always streams from PostgreSQL, to measure streaming on a backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector import cli
from connector.footprint import keep_small

if TYPE_CHECKING:
    from connector.config import Config
    from connector.source import Source


def open_source(config: Config) -> Source:
    """Open the source as the agent does, but never read in bulk."""
    from connector.postgres.source import PostgresSource

    return PostgresSource(config.source, config.tables, bulk_bytes=1 << 62)


def main() -> None:
    """Run the command; configure Arrow before importing it, as the real command does."""
    keep_small()
    from connector import agent

    agent.open_source = open_source
    cli.main()


if __name__ == "__main__":
    main()
