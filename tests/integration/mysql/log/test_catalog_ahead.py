"""MariaDB's catalog is ahead of the log that an agent reads: columns are what they were when last landed."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from connector.landing.format import schema_path
from connector.landing.manifest import Manifest
from connector.landing.requests import ControlRequest, read_pending, submit
from connector.schema import TableName, TableSchema
from tests.support.agent.mysql_agents import agent, is_equal, short_waits, wait_caught_up
from tests.support.landing.cuts import Table, add_manifest, manifests_in, read_events
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
    """Only the catalog tells what the table was after the first of two statements, and has seen both."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT 5, m int DEFAULT 1, w int)",
        "INSERT INTO t VALUES (5, 10, 1)",
    )
    with agent(mariadb, tmp_path, partial_images=True) as store:
        wait_caught_up(mariadb, store)
    mariadb.execute("ALTER TABLE t ALTER m SET DEFAULT 2")
    mariadb.execute("SET binlog_row_image = MINIMAL", "REPLACE INTO t (w) VALUES (7)")
    mariadb.execute("ALTER TABLE t ALTER id DROP DEFAULT")
    with agent(mariadb, tmp_path, partial_images=True) as store:
        wait_until(lambda: is_equal(mariadb, store, "t"), "the table is read again", seconds=20)


@dataclass(frozen=True)
class Ahead:
    """A table, what is written to it while no agent runs, and the statement after that.

    `quarantined`: a part of the reason; else the log before the statement leaves `rows` (key and v).
    """

    columns: str
    written: str
    statement: str
    key: tuple[str, ...] = ()
    rows: dict[int, int] = field(default_factory=dict)
    quarantined: str = ""


_PERIOD = (
    "id int {}, k int NOT NULL UNIQUE, v int, b timestamp(6) GENERATED ALWAYS AS ROW START,"
    " e timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (b, e)) WITH SYSTEM VERSIONING"
)
_DROPS_PERIOD = "DROP SYSTEM VERSIONING, DROP COLUMN b, DROP COLUMN e"
_LIKE_REPLACE, _LACKS_VIRTUAL = "a REPLACE of a default key looks the same", "does not carry virtual column v"

AHEAD = {
    "versions": Ahead(_PERIOD.format("PRIMARY KEY"), "{versions}", _DROPS_PERIOD, rows={1: 11}),
    "versions, other key": Ahead(
        _PERIOD.format("PRIMARY KEY"), "{versions}", _DROPS_PERIOD, key=("k",), rows={1: 11}
    ),
    "hidden versions": Ahead(
        "id int PRIMARY KEY, k int, v int) WITH SYSTEM VERSIONING", "{versions}", "DROP SYSTEM VERSIONING",
        rows={1: 11},
    ),
    "default": Ahead(
        "id int PRIMARY KEY DEFAULT 1, k int, v int)", "REPLACE INTO t (v) VALUES (7)",
        "ALTER id DROP DEFAULT", quarantined=_LIKE_REPLACE,
    ),
    "virtual": Ahead(
        "id int PRIMARY KEY, k int, v int AS (k) VIRTUAL)", "UPDATE t SET k = 3", "DROP COLUMN v",
        quarantined=_LACKS_VIRTUAL,
    ),
    "virtual, made another": Ahead(
        "id int PRIMARY KEY, k int, v int AS (k) VIRTUAL)", "UPDATE t SET k = 3", "DROP v, ADD v int",
        quarantined=_LACKS_VIRTUAL,
    ),
}  # fmt: skip
_VERSIONS = "UPDATE t SET v = v + 10; DELETE FROM t WHERE id = 2"


@pytest.mark.parametrize("case", AHEAD)
def test_rows_from_before_a_statement_are_read_as_the_table_was(
    mariadb: MysqlDatabase, tmp_path: Path, case: str
) -> None:
    """Whatever the catalog shows by then; the manifest that ended the former agent's log knows."""
    ahead = AHEAD[case]
    keys = {"t": ahead.key} if ahead.key else None
    values = "(1, 1), (2, 2)" if "VIRTUAL" in ahead.columns else "(1, 1, 1), (2, 2, 2)"
    names = "id, k" if "VIRTUAL" in ahead.columns else "id, k, v"
    mariadb.execute(f"CREATE TABLE t ({ahead.columns}", f"INSERT INTO t ({names}) VALUES {values}")
    with agent(mariadb, tmp_path, keys=keys, partial_images=not ahead.rows) as store:
        wait_caught_up(mariadb, store)
    image = "FULL" if ahead.rows else "MINIMAL"
    written = ahead.written.format(versions=_VERSIONS).split("; ")
    mariadb.execute(f"SET binlog_row_image = {image}", *written)
    end = mariadb.end_of_log()
    mariadb.execute("SET system_versioning_alter_history = KEEP", f"ALTER TABLE t {ahead.statement}")
    with agent(mariadb, tmp_path, keys=keys, partial_images=not ahead.rows) as store:
        wait_until(lambda: manifests_in(store)[-1].position > end, "the log is read")
    found = [n.text for m in manifests_in(store) for n in m.notices if n.kind == "quarantined"]
    if ahead.quarantined:
        assert [ahead.quarantined in text for text in found] == [True]
    else:
        assert found == []
        assert rows_before(store, mariadb, end) == ahead.rows


def test_a_statement_that_is_logged_as_it_begins_takes_effect_as_it_ends(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """What another session writes meanwhile is read as from before."""
    for number in range(6):  # a busy machine may be too late
        table = f"t{number}"
        mariadb.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY DEFAULT 1, k int, v int)",
            f"INSERT INTO {table} SELECT seq, seq, seq FROM seq_1_to_200000",
        )
        with agent(mariadb, tmp_path, chunk_rows=100_000) as store:
            wait_caught_up(mariadb, store)
        if (end := end_of_overtaken_statement(mariadb, table)) is not None:
            break
    else:
        pytest.fail("each statement ended before others wrote")
    with agent(mariadb, tmp_path, partial_images=True) as store:
        wait_until(lambda: manifests_in(store)[-1].position >= end, "the log is read")
    found = [n for m in manifests_in(store) for n in m.notices if n.kind == "quarantined"]
    assert [(n.table and n.table.name, _LIKE_REPLACE in n.text) for n in found] == [(table, True)]


def end_of_overtaken_statement(mariadb: MysqlDatabase, table: str) -> int | None:
    """Replace a row by its default key while a statement that drops the default is executed.

    Return where the log of the statement ends; None if it ended first.
    """
    begin, session = mariadb.end_of_log(), mariadb.connect()
    indexes = "ADD INDEX (k, v), ADD INDEX (v, k), LOCK = NONE"
    altering = threading.Thread(
        target=mariadb.execute,
        args=("SET binlog_alter_two_phase = 1", f"ALTER TABLE {table} ALTER id DROP DEFAULT, {indexes}"),
    )
    with contextlib.closing(session), session.cursor() as cursor:
        cursor.execute("SET binlog_row_image = MINIMAL")
        altering.start()
        try:
            while mariadb.end_of_log() == begin:
                pass
            cursor.execute(f"REPLACE INTO {table} (v) VALUES (7)")
            session.commit()
        except pymysql.Error:  # there is no default any more
            return None
        finally:
            written = mariadb.end_of_log()
            altering.join()
    end = mariadb.end_of_log()
    return end if end > written else None


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_table_that_is_made_anew_ends_versions_by_its_own_column(
    mariadb: MysqlDatabase, tmp_path: Path, key: tuple[str, ...]
) -> None:
    made = f"CREATE TABLE t ({_PERIOD.format('PRIMARY KEY')}"
    again = made.replace(" b ", " c ").replace(" e ", " f ").replace("(b, e)", "(c, f)")
    rows = "INSERT INTO t (id, k, v) VALUES (1, 1, 1), (2, 2, 2)"
    mariadb.execute(made, rows)
    with agent(mariadb, tmp_path, keys={"t": key} if key else None) as store:
        wait_caught_up(mariadb, store)
        mariadb.execute("UPDATE t SET v = 5 WHERE id = 1")
        wait_caught_up(mariadb, store)
        mariadb.execute("DROP TABLE t", again, rows)
        wait_caught_up(mariadb, store)
        mariadb.execute("UPDATE t SET v = 7 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        wait_caught_up(mariadb, store)
    assert [n.text for m in manifests_in(store) for n in m.notices if n.kind == "quarantined"] == []
    assert rows_before(store, mariadb, mariadb.end_of_log()) == {1: 7}


MADE_ANEW = {
    "another type": ("u uuid", "u binary(16)", None),
    "added again": ("u binary(16), w int", "w int", "ADD u uuid"),
    "renamed": ("u binary(16), w int", "w uuid", "RENAME COLUMN w TO u"),
}
"""Columns of a table, and of the one that takes its place; and an ALTER of that one, before any row."""


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("case", MADE_ANEW)
def test_a_table_that_is_made_anew_is_read_by_its_own_columns_though_no_layout_of_it_has_landed(
    mariadb: MysqlDatabase, tmp_path: Path, case: str, *, swapped: bool
) -> None:
    """Dumps are paused, no row is written to it, and the log is opened again."""
    before, after, statement = MADE_ANEW[case]
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, {before})", "INSERT INTO t (id) VALUES (1)")
    made, name = f"CREATE TABLE {{}} (id int PRIMARY KEY, {after})", TableName(mariadb.name, "t")
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        state = lambda: manifests_in(store)[-1].tables[name]  # noqa: E731
        wait_until(lambda: state().traits is not None, "its traits are recorded")
        paused = submit(store, ControlRequest(kind="pause", all=True))
        wait_until(lambda: paused not in {r.id for r in read_pending(store)}, "dumps are paused")
        if swapped:
            mariadb.execute(made.format("new"), "RENAME TABLE t TO old, new TO t", "DROP TABLE old")
        else:
            mariadb.execute("DROP TABLE t", made.format("t"))
        end = mariadb.end_of_log()
        wait_until(lambda: manifests_in(store)[-1].position >= end, "the statements have landed")
        wait_until(lambda: state().traits is not None, "the other one's are recorded")
    if statement:
        mariadb.execute(f"ALTER TABLE t {statement}")
    mariadb.execute("INSERT INTO t (id, u) VALUES (2, unhex('123e4567e89b12d3a456426655440000'))")
    submit(store, ControlRequest(kind="resume", all=True))
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        assert is_equal(mariadb, store, "t")
    files = [f for m in manifests_in(store) for f in m.files if f.kind == "log" and f.last.lsn >= end]
    found = [TableSchema.from_json(store.read(schema_path(name, f.schema_id))) for f in files]
    types = {column.source_type for schema in found for column in schema.columns if column.name == "u"}
    assert types == {"binary(16)" if case == "another type" else "uuid"}


@pytest.mark.parametrize("case", [name for name, ahead in AHEAD.items() if not ahead.rows])
def test_a_definition_that_changes_behind_the_log_is_found_and_the_log_read_anew(
    mariadb: MysqlDatabase, tmp_path: Path, case: str
) -> None:
    ahead = AHEAD[case]
    before = ahead.columns.replace(" DEFAULT 1", "").replace(" VIRTUAL", " STORED")
    after = "ALTER id SET DEFAULT 1" if "DEFAULT" in ahead.columns else "DROP v, ADD v int AS (k) VIRTUAL"
    names, values = ("id, k", "(2, 2)") if "VIRTUAL" in ahead.columns else ("id, k, v", "(2, 2, 2)")
    mariadb.execute(f"CREATE TABLE t ({before}", f"INSERT INTO t ({names}) VALUES {values}")
    with agent(mariadb, tmp_path, partial_images=True) as store:
        wait_caught_up(mariadb, store)
        mariadb.execute(f"INSERT INTO t ({names}) VALUES {values.replace('2', '1')}")  # is read as it was
        wait_caught_up(mariadb, store)
        mariadb.execute("SET sql_log_bin = 0", f"ALTER TABLE t {after}")
        told = lambda: [n.text for m in manifests_in(store) for n in m.notices if n.kind == "gap"]  # noqa: E731
        wait_until(lambda: any("without a statement" in text for text in told()), "the change is found")
        wait_caught_up(mariadb, store)
        assert is_equal(mariadb, store, "t")
        mariadb.execute("SET binlog_row_image = MINIMAL", ahead.written)
        quarantined = lambda: [  # noqa: E731
            n.text for m in manifests_in(store) for n in m.notices if n.kind == "quarantined"
        ]
        wait_until(lambda: any(ahead.quarantined in text for text in quarantined()), "it is quarantined")


def test_a_replace_of_the_default_of_the_key_that_the_log_names_is_no_update(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """In a table without a primary key, that is its first unique key without nulls, whichever one lands."""
    mariadb.execute(
        "CREATE TABLE t (u int NOT NULL DEFAULT 5, k int NOT NULL DEFAULT 1, v int, w int,"
        " UNIQUE (u, k), UNIQUE (k))",
        "INSERT INTO t VALUES (6, 1, 1, 9)",
    )
    with agent(mariadb, tmp_path, keys={"t": ("k",)}, partial_images=True) as store:
        wait_caught_up(mariadb, store)
        name = TableName(mariadb.name, "t")
        wait_until(lambda: manifests_in(store)[-1].tables[name].traits is not None, "its traits are recorded")
    mariadb.execute("SET binlog_row_image = MINIMAL", "REPLACE INTO t (v) VALUES (7)")
    with agent(mariadb, tmp_path, keys={"t": ("k",)}, partial_images=True) as store:
        wait_caught_up(mariadb, store)
    found = [n.text for m in manifests_in(store) for n in m.notices if n.kind == "quarantined"]
    assert [_LIKE_REPLACE in text for text in found] == [True]


def rows_before(store: Any, mariadb: MysqlDatabase, end: int) -> dict[int, int]:
    """What landed of table t from before a position, resolved: v by the first column of the key."""
    tables: dict[TableName, Table] = defaultdict(Table)
    for manifest in manifests_in(store):
        add_manifest(store, manifest, tables)
    table = tables[TableName(mariadb.name, "t")]
    for key, events in table.events.items():
        table.events[key] = [event for event in events if event.position.lsn < end]
    table.sweeps = [sweep for sweep in table.sweeps if sweep[0].lsn < end]
    found = {key: table.row(key)[0] for key in table.events}
    return {key[0]: row["v"] for key, row in found.items() if row is not None}


def layouts(store: Any, manifests: list[Manifest]) -> list[TableSchema]:
    """The layouts of the files that these manifests name, and of their tables."""
    ids = {(f.table, f.schema_id) for m in manifests for f in m.files}
    ids |= {(name, state.schema_id) for m in manifests for name, state in m.tables.items() if state.schema_id}
    return [TableSchema.from_json(store.read(schema_path(TableName(*name), id_))) for name, id_ in ids]
