"""Tables without a key on real servers, and rows without one: what happens to them lands as it is."""

from __future__ import annotations

import pytest

from connector.mysql.source import MysqlSource
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.log_scenarios import assert_changes_without_a_key
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following, ops, quarantines, read_to


def only_changes(mariadb: MysqlDatabase, *, partial_images: bool = False, **more: object) -> MysqlSource:
    settings = {f"{mariadb.name}.t": {"shapes": ["changes"], **more}}
    return source_of(mariadb, settings=settings, partial_images=partial_images)


def test_changes_of_a_table_without_a_key_land_as_they_are(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (n int, v text)")
    source = only_changes(mariadb, before_images=True)
    (schema,) = source.tables().schemas
    assert schema.key == ()
    with following(source) as log:
        mariadb.execute(
            "INSERT INTO t VALUES (1, 'a'), (1, 'a'), (NULL, NULL)", "UPDATE t SET v = 'b' WHERE n = 1",
            "DELETE FROM t WHERE n IS NULL", "SET binlog_row_image = MINIMAL", "DELETE FROM t", "TRUNCATE t",
        )  # fmt: skip
        found = read_all(mariadb, log)
    assert_changes_without_a_key(found)


def test_a_table_without_a_key_is_refused_with_what_it_needs_until_its_changes_alone_are_asked_for(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (n int)")
    plain, source = source_of(mariadb), only_changes(mariadb)
    (problem,) = plain.tables().unfit
    assert (problem.reason, 'shapes = ["changes"]' in (problem.hint or "")) == ("it has no primary key", True)
    assert not source.tables().unfit
    assert not source.check_catalog().unfit
    (found,) = [f for f in source.check() if f.name == f"table {mariadb.name}.t"]
    assert (found.state, found.detail[:15]) == ("ok", "its changes can")
    plain.close()
    source.close()


def test_a_keyed_table_whose_changes_alone_are_wanted_has_its_deletes_as_the_log_has_them(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with following(only_changes(mariadb, partial_images=True)) as log:
        mariadb.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET id = 3 WHERE id = 1")
        mariadb.execute("DELETE FROM t WHERE id = 3", "SET binlog_row_image = MINIMAL", "DELETE FROM t")
        found = read_all(mariadb, log)
    assert ops(found, "id", "v") == [
        ("insert", 1, "a"), ("insert", 2, "b"), ("update", 3, "a"), ("delete", 3, "a"), ("delete", 2, None),
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["PRIMARY KEY", pytest.param("", marks=pytest.mark.only_mysql)])
def test_an_insert_whose_log_has_no_column_at_all_quarantines_its_table(
    mariadb: MysqlDatabase, key: str
) -> None:
    mariadb.execute(f"CREATE TABLE t (id int DEFAULT 1 {key}, v int DEFAULT 2)")
    with following((source_of if key else only_changes)(mariadb, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", "INSERT INTO t () VALUES ()")
        read_to(log, mariadb.end_of_log())
        (found,) = quarantines(log.take())
    assert (found.table.name, found.reason) == ("t", "the log of an insert carries no column of its rows")
