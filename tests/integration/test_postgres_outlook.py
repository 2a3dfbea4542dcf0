"""What PostgreSQL's log does not tell, seen in the catalog of a real server."""

from __future__ import annotations

import pytest

from tests.databases import Database
from tests.integration.postgres_source import source_of

PARTITIONED = """
    CREATE TABLE t (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
    CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);
    INSERT INTO t SELECT g, g % 20 FROM generate_series(1, 100) g"""


def is_untold(database: Database, *statements: str) -> bool:
    """Whether statements leave table t changed without a trace in the log, as its fingerprints have it."""
    source = source_of(database)
    source.prepare()
    try:
        before = source.look()
        for statement in statements:
            database.execute(statement)
        now = source.look()
        assert now.position >= before.position
        return source.untold(before.tables["public.t"], now.tables["public.t"])
    finally:
        source.close()


@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE t1",),
        ("ALTER TABLE t DETACH PARTITION t2",),
        ("DROP TABLE t2",),
        (
            "CREATE TABLE t3 (id int, day int NOT NULL, note text, PRIMARY KEY (id, day))",
            "INSERT INTO t3 VALUES (1, 25)",
            "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (20) TO (30)",
        ),
        ("ALTER PUBLICATION it DROP TABLE t", "ALTER PUBLICATION it ADD TABLE t"),
        ("ALTER TABLE t DROP COLUMN note", "ALTER TABLE t ADD COLUMN note text"),
    ],
)
def test_what_changes_rows_or_capture_untold_is_seen(database: Database, statements: tuple[str, ...]) -> None:
    database.execute(PARTITIONED)
    assert is_untold(database, *statements)


@pytest.mark.parametrize(
    "statements",
    [
        (
            "INSERT INTO t VALUES (1000, 1)",
            "UPDATE t SET day = 11 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ),
        ("CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)",),
        ("VACUUM t", "ANALYZE t"),
        ("ALTER TABLE t ADD COLUMN more text",),
        ("ALTER TABLE t RENAME COLUMN note TO remark", "ALTER TABLE t ADD COLUMN more text"),
        ("ALTER TABLE t DROP COLUMN note",),
    ],
)
def test_what_the_log_tells_is_no_reason_for_a_dump(database: Database, statements: tuple[str, ...]) -> None:
    database.execute(PARTITIONED)
    assert not is_untold(database, *statements)


def test_a_new_table_without_a_key_is_left_out_of_the_publication(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    source = source_of(database)
    source.prepare()
    assert set(source.look().tables) == {"public.t"}
    database.execute("INSERT INTO keyless VALUES (1)")
    database.execute("UPDATE keyless SET id = 2")  # fails for a table that is published without an identity
    source.close()
