"""Timestamps under sessions and servers of other time zones; `tests.fidelity` has the types one by one."""

from __future__ import annotations

import pytest

from connector.schema import TableName
from connector.source import KeyRange
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following


@pytest.mark.every_release
def test_a_row_is_the_same_from_log_and_dump_under_any_time_zone(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, ts timestamp NULL, ts6 timestamp(6) NULL,"
        " dt datetime(6), d date)"
    )
    try:
        mariadb.execute("SET GLOBAL time_zone = '+05:45'")
        source = source_of(mariadb)
        moment = "'2026-07-01', '2026-07-01 00:00:00.000001', '2026-07-01 00:00:00.000001', '2026-07-01'"
        with following(source) as log:
            mariadb.execute("SET time_zone = @@global.time_zone", f"INSERT INTO t VALUES (1, {moment})")
            mariadb.execute("SET time_zone = '-09:30'", f"INSERT INTO t VALUES (2, {moment})")
            logged = read_all(mariadb, log)
            tables = source.open_tables()
            with tables.open_chunk(TableName(mariadb.name, "t"), KeyRange()) as chunk:
                names = [column.name for column in chunk.schema.columns]
                dumped = [
                    dict(zip(names, values, strict=True))
                    for some in chunk.rows()
                    for values in zip(*(column.to_pylist() for column in some.columns), strict=True)
                ]
            tables.close()
    finally:
        mariadb.execute("SET GLOBAL time_zone = SYSTEM")
    assert [{name: row[name] for name in names} for row in logged] == dumped
    assert [[str(row[name]).removesuffix("+00:00") for name in names[1:]] for row in logged] == [
        ["2026-06-30 18:15:00", "2026-06-30 18:15:00.000001", "2026-07-01 00:00:00.000001", "2026-07-01"],
        ["2026-07-01 09:30:00", "2026-07-01 09:30:00.000001", "2026-07-01 00:00:00.000001", "2026-07-01"],
    ]
