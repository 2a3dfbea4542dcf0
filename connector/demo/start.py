"""Starts the demo's database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from connector.demo.mysql_source import MysqlSource
from connector.demo.postgres_source import PostgresSource
from connector.demo.source import DemoSource
from connector.errors import ConfigurationError


def start_source(kind: str, folder: Path) -> AbstractContextManager[DemoSource]:
    """Start a server of this kind; its files go into the folder if its user can access it."""
    if kind == "postgres":
        return PostgresSource.start(folder)
    if kind in ("mariadb", "mysql"):
        return MysqlSource.start(kind, folder)
    raise ConfigurationError(f"unknown source {kind}", hint="use postgres, mariadb or mysql")
