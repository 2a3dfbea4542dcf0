"""Keys that no Spark type holds (zero dates, days that do not exist): the same from dump and log."""

from __future__ import annotations

import contextlib

import pytest

from connector.errors import TableError
from connector.schema import TableName
from tests.support.landing.raw_keys import assert_the_same
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.source.reading import chunk_rows, events, following, quarantines, read_to

KEYS = {
    "date": ("0000-00-00", "2026-00-10", "2026-02-31", "2026-02-28"),
    "datetime(3)": ("0000-00-00 00:00:00.000", "2026-00-10 00:00:00.000", "2026-02-28 01:02:03.500"),
    "timestamp": ("0000-00-00 00:00:00", "2026-02-28 01:02:03"),
    "double": ("-1.5", "-0", "2"),
}


def test_each_bit_of_a_set_in_a_key_counts(mariadb: MysqlDatabase) -> None:
    """As a double, a set lacks its lowest bits; as a signed number, the 64th member makes it negative."""
    texts, table = ("m0,m63", "m63", "m53", "m0,m53", ""), TableName(mariadb.name, "t")
    members = ", ".join(f"'m{n}'" for n in range(64))
    mariadb.execute(f"CREATE TABLE t (id int, k set({members}), v int, PRIMARY KEY (id, k))")
    source = source_of(mariadb)
    with following(source) as log:
        rows = ", ".join(f"({n}, '{k}', 0)" for n in (1, 2) for k in texts)
        mariadb.execute(
            f"INSERT INTO t VALUES {rows}", "UPDATE t SET v = 1", "DELETE FROM t WHERE k = 'm53' AND id = 1"
        )
        read_to(log, mariadb.end_of_log())
        tables = source.open_tables()
        assert_the_same(tables, table, events(log.take()), texts)
        tables.close()


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


TWINS = {"cp932": ("81e0", "8790"), "sjis": ("815f", "5c"), "ujis": ("5c", "a1c0"), "big5": ("a451", "a2cc")}


@pytest.mark.parametrize("charset", TWINS)
def test_keys_in_such_a_character_set_land_unless_one_may_have_the_text_of_another(
    mariadb: MysqlDatabase, charset: str
) -> None:
    written, other = TWINS[charset]
    table = TableName(mariadb.name, "t")
    mariadb.execute(
        f"CREATE TABLE t (k varchar(9) CHARACTER SET {charset}, id int, v text CHARACTER SET {charset},"
        " PRIMARY KEY (k, id))"
    )
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute(
            f"INSERT INTO t VALUES (X'61{written}', 1, X'{other}'), ('b', 2, NULL)",
            "UPDATE t SET v = 'x'",
            "DELETE FROM t WHERE id = 2",
        )
        read_to(log, mariadb.end_of_log())
        logged = events(log.take())
        assert [row["_cdc"]["op"] for row in logged] == ["insert"] * 2 + ["update"] * 2 + ["delete"]
        with contextlib.closing(source.open_tables()) as tables:
            (dumped,) = chunk_rows(tables, str(table))
            assert dumped["k"] == logged[0]["k"]
            assert tables.next_boundary(table, ("k", "id"), None, 1, None) == (dumped["k"], "1")

        mariadb.execute(f"INSERT INTO t VALUES (X'61{other}', 1, '')")
        read_to(log, mariadb.end_of_log())
        (found,) = quarantines(log.take())
        assert "may have the same text" in found.reason
        with contextlib.closing(source.open_tables()) as tables:
            with pytest.raises(TableError, match="may have the same text"):
                [tables.next_boundary(table, ("k", "id"), None, rows, None) for rows in (1, 2)]
            with pytest.raises(TableError) as by_dump:
                chunk_rows(tables, str(table))
        assert (by_dump.value.reason, by_dump.value.hint) == (found.reason, found.hint)

        assert found.hint is not None
        condition = found.hint.partition("WHERE ")[2].partition(", then")[0]
        mariadb.execute(f"UPDATE t SET id = 3, k = X'61{written}' WHERE {condition}")
        with contextlib.closing(source.open_tables()) as tables:
            mended = {row["id"]: row["k"] for row in chunk_rows(tables, str(table))}
        assert mended == dict.fromkeys((1, 3), dumped["k"])
