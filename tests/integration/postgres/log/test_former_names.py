"""Tables whose changes the log shows under former names: the server does not describe them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.postgres.log import reader
from connector.schema import TableName
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.landing.cuts import manifests_in
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.waiting import wait_until

CASES = {
    "schemas, before version 16": (
        min(postgres_versions(), default=None),
        ("s.t", "s2.t"),
        "CREATE TABLE {} (id int PRIMARY KEY)",
        "ALTER SCHEMA s RENAME TO x; ALTER SCHEMA s2 RENAME TO s; ALTER SCHEMA x RENAME TO s2",
    ),
    "roots": (
        None,
        ("s.t", "s.u"),
        "CREATE TABLE {0} (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE {0}_all PARTITION OF {0} DEFAULT",
        "ALTER TABLE s.t RENAME TO x; ALTER TABLE s.u RENAME TO t; ALTER TABLE s.x RENAME TO u",
    ),
}


@pytest.mark.parametrize(
    ("postgres", "tables", "create", "swap", "running"),
    [
        pytest.param(*case, running, id=f"{name}, {when}", marks=[pytest.mark.soak] if variant else [])
        for variant in (False, True)
        for running, (name, case) in zip((variant, not variant), CASES.items(), strict=True)
        for when in ["running" if running else "stopped"]
    ],
    indirect=["postgres"],
)
def test_tables_that_swapped_names_land_under_their_new_ones(
    database: Database,
    tables: tuple[str, str],
    create: str,
    swap: str,
    running: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute("CREATE SCHEMA s; CREATE SCHEMA s2")
    for table in tables:
        database.execute(create.format(table))
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=[*tables])
    poll_seconds = 3600.0 if running else 3.0  # so some rows land under the former names
    monkeypatch.setattr(reader, "POLL_SECONDS", poll_seconds)

    def insert(*keys: int) -> None:
        for table, key in zip(tables, keys, strict=True):
            database.execute(f"INSERT INTO {table} VALUES ({key})")

    with captured.running():
        captured.wait_settled()
        if running:
            insert(1, 2)
            captured.wait_settled()
            database.execute(swap)
            captured.wait_settled()
            insert(3, 4)
            wait_until_equal(captured, database, tables)
            return
    insert(1, 2)
    database.execute(swap)
    with captured.running():
        captured.wait_settled()
        insert(3, 4)
        wait_until_equal(captured, database, tables)


def test_a_root_that_is_renamed_written_and_dropped_at_once_is_in_no_exact_cut_with_these_rows(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has them under its former name, and no catalog shows that it had another.

    The server has sent them before the drop, which would have it describe the table again.
    """
    database.execute("CREATE SCHEMA s")
    for table in ("t", "stays"):
        database.execute(CASES["roots"][2].format(f"s.{table}"))
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["s.*"])
    monkeypatch.setattr(reader, "POLL_SECONDS", 3600.0)
    landing = captured.config.landing.model_copy(update={"flush_seconds": 3.0})
    captured.config = captured.config.model_copy(update={"landing": landing})
    table = TableName("s", "t")
    with captured.running():
        captured.wait_settled()
        database.execute("INSERT INTO s.t VALUES (1)")
        captured.wait_settled()
        database.execute("ALTER TABLE s.t RENAME TO x; INSERT INTO s.x VALUES (2)")
        end = database.end_of_log()
        wait_until(lambda: sent_upto(database) >= end, "the server has sent it")
        database.execute("DROP TABLE s.x")
        wait_until(
            lambda: table not in manifests_in(captured.store)[-1].tables, "it is not captured", seconds=40
        )
    landed = [manifest for manifest in manifests_in(captured.store) if manifest.files_of(table)]
    assert [manifest.tables[table].need is not None for manifest in landed[-2:]] == [False, True]


def sent_upto(database: Database) -> int:
    ((sent,),) = database.execute("SELECT (max(sent_lsn) - '0/0')::bigint FROM pg_stat_replication")
    return int(sent)


def wait_until_equal(captured: CapturedDatabase, database: Database, tables: tuple[str, str]) -> None:
    def landed(table: str) -> set[int]:
        found = landed_tables(captured.store)[TableName(*table.split("."))]
        return {row["id"] for row, _ in map(found.row, list(found.events)) if row is not None}

    def there(table: str) -> set[int]:
        return {key for (key,) in database.execute(f"SELECT id FROM {table}")}

    def equal() -> bool:
        captured._raise_error()
        return all(landed(table) == there(table) for table in tables)

    wait_until(equal, "all has landed as it is at the source", seconds=40)
