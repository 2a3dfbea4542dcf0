"""Times and the types that MySQL and MariaDB share, under sessions and servers of any time zone."""

from __future__ import annotations

import pytest

from connector.schema import TableName
from connector.source import KeyRange
from tests.integration.test_mysql_codec import EVERY_TYPE
from tests.mariadb import MariaDatabase, end_of_log, events, following, read_to, source_of

NOT_IN_MYSQL = ("uca", "nopad", "uu", "i6", "i4", "vc", "tc", "gv", "gs", "inv")
"""Types and collations of MariaDB; `test_mysql_columns` has the generated ones."""


@pytest.mark.every_release
def test_a_row_is_the_same_from_log_and_dump_under_any_time_zone(mariadb: MariaDatabase) -> None:
    types = {n: t for n, t in EVERY_TYPE.items() if not mariadb.is_mysql or n not in NOT_IN_MYSQL}
    columns = ", ".join(f"`{name}` {type_}" for name, (type_, _) in types.items())
    mariadb.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    written = {name: values for name, (_, values) in types.items() if values}
    names = ", ".join(f"`{name}`" for name in written)
    inserts = []
    for row in range(max(map(len, written.values()))):
        values = ", ".join(v[row] if row < len(v) else "NULL" for v in written.values())
        inserts.append(f"INSERT INTO t (id, {names}) VALUES ({row}, {values})")
    try:
        mariadb.execute("SET GLOBAL time_zone = '+05:45'")
        source = source_of(mariadb)
        with following(source) as log:
            mariadb.execute(*inserts)
            mariadb.execute(
                "SET time_zone = '-09:30'",
                "INSERT INTO t (id, ts0, ts6) VALUES (100, '2026-07-01', '2026-07-01 00:00:00.000001')",
            )
            read_to(log, end_of_log(mariadb))
            logged = {row["id"]: row for row in events(log.take())}
            tables = source.open_tables()
            with tables.open_chunk(TableName(mariadb.name, "t"), KeyRange()) as chunk:
                for some in chunk.rows():
                    raws = some.raw.to_pylist() if some.raw is not None else [None] * len(some.columns[0])
                    for index, raw in enumerate(raws):
                        row = {
                            c.name: v[index].as_py()
                            for c, v in zip(chunk.schema.columns, some.columns, strict=True)
                        }
                        found = logged[row["id"]]
                        assert {name: found[name] for name in row} == row
                        assert sorted(found["_cdc"]["raw"] or []) == sorted(raw or [])
            tables.close()
    finally:
        mariadb.execute("SET GLOBAL time_zone = SYSTEM")
    assert len(logged) == len(inserts) + 1
    zoned = logged[100]
    assert [f"{zoned[name]:%Y-%m-%d %H:%M:%S.%f}" for name in ("ts0", "ts6")] == [
        "2026-07-01 09:30:00.000000",
        "2026-07-01 09:30:00.000001",
    ]
