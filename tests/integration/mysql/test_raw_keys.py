"""Keys that no Spark type holds (zero dates, days that do not exist): the same from dump and log."""

from __future__ import annotations

import pytest

from connector.schema import TableName
from tests.support.landing.raw_keys import assert_the_same
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.source.reading import events, following, quarantines, read_to

KEYS = {
    "date": ("0000-00-00", "2026-00-10", "2026-02-31", "2026-02-28"),
    "datetime(3)": ("0000-00-00 00:00:00.000", "2026-00-10 00:00:00.000", "2026-02-28 01:02:03.500"),
    "timestamp": ("0000-00-00 00:00:00", "2026-02-28 01:02:03"),
    "double": ("-1.5", "-0", "2"),
}


@pytest.mark.parametrize("type_", KEYS)
def test_rows_by_such_keys_are_the_same_from_dump_and_log_in_any_chunks(
    mariadb: MysqlDatabase, type_: str
) -> None:
    texts, table = KEYS[type_], TableName(mariadb.name, "t")
    mariadb.execute(f"CREATE TABLE t (id int, k {type_} DEFAULT 0, v int, PRIMARY KEY (id, k))")
    source = source_of(mariadb)
    with following(source) as log:
        rows = ", ".join(f"({n}, '{k}', 0)" for n in (1, 2) for k in texts)
        mariadb.execute("SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES {rows}")
        mariadb.execute("UPDATE t SET v = 1")
        mariadb.execute(
            "SET sql_mode = 'ALLOW_INVALID_DATES'",
            f"UPDATE t SET k = '{texts[1]}', id = 3 WHERE k = '{texts[0]}' AND id = 1",
        )
        read_to(log, mariadb.end_of_log())
        tables = source.open_tables()
        assert_the_same(tables, table, events(log.take()), texts)
        tables.close()


@pytest.mark.parametrize("type_", ["enum('','a')", "set('','a')", "set('a','b','a')"])
def test_a_key_whose_values_may_have_the_same_text_is_refused_by_catalog_and_log_alike(
    mariadb: MysqlDatabase, type_: str
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"CREATE TABLE t (k {type_} PRIMARY KEY, v {type_})")
    source = source_of(mariadb)
    (unfit,) = source.tables().unfit
    with following(source) as log:
        mariadb.execute("SET sql_mode = ''", "INSERT IGNORE INTO t VALUES ('a', 'a'), ('', ''), ('z', 'z')")
        read_to(log, mariadb.end_of_log())
        (found,) = quarantines(log.take())
    assert unfit.reason == found.reason
    assert "has an empty or a repeated member" in found.reason
