"""A MariaDB or MySQL source on a test's own database."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from connector.config import SourceConfig, TableConfig
from connector.mysql.log.reader import MysqlLog
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from tests.support.reading import Row, events, read_to
from tests.support.servers.mariadb import MariaDatabase


def reader_of(database: MariaDatabase) -> str:
    """The url of a new user who may read the log and this database, and write nothing."""
    user = f"reader{secrets.token_hex(4)}"
    client = "REPLICATION CLIENT" if database.is_mysql else "BINLOG MONITOR"
    database.execute(
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, {client} ON *.* TO {user}",
        f"GRANT SELECT ON `{database.name}`.* TO {user}",
    )
    return database.server.url(user=user, password="secret", database=database.name)


def source_of(
    database: MariaDatabase,
    tables: Sequence[str] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    url: str | None = None,
) -> MysqlSource:
    """A source of all tables of the database, named after it."""
    config = SourceConfig.model_validate(
        {
            "name": "t" + database.name.replace("_", "-")[-40:],
            "kind": "mariadb",
            "url": url or database.url,
            "tables": list(tables) or [f"{database.name}.*"],
        }
    )
    return MysqlSource(
        config, {TableName.parse(name): TableConfig(key=list(key)) for name, key in (keys or {}).items()}
    )


def read_all(database: MariaDatabase, log: MysqlLog) -> list[Row]:
    """Everything up to the present end of the log, as events in order."""
    read_to(log, database.end_of_log())
    return events(log.take())
