"""Columns that people do not write themselves, on real servers: log, dump and SELECT say the same of them."""

from __future__ import annotations

from typing import Any

import pytest

from connector.landing.event_batch import EventBatch
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import chunk_rows, events, following, quarantines, read_to, unlogged_in


def last_rows(found: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """What the events leave, by key."""
    state: dict[Any, dict[str, Any]] = {}
    for row in found:
        if row["_cdc"]["op"] == "delete":
            del state[row[key]]
        else:
            assert row["_cdc"]["unchanged"] is None
            state[row[key]] = {name: value for name, value in row.items() if name[0] != "_"}
    return state


def dumped_rows(source: MysqlSource, table: str, key: str) -> dict[Any, dict[str, Any]]:
    tables = source.open_tables()
    try:
        return {row[key]: row for row in chunk_rows(tables, table)}
    finally:
        tables.close()


def reported(mariadb: MysqlDatabase, columns: str) -> list[tuple[Any, ...]]:
    return mariadb.execute(f"SELECT {columns} FROM t ORDER BY 1")


@pytest.mark.only_mysql
def test_a_generated_invisible_primary_key_is_the_key(mariadb: MysqlDatabase) -> None:
    source = source_of(mariadb)
    mariadb.execute("SET sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a int, b text)")
    with following(source) as log:
        mariadb.execute(
            "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y')", "UPDATE t SET b = 'z' WHERE a = 1",
            "DELETE FROM t WHERE my_row_id = 3",
        )  # fmt: skip
        state = last_rows(read_all(mariadb, log), "my_row_id")
        dumped = dumped_rows(source, f"{mariadb.name}.t", "my_row_id")
        (schema,) = source.tables().schemas
        tables = source.open_tables()
        assert tables.next_boundary(TableName(mariadb.name, "t"), schema.key, None, 2, None) == ("2",)
        tables.close()
    assert schema.key == ("my_row_id",)
    assert [(c.name, c.type) for c in schema.columns] == [
        ("my_row_id", "decimal(20,0)"), ("a", "int"), ("b", "string"),
    ]  # fmt: skip
    assert dumped == state
    assert [tuple(row.values()) for row in dumped.values()] == reported(mariadb, "my_row_id, a, b")


@pytest.mark.only_mysql
def test_a_table_whose_invisible_key_goes_and_comes_is_reported(mariadb: MysqlDatabase) -> None:
    mariadb.execute("SET sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a int NOT NULL)")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute("ALTER TABLE t DROP PRIMARY KEY, DROP my_row_id, ADD PRIMARY KEY (a)")
        mariadb.execute("INSERT INTO t VALUES (5)")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    (row,) = events(segment)
    assert "my_row_id" not in row
    assert unlogged_in(segment) == {"t"}


GENERATED = """
CREATE TABLE t (
  id int PRIMARY KEY,
  n int,
  twice bigint GENERATED ALWAYS AS (n * 2) VIRTUAL,
  words varchar(60) GENERATED ALWAYS AS (concat('n is ', n)) STORED,
  hidden int INVISIBLE DEFAULT 7,
  half decimal(12,3) GENERATED ALWAYS AS (n / 2) VIRTUAL INVISIBLE,
  v text,
  shouted varchar(200) GENERATED ALWAYS AS (upper(left(v, 100))) STORED,
  later datetime(3) GENERATED ALWAYS AS ('2020-01-01 00:00:00.5' + INTERVAL n DAY) VIRTUAL
)
"""
COLUMNS = "id, n, twice, words, hidden, half, v, shouted, later"


@pytest.mark.parametrize("indexed", [False, True])
def test_generated_and_invisible_columns_are_as_select_says(mariadb: MysqlDatabase, indexed: bool) -> None:
    mariadb.execute(GENERATED)
    if indexed:
        mariadb.execute("CREATE INDEX i ON t (twice)", "CREATE INDEX j ON t (later)")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute(
            "INSERT INTO t (id, n, v) VALUES (1, 10, 'abc'), (2, NULL, NULL), (3, -7, 'ü'), (9, 1, '')",
            "INSERT INTO t (id, n, v, hidden) VALUES (4, 2147483647, repeat('y', 5000), NULL)",
            "UPDATE t SET n = n - 1, hidden = 8 WHERE id = 1", "UPDATE t SET v = 'other' WHERE id = 4",
            "UPDATE t SET id = 5 WHERE id = 3", "DELETE FROM t WHERE id = 9",
        )  # fmt: skip
        state = last_rows(read_all(mariadb, log), "id")
        dumped = dumped_rows(source, f"{mariadb.name}.t", "id")
        (schema,) = source.tables().schemas
    assert [c.name for c in schema.columns] == COLUMNS.split(", ")
    assert dumped == state
    assert [tuple(dumped[key].values()) for key in sorted(dumped)] == reported(mariadb, COLUMNS)


def test_generated_columns_that_a_minimal_image_leaves_out_are_unchanged_indeed(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute(GENERATED, "INSERT INTO t (id, n, v) VALUES (1, 10, 'abc')")
    if not mariadb.is_mysql:  # whose log has virtual columns in such an image only where they are indexed
        mariadb.execute(
            "CREATE INDEX i ON t (twice)", "CREATE INDEX j ON t (later)", "ALTER TABLE t DROP half"
        )
    with following(source_of(mariadb, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", "UPDATE t SET n = 11")
        (row,) = read_all(mariadb, log)
    assert (row["n"], row["v"]) == (11, None)
    columns = [name for name in COLUMNS.split(", ") if name in row]
    (now,) = reported(mariadb, ", ".join(columns))
    for name, value in zip(columns, now, strict=True):
        is_unchanged = name in row["_cdc"]["unchanged"]
        assert row[name] == (None if is_unchanged else value)
        assert not (is_unchanged and name in ("n", "twice", "words", "half", "later"))


@pytest.mark.only_mariadb
def test_an_update_that_lacks_a_virtual_column_quarantines_its_table(mariadb: MysqlDatabase) -> None:
    virtual = "text GENERATED ALWAYS AS (concat(n, 'x')) VIRTUAL"
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, n int, g {virtual})", "INSERT INTO t (id, n) VALUES (1, 1)",
        "CREATE TABLE u (id int PRIMARY KEY, n int, g text)", "INSERT INTO u SELECT * FROM t",
    )  # fmt: skip
    with following(source_of(mariadb, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", "UPDATE t SET n = 2", "UPDATE u SET n = 2")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    (quarantined,) = quarantines(segment)
    assert (str(quarantined.table), "virtual column g" in quarantined.reason) == (f"{mariadb.name}.t", True)
    assert "binlog_row_image" in quarantined.hint
    (other,) = [found for found in segment.decode() if isinstance(found, EventBatch)]
    assert [(row["n"], row["_cdc"]["unchanged"]) for row in other.table.to_pylist()] == [(2, ["g"])]


@pytest.mark.only_mysql
def test_a_table_with_a_virtual_column_made_of_a_virtual_text_is_unfit_while_texts_are_not_logged(
    mariadb: MysqlDatabase,
) -> None:
    virtual = "GENERATED ALWAYS AS ({}) VIRTUAL"
    text, length = virtual.format("concat(v, 't')"), virtual.format("char_length(w)")
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v varchar(9), x int, w text {text}, n int {length})",
        f"CREATE TABLE u (id int PRIMARY KEY, v varchar(9), w varchar(99) {text}, n int {length})",
        f"CREATE TABLE o (id int PRIMARY KEY, v varchar(9), w text {text}, n text {length})",
        "INSERT INTO t (id, v) VALUES (1, 'abc')",
    )
    source = source_of(mariadb, partial_images=True)
    with following(source) as log:
        mariadb.execute("SET binlog_row_image = NOBLOB", "UPDATE t SET x = 1")
        (row,) = read_all(mariadb, log)
    assert (row["n"], row["_cdc"]["unchanged"], reported(mariadb, "n")) == (None, ["w"], [(4,)])
    assert source.check_catalog().unfit == {}
    mariadb.execute("SET GLOBAL binlog_row_image = NOBLOB")
    try:
        ((table, unfit),) = source.check_catalog().unfit.items()
        failed = [found for found in source.check() if found.state == "failed"]
    finally:
        mariadb.execute("SET GLOBAL binlog_row_image = FULL")
    assert (str(table), "(n)" in unfit.reason) == (f"{mariadb.name}.t", True)
    assert [(found.table, found.detail) for found in failed] == [(table, unfit.reason)]
    assert source.check_catalog().unfit == {}
    source.close()


@pytest.mark.only_mariadb
def test_an_update_that_may_be_a_replace_asks_for_the_virtual_column_that_it_lacks(
    mariadb: MysqlDatabase,
) -> None:
    """As under NOBLOB: it lands as a new row that lacks the column, and the merge asks for that row."""
    virtual = "text GENERATED ALWAYS AS (concat(n, 'x')) VIRTUAL"
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, n int, g {virtual})", "INSERT INTO t (id, n) VALUES (1, 1)"
    )
    with following(source_of(mariadb, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = NOBLOB", "UPDATE t SET n = 2")
        gone, new = read_all(mariadb, log)
    assert [row["_cdc"]["op"] for row in (gone, new)] == ["delete", "insert"]
    assert (new["id"], new["n"], new["g"], new["_cdc"]["unchanged"]) == (1, 2, None, ["g"])


@pytest.mark.parametrize("how", ["VIRTUAL", "STORED"])
def test_a_generated_columns_new_expression_is_read_again(mariadb: MysqlDatabase, how: str) -> None:
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) {how})",
        "INSERT INTO t (id) VALUES (1)",
    )
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute(f"ALTER TABLE t MODIFY g int GENERATED ALWAYS AS (id + 2) {how}")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    assert events(segment) == []
    assert unlogged_in(segment) == {"t"}
