"""MariaDB's catalog is ahead of the log that an agent reads: columns are what they were when last landed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connector.landing.format import schema_path
from connector.landing.manifest import Manifest
from connector.schema import TableName, TableSchema
from tests.support.agent.mysql_agents import agent, is_equal, short_waits, wait_caught_up
from tests.support.landing.cuts import manifests_in, read_events
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

pytestmark = pytest.mark.only_mariadb

STATEMENTS = {
    "dropped": ["ALTER TABLE t DROP COLUMN u"],
    "renamed": ["ALTER TABLE t RENAME COLUMN u TO w"],
    "changed": ["ALTER TABLE t CHANGE u w inet6"],
    "modified": ["ALTER TABLE t MODIFY u varchar(40)"],
    "after another": ["ALTER TABLE t ADD COLUMN x int", "{row}", "ALTER TABLE t DROP COLUMN u"],
    "as renamed": ["ALTER TABLE t RENAME COLUMN u TO w", "{row}", "ALTER TABLE t DROP COLUMN w"],
}
"""What changes column u while no agent runs, after rows are written to it, and between statements."""


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_column_that_has_changed_by_the_time_its_log_is_read_lands_as_what_it_was(
    mariadb: MysqlDatabase, tmp_path: Path, case: str
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, u inet6, v int)", "INSERT INTO t VALUES (1, '::1', 1)"
    )
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
    ran = len(manifests_in(store))
    rows = iter(f"INSERT INTO t (id, v) SELECT {key}, {key}" for key in range(10, 20))
    mariadb.execute("INSERT INTO t VALUES (2, '::2', 2)", "UPDATE t SET u = '::3' WHERE id = 1")
    mariadb.execute(*[statement.format(row=next(rows)) for statement in STATEMENTS[case]])
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        assert is_equal(mariadb, store, "t")
    new = manifests_in(store)[ran:]
    columns = [c for schema in layouts(store, new) for c in schema.columns if c.name in ("u", "w")]
    assert {column.type for column in columns} == {"string"}
    said = [notice.text for manifest in new for notice in manifest.notices]
    assert ("columns changed type: u" in said) == (case == "modified")
    landed = [e for m in new for f in m.files if f.kind == "log" for e in read_events(store, f)]
    assert [e.columns["u"] for e in landed if e.key in ((1,), (2,)) and "u" in e.columns] == ["::2", "::3"]


def test_a_replace_of_the_default_key_is_no_update_once_the_default_is_gone(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT 5, m int DEFAULT 1, w int)",
        "INSERT INTO t VALUES (5, 10, 1)",
    )
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
    mariadb.execute("SET binlog_row_image = MINIMAL", "REPLACE INTO t (w) VALUES (7)")
    mariadb.execute("ALTER TABLE t ALTER id DROP DEFAULT")
    with agent(mariadb, tmp_path) as store:
        wait_until(lambda: is_equal(mariadb, store, "t"), "the table is read again", seconds=20)


def layouts(store: Any, manifests: list[Manifest]) -> list[TableSchema]:
    """The layouts of the files that these manifests name, and of their tables."""
    ids = {(f.table, f.schema_id) for m in manifests for f in m.files}
    ids |= {(name, state.schema_id) for m in manifests for name, state in m.tables.items() if state.schema_id}
    return [TableSchema.from_json(store.read(schema_path(TableName(*name), id_))) for name, id_ in ids]
