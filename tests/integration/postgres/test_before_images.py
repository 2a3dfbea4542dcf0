"""Before-images from a real PostgreSQL: whole under REPLICA IDENTITY FULL, and unknown is never just null."""

from __future__ import annotations

import pytest

from connector.postgres.source import PostgresSource
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source import log_scenarios
from tests.support.source.log_scenarios import Logged, old_rows
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import events, following, quarantines, read_rows

TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"


def asking(database: Database) -> PostgresSource:
    return source_of(database, settings={"public.t": {"before_images": True}})


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_old_rows_are_whole_under_replica_identity_full(database: Database) -> None:
    database.execute(f"{TABLE}; {FULL}")
    logged = Logged(
        asking(database),
        lambda *statements: database.execute("; ".join(statements)),
        lambda log, rows: events(read_rows(log, rows)),
    )
    log_scenarios.whole_old_rows(logged, "repeat('x', 9000)")


def test_what_the_log_lacks_is_missing_and_said(database: Database) -> None:
    database.execute(f"{TABLE}; INSERT INTO t VALUES (1, 1, repeat('x', 9000)), (2, NULL, NULL)")
    with following(asking(database)) as log:
        database.execute("UPDATE t SET n = 2 WHERE id = 1; UPDATE t SET id = 3 WHERE id = 2")
        database.execute("DELETE FROM t WHERE id = 1")
        segment = read_rows(log, 3)
        hints = {batch.before_hint for batch in segment.decode() if hasattr(batch, "before_hint")}
        (hint,) = hints
        assert hint.startswith('ALTER TABLE "public"."t" REPLICA IDENTITY FULL; if it is partitioned, ')
        assert old_rows(events(segment)) == [
            ("update", None, None, None, ["id", "n", "v"]),
            ("delete", 2, None, None, ["n", "v"]),
            ("insert", None),
            ("delete", 1, None, None, ["n", "v"]),
        ]
        database.execute(f"{FULL}; UPDATE t SET n = 5; DELETE FROM t")
        segment = read_rows(log, 2)
        assert {batch.before_hint for batch in segment.decode() if hasattr(batch, "before_hint")} == {None}
        assert old_rows(events(segment)) == [("update", 3, None, None, None), ("delete", 3, 5, None, None)]


def test_texts_that_a_type_can_not_hold_are_kept(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2), d date); ALTER TABLE t REPLICA IDENTITY FULL"
    )
    with following(asking(database)) as log:
        database.execute("INSERT INTO t VALUES (1, 'NaN', 'infinity'); UPDATE t SET n = 1, d = '2026-01-02'")
        _, row = events(read_rows(log, 2))
    assert (row["_before"]["n"], row["_before"]["d"]) == (None, None)
    assert dict(row["_before"]["_cdc"]["raw"]) == {"n": "NaN", "d": "infinity"}
    assert row["_before"]["_cdc"]["missing"] is None


def test_check_says_what_before_images_lack(database: Database) -> None:
    database.execute(TABLE)
    source = asking(database)
    (found,) = [f for f in source.check() if f.detail.startswith("before_images")]
    assert (found.state, str(found.table)) == ("warning", "public.t")
    assert found.fix == 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
    database.execute(found.fix)
    assert not [f for f in source.check() if f.detail.startswith("before_images")]
    source.close()


def test_a_column_of_the_name_that_is_ours_is_refused(database: Database) -> None:
    database.execute('CREATE TABLE t (id int PRIMARY KEY, "_Before" int)')
    source = asking(database)
    (problem,) = source.tables().unfit
    assert "has the name of our own column _before" in problem.reason
    source.reconfigure(source._config, {})
    assert not source.tables().unfit
    source.close()


def test_what_check_says_of_partitions_leads_out_though_the_agent_reads(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    source = asking(database)
    (found,) = [f for f in source.check() if f.detail.startswith("before_images")]
    assert "likewise for each of its partitions, in the same transaction" in found.fix
    with following(source) as log:
        database.execute("DELETE FROM t WHERE id = 1")
        database.execute(f"BEGIN; {FULL}; ALTER TABLE t1 REPLICA IDENTITY FULL; COMMIT")
        database.execute("DELETE FROM t WHERE id = 2")
        assert old_rows(events(read_rows(log, 2))) == [("delete", 1, None, ["v"]), ("delete", 2, "b", None)]
    assert not source.tables().unfit


def test_a_partition_that_logs_less_than_its_root_quarantines_the_table(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t1 REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    with following(asking(database)) as log:
        database.execute("DELETE FROM t WHERE id = 1")
        assert old_rows(events(read_rows(log, 1))) == [("delete", 1, "a", None)]
        database.execute("ALTER TABLE t1 REPLICA IDENTITY DEFAULT")
        database.execute("DELETE FROM t WHERE id = 2")
        database.execute("CREATE TABLE u (id int PRIMARY KEY)")
        end = database.end_of_log()
        while log.position < end:
            log.read(0.1, 1 << 20)
        segment = log.take()
        (found,) = quarantines(segment)
        assert "replica identity of public.t1 does not fit" in found.reason
