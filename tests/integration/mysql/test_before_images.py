"""Before-images from MySQL and MariaDB: whole with full row images, and never a null that means unknown."""

from __future__ import annotations

import pytest

from connector.mysql.source import MysqlSource
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source import log_scenarios
from tests.support.source.log_scenarios import Logged, old_rows
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import events, following, read_rows, read_to

TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, v text)"
HINT = "SET GLOBAL binlog_row_image = FULL, in all sessions"


def asking(mariadb: MysqlDatabase, *, partial_images: bool = False) -> MysqlSource:
    settings = {f"{mariadb.name}.t": {"before_images": True}}
    return source_of(mariadb, settings=settings, partial_images=partial_images)


def test_old_rows_are_whole_with_full_row_images(mariadb: MysqlDatabase) -> None:
    mariadb.execute(TABLE)
    logged = Logged(asking(mariadb), mariadb.execute, lambda log, rows: events(read_rows(log, rows)))
    log_scenarios.whole_old_rows(logged, "repeat('x', 9000)")


@pytest.mark.parametrize(("image", "missing"), [("MINIMAL", ["n", "v"]), ("NOBLOB", ["v"])])
def test_what_a_partial_row_image_lacks_is_missing_and_said(
    mariadb: MysqlDatabase, image: str, missing: list[str]
) -> None:
    mariadb.execute(TABLE, "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')")
    with following(asking(mariadb, partial_images=True)) as log:
        mariadb.execute(
            f"SET binlog_row_image = {image}", "UPDATE t SET n = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2"
        )
        read_to(log, mariadb.end_of_log())
        segment = log.take()
        assert {batch.before_hint for batch in segment.decode() if hasattr(batch, "before_hint")} == {HINT}
        n = (None, None) if "n" in missing else (1, 2)
        may_replace = not mariadb.is_mysql and image == "NOBLOB"  # then it lands as a delete and an insert
        assert old_rows(events(segment)) == [
            ("delete" if may_replace else "update", 1, n[0], None, missing),
            *([("insert", None)] if may_replace else []),
            ("delete", 2, n[1], None, missing),
        ]
        mariadb.execute("UPDATE t SET n = NULL", "UPDATE t SET n = 6")
        found = old_rows(read_all(mariadb, log))
        assert found == [("update", 1, 5, "a", None), ("update", 1, None, "a", None)]


def test_dates_that_a_type_can_not_hold_are_kept(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, d date)")
    with following(asking(mariadb)) as log:
        mariadb.execute("SET sql_mode = ''", "INSERT INTO t VALUES (1, '0000-00-00')", "DELETE FROM t")
        _, row = read_all(mariadb, log)
    assert row["_before"]["d"] is None
    assert dict(row["_before"]["_cdc"]["raw"]) == {"d": "0000-00-00"}


@pytest.mark.only_mysql
def test_the_document_before_a_partial_json_update_is_whole(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, j json)", """INSERT INTO t VALUES (1, '{"a": 1}')""")
    with following(asking(mariadb)) as log:
        mariadb.execute(
            "SET binlog_row_value_options = PARTIAL_JSON", "UPDATE t SET j = json_set(j, '$.a', 2)"
        )
        (row,) = read_all(mariadb, log)
    assert (row["j"], row["_before"]["j"]) == ('{"a": 2}', '{"a": 1}')


@pytest.mark.only_mariadb
def test_versions_that_end_have_the_row_as_it_was(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, n int) WITH SYSTEM VERSIONING")
    with following(asking(mariadb)) as log:
        mariadb.execute("INSERT INTO t VALUES (1, 1)", "UPDATE t SET n = 2", "DELETE FROM t")
        found = old_rows(read_all(mariadb, log))
    assert found == [("insert", None), ("update", 1, 1, None), ("delete", 1, 2, None)]


def test_check_says_what_before_images_lack(mariadb: MysqlDatabase) -> None:
    mariadb.execute(TABLE)
    source = asking(mariadb)
    ((before,),) = mariadb.execute("SELECT @@GLOBAL.binlog_row_image")
    assert not [f for f in source.check() if f.detail.startswith("before_images")]
    mariadb.execute("SET GLOBAL binlog_row_image = NOBLOB")
    try:
        (found,) = [f for f in source.check() if f.detail.startswith("before_images")]
    finally:
        mariadb.execute(f"SET GLOBAL binlog_row_image = {before}")
    assert (found.state, str(found.table)) == ("warning", f"{mariadb.name}.t")
    source.close()
