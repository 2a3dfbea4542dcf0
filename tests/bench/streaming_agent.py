"""The command with an agent that always streams, so that streaming can be measured on a log that waits."""

from __future__ import annotations

from connector import agent, cli
from connector.config import Config
from connector.postgres.source import PostgresSource
from connector.source import Source


def open_source(config: Config) -> Source:
    """Open the source as the agent does, with bulk reading out of reach."""
    return PostgresSource(config.source, config.tables, bulk_bytes=1 << 62)


if __name__ == "__main__":
    agent.open_source = open_source
    cli.main()
