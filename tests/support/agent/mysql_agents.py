"""Agents in a thread of this process on a MariaDB or MySQL, and what landed compared with the tables."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connector.capture.loop import Capture
from connector.config import Config
from connector.landing.lease import Lease
from connector.landing.manifest_store import newest_manifest
from connector.mysql.log import reader
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.store.local import LocalStore
from tests.support.agent.short_waits import shorten_waits
from tests.support.background import Background
from tests.support.landing.cuts import Table, add_manifest, manifests_in
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch, 0.1, check_seconds=0.2)
    monkeypatch.setattr(reader, "POLL_SECONDS", 0.2)


def config_of(
    mariadb: MysqlDatabase,
    folder: Path,
    url: str | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
    *,
    partial_images: bool = False,
    **dump: Any,
) -> Config:
    """The configuration of a database's agent, with short intervals; `keys` by the table's bare name.

    `partial_images`: allow them.
    """
    return Config.model_validate(
        {
            "source": {
                "name": "t" + mariadb.name.replace("_", "-")[-40:],
                "kind": "mysql",
                "url": url or mariadb.url,
                "tables": [f"{mariadb.name}.*"],
                "allow_partial_row_images": partial_images,
            },
            "landing": {"url": str(folder), "flush_seconds": 0.1, "heartbeat_seconds": 0.2},
            "dump": {"chunk_rows": 100, "workers": 2, **dump},
            "tables": {f"{mariadb.name}.{name}": {"key": key} for name, key in (keys or {}).items()},
        }
    )


@contextmanager
def agent(
    mariadb: MysqlDatabase,
    folder: Path,
    url: str | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
    **dump: Any,
) -> Iterator[LocalStore]:
    """A capture in a thread of its own; ends gracefully."""
    config = config_of(mariadb, folder, url, keys, **dump)
    store = LocalStore(folder / config.source.name)
    source = MysqlSource(config.source, config.tables)
    lease = Lease.acquire(store, 15)
    running = Capture(source, store, config, term=lease.term)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            running.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield store
    finally:
        running.stop()
        thread.join(60)
        source.close()
        lease.release()
        if errors:  # before whatever the test waited for in vain
            raise errors[0]
    assert not thread.is_alive()


def wait_caught_up(mariadb: MysqlDatabase, store: LocalStore) -> None:
    def caught_up() -> bool:
        newest = newest_manifest(store)
        return (
            newest is not None
            and newest.position >= end
            and not any(dump.active for dump in newest.dumps)
            and all(table.dumped for table in newest.tables.values() if table.state == "captured")
        )

    end = mariadb.end_of_log()
    wait_until(caught_up, "the newest manifest is at the end of the log, all tables dumped", seconds=60)


def assert_equal(mariadb: MysqlDatabase, store: LocalStore, name: str) -> None:
    """What landed, resolved, is the table: every row, every column."""
    tables: dict[TableName, Table] = defaultdict(Table)
    for manifest in manifests_in(store):
        add_manifest(store, manifest, tables)
    columns = [c for (c,) in mariadb.execute(
        "SELECT column_name FROM information_schema.columns"
        f" WHERE table_schema = '{mariadb.name}' AND table_name = '{name}' ORDER BY ordinal_position"
    )]  # fmt: skip
    expected = {
        row[0]: dict(zip(columns, row, strict=True)) for row in mariadb.execute(f"SELECT * FROM `{name}`")
    }
    table = tables[TableName(mariadb.name, name)]
    found = {}
    for key in table.events:
        row, _ = table.row(key)
        if row is not None:
            found[key[0]] = {c: row.get(c) for c in columns}
    assert found == expected


class Load(Background):
    """A writer that inserts, updates, deletes, moves keys and truncates, in transactions."""

    def __init__(self, mariadb: MysqlDatabase, seed: int) -> None:
        super().__init__()
        self._mariadb, self._random = mariadb, random.Random(seed)

    def work(self) -> None:
        pick = self._random
        with self._mariadb.connect() as connection, connection.cursor() as cursor:
            while not self.stopping.wait(0.004):
                cursor.execute("BEGIN")
                for _ in range(pick.randint(1, 4)):
                    key = pick.randint(0, 1200)
                    cursor.execute(
                        pick.choice(
                            [
                                f"REPLACE INTO t (id, v) VALUES ({key}, 'v{pick.random()}')",
                                f"UPDATE t SET v = concat(v, 'u') WHERE id = {key}",
                                f"UPDATE t SET n = ifnull(n, 0) + 1 WHERE id BETWEEN {key} AND {key + 5}",
                                f"DELETE FROM t WHERE id = {key}",
                                f"UPDATE IGNORE t SET id = {pick.randint(0, 1200)} WHERE id = {key}",
                            ]
                        )
                    )
                cursor.execute(pick.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
                if pick.random() < 0.01:
                    cursor.execute("TRUNCATE TABLE small")
                cursor.execute(f"REPLACE INTO small VALUES ({pick.randint(0, 50)})")


def fill(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)", "CREATE TABLE small (id int PRIMARY KEY)",
        "INSERT INTO t SELECT seq, NULL, concat('row ', seq) FROM seq_1_to_1000",
        "INSERT INTO small SELECT seq FROM seq_1_to_50",
    )  # fmt: skip


def is_equal(mariadb: MysqlDatabase, store: LocalStore, name: str) -> bool:
    try:
        assert_equal(mariadb, store, name)
    except AssertionError:
        return False
    return True
