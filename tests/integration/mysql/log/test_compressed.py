"""What the servers compress: MySQL's transactions, MariaDB's events and columns."""

from __future__ import annotations

import random

import pytest

from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import Row, chunk_rows, events, following
from tests.support.waiting import wait_until

PART_BYTES = 1 << 20


@pytest.mark.only_mysql
def test_a_compressed_transaction_longer_than_a_packet_comes_in_parts(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v varbinary(60000))")
    randomness = random.Random(7)
    values = [randomness.randbytes(50_000) for _ in range(400)]  # 20 MB that can't be compressed
    found: list[Row] = []
    parts = most = 0
    with following(source_of(mariadb)) as log:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET binlog_transaction_compression = ON")
            cursor.execute("BEGIN")
            for low in range(0, len(values), 20):
                cursor.executemany("INSERT INTO t (v) VALUES (%s)", [(v,) for v in values[low : low + 20]])
            cursor.execute("COMMIT")
            cursor.execute("INSERT INTO t (v) VALUES ('behind')")
        end = mariadb.end_of_log()

        def all_read() -> bool:
            nonlocal parts, most
            log.read(0.05, PART_BYTES)
            most = max(most, log.buffered_bytes)
            for part in (log.take(), log.take_open()):
                if part is not None and part.rows:
                    found.extend(events(part))
                    parts += 1
            return log.position >= end

        wait_until(all_read, "the transactions are read")
    assert [row["v"] for row in found] == [*values, b"behind"]
    assert len({row["_cdc"]["lsn"] for row in found[:-1]}) == 1
    assert parts > 10
    assert most < 2 * PART_BYTES


@pytest.mark.only_mysql
def test_compressed_transactions_and_plain_ones_follow_each_other(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with following(source_of(mariadb)) as log:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            for number in range(60):
                cursor.execute(f"SET binlog_transaction_compression = {number % 3 > 0}")
                rows = range(number * 3000, number * 3000 + 1 + 1000 * (number % 3))
                cursor.execute("INSERT INTO t VALUES " + ", ".join(f"({n}, repeat('x', 400))" for n in rows))
        found = read_all(mariadb, log)
        wanted = [key for (key,) in mariadb.execute("SELECT id FROM t ORDER BY id")]
    assert [row["id"] for row in found] == wanted
    assert {row["v"] for row in found} == {"x" * 400}


@pytest.mark.only_mariadb
def test_compressed_columns_land_as_their_values_from_log_and_dump(mariadb: MysqlDatabase) -> None:
    types = (
        "a text COMPRESSED", "b blob COMPRESSED", "c varchar(1000) COMPRESSED CHARACTER SET latin1",
        "d varbinary(1000) COMPRESSED", "e longtext COMPRESSED", "f tinyblob COMPRESSED",
        "g varchar(30) COMPRESSED",
    )  # fmt: skip
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(types)})")
    source = source_of(mariadb, partial_images=True)
    with following(source) as log:
        mariadb.execute(
            "INSERT INTO t VALUES (1, '', '', '', '', '', '', '')", "INSERT INTO t (id) VALUES (2)",
            "INSERT INTO t VALUES (3, 'ü', X'00', 'ä', X'FF', '☃', X'00', 'short')",
            "INSERT INTO t VALUES (4, repeat('ü', 20000), repeat(X'00', 60000), repeat('ä', 1000),"
            " repeat(X'FF', 1000), repeat('☃', 100000), repeat('f', 255), repeat('g', 30))",
            "UPDATE t SET a = concat(a, 'more'), e = concat(e, e) WHERE id = 4",
            "SET binlog_row_image = MINIMAL", "UPDATE t SET b = repeat('b', 5000) WHERE id = 3",
            "SET binlog_row_image = FULL", "UPDATE t SET g = 'whole' WHERE id = 3",
        )  # fmt: skip
        found = read_all(mariadb, log)
        newest = {row["id"]: {k: v for k, v in row.items() if k[0] != "_"} for row in found}
        tables = source.open_tables()
        dumped = {row["id"]: row for row in chunk_rows(tables, f"{mariadb.name}.t")}
        tables.close()
        (schema,) = source.tables().schemas
    assert dumped == newest
    reported = mariadb.execute("SELECT * FROM t ORDER BY id")
    assert [tuple(dumped[key].values()) for key in sorted(dumped)] == reported
    assert [c.type for c in schema.columns[1:]] == [
        "string", "binary", "string", "binary", "string", "binary", "string",
    ]  # fmt: skip
    partial = found[5]
    assert partial["_cdc"]["unchanged"] == ["a", "c", "d", "e", "f", "g"]
    assert (found[0]["_table"], partial["b"]) == (f"{mariadb.name}.t", b"b" * 5000)
