"""A MariaDB or MySQL source on a test's database."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from connector.config import SourceConfig
from connector.mysql.log.reader import MysqlLogReader
from connector.mysql.source import MysqlSource
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.postgres_source import table_settings
from tests.support.source.reading import Row, events, read_to


def reader_of(database: MysqlDatabase) -> str:
    """Create a user who may read the log and this database, and write nothing; return its URL."""
    user = f"reader{secrets.token_hex(4)}"
    client = "REPLICATION CLIENT" if database.is_mysql else "BINLOG MONITOR, REPLICA MONITOR"
    database.execute(
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, {client} ON *.* TO {user}",
        f"GRANT SELECT ON `{database.name}`.* TO {user}",
    )
    return database.server.url(user=user, password="secret", database=database.name)


def user_of(url: str) -> str:
    """Return the user in a URL."""
    return str(urlsplit(url).username)


def source_of(
    database: MysqlDatabase,
    tables: Sequence[str] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    url: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    partial_images: bool = False,
) -> MysqlSource:
    """Return a source named after the database, with all of its tables unless `tables` names some.

    `settings`: of tables, other than their `keys`. `partial_images`: allow them.
    """
    config = SourceConfig.model_validate(
        {
            "name": "t" + database.name.replace("_", "-")[-40:],
            "kind": "mariadb",
            "url": url or database.url,
            "tables": list(tables) or [f"{database.name}.*"],
            "allow_partial_row_images": partial_images,
        }
    )
    return MysqlSource(config, table_settings(keys, settings))


def read_all(database: MysqlDatabase, log: MysqlLogReader) -> list[Row]:
    """Read up to the current end of the log; return the events in order."""
    read_to(log, database.end_of_log())
    return events(log.take())


@contextlib.contextmanager
def unanswered(mariadb: MysqlDatabase) -> Iterator[None]:
    """A server whose commits wait, between log and engine, for a replica that does not exist."""
    role = "source" if mariadb.is_mysql else "master"
    replica = "replica" if mariadb.is_mysql else "slave"
    if mariadb.is_mysql:
        try:
            mariadb.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        except pymysql.Error as error:
            pytest.skip(f"semi-synchronous replication cannot be had: {error}")
    off = f"SET GLOBAL rpl_semi_sync_{role}_enabled = OFF"
    mariadb.execute(
        f"SET GLOBAL rpl_semi_sync_{role}_timeout = 1000000",
        f"SET GLOBAL rpl_semi_sync_{role}_wait_point = AFTER_SYNC",
        f"SET GLOBAL rpl_semi_sync_{role}_wait_no_{replica} = ON",
        f"SET GLOBAL rpl_semi_sync_{role}_enabled = ON",
    )
    try:
        yield
    finally:
        mariadb.execute(off)
        if mariadb.is_mysql:
            mariadb.execute("UNINSTALL PLUGIN rpl_semi_sync_source")
