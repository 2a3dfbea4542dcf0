"""What comes and goes between two checks of the catalog, and changes rows meanwhile, is found by the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import ResumePoint
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.servers.postgres import Database, postgres_versions

PLAIN = [
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (id int PRIMARY KEY, v text)",
    "INSERT INTO s.t VALUES (1, 'a')",
]
PARTITIONED = [
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE s.p1 PARTITION OF s.t FOR VALUES FROM (0) TO (10)",
    "INSERT INTO s.t VALUES (1, 'a')",
]
FILLED = [
    "CREATE TABLE s.p2 PARTITION OF s.t FOR VALUES FROM (10) TO (20)",
    "INSERT INTO s.t VALUES (11, 'k')",
]
BESIDE = [
    "CREATE TABLE s.p (id int PRIMARY KEY, v text)",
    "INSERT INTO s.p VALUES (12, 'm')",
]
SUBDIVIDED = [
    "CREATE TABLE s.p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE s.p2 PARTITION OF s.p FOR VALUES FROM (10) TO (20)",
    "INSERT INTO s.p VALUES (12, 'm')",
]
ATTACHED = [
    "ALTER TABLE s.t ATTACH PARTITION s.p FOR VALUES FROM (10) TO (20)",
    "UPDATE s.t SET v = 'n'",
    "INSERT INTO s.t VALUES (11, 'k')",
    "ALTER TABLE s.t DETACH PARTITION s.p",
]
ANOTHER = [
    "CREATE SCHEMA s2",
    "CREATE TABLE s2.t (id int PRIMARY KEY, v text)",
    "INSERT INTO s2.t VALUES (2, 'x')",
]
FOREIGN = [
    "CREATE TABLE public.x (id int PRIMARY KEY, v text)",
    "INSERT INTO public.x VALUES (12, 'x')",
]
MEANWHILE = {
    "a table is attached": (
        [*PARTITIONED, *FOREIGN],
        ["ALTER TABLE s.t ATTACH PARTITION public.x FOR VALUES FROM (10) TO (20)"],
        ["ALTER TABLE s.t DETACH PARTITION public.x"],
    ),
    "another schema has its name": (
        [*PLAIN, *ANOTHER],
        ["ALTER SCHEMA s RENAME TO away", "ALTER SCHEMA s2 RENAME TO s"],
        ["ALTER SCHEMA s RENAME TO s2", "ALTER SCHEMA away RENAME TO s"],
    ),
}
AT_ONCE = "a new partition is emptied by the transaction that made it"
"""Where a check comes before the log is read, nothing shows it: the partition's file is its first one."""
CASES = {
    "a schema is renamed for a time": (
        PLAIN,
        ["ALTER SCHEMA s RENAME TO away", "UPDATE away.t SET v = 'b'", "ALTER SCHEMA away RENAME TO s"],
    ),
    "another schema has its name for a time": (
        [*PLAIN, *ANOTHER],
        [
            "ALTER SCHEMA s RENAME TO away",
            "ALTER SCHEMA s2 RENAME TO s",
            "INSERT INTO s.t VALUES (3, 'y')",
            "ALTER SCHEMA s RENAME TO s2",
            "ALTER SCHEMA away RENAME TO s",
        ],
    ),
    "a partition's replica identity is another for a time": (
        [*PARTITIONED, "ALTER TABLE s.p1 ALTER v SET NOT NULL", "CREATE UNIQUE INDEX by_v ON s.p1 (v)"],
        [
            "ALTER TABLE s.p1 REPLICA IDENTITY USING INDEX by_v; UPDATE s.t SET id = 2;"
            "ALTER TABLE s.p1 REPLICA IDENTITY DEFAULT"  # at once, or else it is seen meanwhile
        ],
    ),
    "a table is attached for a time": ([*PARTITIONED, *BESIDE], ATTACHED),
    "a partitioned table is attached for a time": ([*PARTITIONED, *SUBDIVIDED], ATTACHED),
    "a new partition is dropped": (PARTITIONED, [*FILLED, "DROP TABLE s.p2"]),
    "a new partition is detached": (PARTITIONED, [*FILLED, "ALTER TABLE s.t DETACH PARTITION s.p2"]),
    "a new partition is emptied": (PARTITIONED, [*FILLED, "TRUNCATE s.p2"]),
    AT_ONCE: (
        PARTITIONED,
        ["; ".join(["BEGIN", *FILLED, "TRUNCATE s.p2", "COMMIT"])],
    ),
}


@pytest.mark.parametrize(
    ("case", "running"),
    [*((case, False) for case in CASES if case != AT_ONCE), *((case, True) for case in CASES)],
)
def test_what_is_undone_before_postgres_is_checked_is_repaired(
    database: Database, case: str, running: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, steps = CASES[case]
    for statement in before:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s*.*"])
    change_unchecked(captured, steps, running=running)
    for table in landed_tables(captured.store):
        landed_as_in_source(captured, table)


@pytest.mark.parametrize("case", MEANWHILE)
def test_what_a_dump_reads_that_is_undone_before_postgres_is_checked_is_repaired(
    database: Database, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, done, undone = MEANWHILE[case]
    for statement in before:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.*"])
    with captured.running():
        captured.wait_settled()
        assert captured._capture is not None
        with captured._capture._source._checking:  # type: ignore[attr-defined]
            for statement in done:
                database.execute(statement)
            captured.dump(settled=False)
            for statement in undone:
                database.execute(statement)
        captured.wait_settled()
    landed_as_in_source(captured, TableName("s", "t"))


@pytest.mark.parametrize(
    "postgres",
    [pytest.param(v, marks=pytest.mark.soak) if v in (15, 16) else v for v in postgres_versions()],
    indirect=True,
)
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_table_that_was_written_to_before_it_became_a_partition_is_followed(
    database: Database, running: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer once it is detached. PostgreSQL 14 goes on with both as before, for as long as it can."""
    for statement in [*PARTITIONED, *BESIDE]:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.t"])
    attaching = [
        "UPDATE s.p SET v = 'alone'",
        "ALTER TABLE s.t ATTACH PARTITION s.p FOR VALUES FROM (10) TO (20)",
    ]
    following = [
        "UPDATE s.t SET v = 'as a partition'; INSERT INTO s.t VALUES (11, 'k')",
        "ALTER TABLE s.t DETACH PARTITION s.p",
        "UPDATE s.p SET v = 'alone again'; INSERT INTO s.p VALUES (13, 'k')",
    ]
    if not running:
        with captured.running():
            captured.wait_settled()
        for statement in attaching:
            database.execute(statement)
    with captured.running():
        captured.wait_settled()
        for statement in [*(attaching if running else ()), *following]:
            database.execute(statement)
            captured.wait_settled()
            landed_as_in_source(captured, TableName("s", "t"))


@pytest.mark.parametrize("postgres", [14], indirect=True)
def test_a_table_that_was_written_to_and_emptied_before_it_became_a_partition_is_followed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM leaves its file as if nothing had ever been in it."""
    for statement in [*PARTITIONED, BESIDE[0]]:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.t"])
    with captured.running():
        captured.wait_settled()
        for statement in [BESIDE[1], "DELETE FROM s.p", "VACUUM s.p", ATTACHED[0]]:
            database.execute(statement)
            captured.wait_settled()
        database.execute("INSERT INTO s.t VALUES (11, 'k')")
        captured.wait_settled()
        landed_as_in_source(captured, TableName("s", "t"))


@pytest.mark.parametrize("postgres", [14], indirect=True)
@pytest.mark.parametrize("adopted", [False, True])
def test_a_new_table_is_followed_whose_partition_was_written_to_alone_in_log_yet_to_be_read(
    database: Database, adopted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on with that partition as before, in a log that is opened before both."""
    for statement in [
        "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "CREATE SCHEMA s; CREATE TABLE s.t0 (id int PRIMARY KEY)",
    ]:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.t*"], publication="everything")
    if adopted:
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.settings()["slot"],)
        )
    else:
        with captured.running():
            captured.wait_settled()
    for statement in [*PARTITIONED[1:], *BESIDE, "UPDATE s.p SET v = 'alone'", ATTACHED[0]]:
        database.execute(statement)
    with captured.running():
        captured.wait_settled()
        database.execute("UPDATE s.t SET v = 'as a partition'; INSERT INTO s.t VALUES (11, 'k')")
        captured.wait_settled()
        landed_as_in_source(captured, TableName("s", "t"))


@pytest.mark.parametrize("postgres", [14], indirect=True)
def test_what_becomes_a_partition_right_after_a_first_start_has_created_its_slot_is_followed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its rows were written in the log that is opened there, before it was attached."""
    for statement in [*PARTITIONED, *BESIDE, "CREATE TABLE s.still (LIKE s.t) PARTITION BY RANGE (id)"]:
        database.execute(statement)
    database.execute(
        "ALTER TABLE s.still ADD PRIMARY KEY (id); CREATE TABLE s.q PARTITION OF s.still DEFAULT;"
        " INSERT INTO s.still VALUES (1, 'a')"
    )
    begin_log = PostgresSource.begin_log

    def then_attach(source: PostgresSource, **arguments: Any) -> ResumePoint:
        created = begin_log(source, **arguments)
        for statement in ["UPDATE s.p SET v = 'alone'", ATTACHED[0]]:
            database.execute(statement)
        return created

    monkeypatch.setattr(PostgresSource, "begin_log", then_attach)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.t", "s.still"])
    with captured.running():
        captured.wait_settled()
        database.execute("UPDATE s.t SET v = 'as a partition'; INSERT INTO s.t VALUES (11, 'k')")
        newest = captured.wait_settled()
        landed_as_in_source(captured, TableName("s", "t"))
    assert Counter(dump.table.name for dump in newest.dumps)["still"] == 1


def test_a_table_renamed_while_no_agent_ran_is_no_gap(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log from before has the old name, and its dump sees all that."""
    for statement in PLAIN:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.*"], on_gap="stop")
    with captured.running():
        captured.wait_settled()
    database.execute("INSERT INTO s.t VALUES (2, 'b')")
    database.execute("ALTER TABLE s.t RENAME TO u")
    with captured.running():
        newest = captured.wait_settled()
    assert {str(dump.table): dump.reason for dump in newest.dumps} == {"s.t": "initial", "s.u": "initial"}
    landed_as_in_source(captured, TableName("s", "u"))


def test_tables_truncated_together_are_not_taken_for_partitions(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in [*PLAIN, "CREATE TABLE s.u (id int PRIMARY KEY REFERENCES s.t)"]:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.*"])
    with captured.running():
        captured.wait_settled()
        database.execute("TRUNCATE s.t, s.u")
        newest = captured.wait_settled()
    assert {dump.reason for dump in newest.dumps} == {"initial"}
    landed_as_in_source(captured, TableName("s", "t"))


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_rows_that_a_foreign_key_changed_are_read_again_though_it_is_gone(
    request: pytest.FixtureRequest,
    server: str,
    running: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database: MysqlDatabase = request.getfixturevalue(f"{server}_database")
    for statement in [
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(5))",
        "CREATE TABLE u (id int PRIMARY KEY, t_id int)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO u VALUES (1, 1), (2, 2)",
    ]:
        database.execute(statement)
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=[f"{database.name}.*"])
    steps = [
        "ALTER TABLE u ADD CONSTRAINT f FOREIGN KEY (t_id) REFERENCES t (id) ON DELETE CASCADE",
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE u DROP FOREIGN KEY f",
    ]
    change_unchecked(captured, steps, running=running)
    landed_as_in_source(captured, TableName(database.name, "u"))


def change_unchecked(captured: CapturedDatabase, steps: Sequence[str], *, running: bool) -> None:
    """Run statements while the agent's catalog checks wait, or while no agent runs."""
    with captured.running():
        captured.wait_settled()
        if running:
            assert captured._capture is not None
            with captured._capture._source._checking:  # type: ignore[attr-defined]
                for statement in steps:
                    captured.database.execute(statement)
            captured.wait_settled()
    if not running:
        for statement in steps:
            captured.database.execute(statement)
        with captured.running():
            captured.wait_settled()


def landed_as_in_source(captured: CapturedDatabase, table: TableName) -> None:
    landed = landed_tables(captured.store)[table]
    rows = [row for row, _ in map(landed.row, list(landed.events)) if row is not None]
    found = Counter(tuple(map(str, row.values())) for row in rows)
    source = captured.database.execute(f"SELECT * FROM {table.namespace}.{table.name}")
    assert found == Counter(tuple(map(str, row)) for row in source)
