"""Chunks of a real MariaDB: what a snapshot provably sees, keys of every type, the values of the log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from connector.errors import NotYetError, RequestError, TableError, TransientError
from connector.mysql import dump
from connector.mysql.catalog import LOCKED
from connector.mysql.dump import MysqlTables
from connector.mysql.log import reader, visibility
from connector.mysql.state_table import StateTable
from connector.schema import TableName
from connector.source import KeyRange
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source import dump_scenarios
from tests.support.source.dump_scenarios import batch_sizes, every_row_once, rows_of_keys
from tests.support.source.mysql_source import read_all, reader_of, source_of, unanswered, user_of
from tests.support.source.reading import Row, chunk_rows, events, following, read_rows, read_to
from tests.support.waiting import wait_until


def of(mariadb: MysqlDatabase, name: str = "t") -> TableName:
    return TableName(mariadb.name, name)


def test_a_chunks_watermarks_are_around_its_snapshot(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb)
    with following(source) as log:
        tables = source.open_tables()
        mariadb.execute("UPDATE t SET v = 'seen'")
        read_to(log, mariadb.end_of_log())
        with tables.open_chunk(of(mariadb), KeyRange()) as chunk:
            mariadb.execute("UPDATE t SET v = 'later'")
            (rows,) = [some.columns[1].to_pylist() for some in chunk.rows()]
        seen, later = events(read_rows(log, 2))
        assert rows == ["seen"]
        assert seen["_cdc"]["lsn"] <= chunk.low < chunk.high <= later["_cdc"]["lsn"]
        read_to(log, chunk.high)
        tables.close()


def test_a_commit_between_log_and_engine_is_seen_or_after_the_low_watermark(mariadb: MysqlDatabase) -> None:
    """Many writers commit in groups, so that some are always in the log and not yet visible."""
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40"
    )
    source = source_of(mariadb)
    stop = threading.Event()

    def write(first: int) -> None:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"UPDATE t SET n = n + 1 WHERE id BETWEEN {first} AND {first + 9}")

    writers = [threading.Thread(target=write, args=(first,)) for first in (1, 11, 21, 31)]
    chunks: list[tuple[int, int, dict[int, int]]] = []
    found: list[Row] = []
    with following(source) as log:
        for writer in writers:
            writer.start()
        tables = source.open_tables()
        try:
            for _ in range(60):
                log.read(0.01, 1 << 24)
                found += events(log.take())
                with tables.open_chunk(of(mariadb), KeyRange()) as chunk:
                    parts = [some.columns for some in chunk.rows()]
                rows = {k.as_py(): n.as_py() for keys, ns in parts for k, n in zip(keys, ns, strict=True)}
                chunks.append((chunk.low, chunk.high, rows))
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        tables.close()
        found += read_all(mariadb, log)
    for low, high, rows in chunks:
        at_low, at_high = counts(found, low + 1), counts(found, high)
        assert all(at_low[key] <= n <= at_high[key] for key, n in rows.items())
    assert chunks[-1][0] > chunks[0][0]


def counts(found: list[Row], upto: int) -> dict[int, int]:
    """The counters after all transactions that began before a position."""
    state = dict.fromkeys(range(1, 41), 0)
    return state | {row["id"]: row["n"] for row in found if row["_cdc"]["lsn"] < upto}


@pytest.mark.every_release
def test_chunks_with_the_log_after_them_equal_the_table(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_500"
    )
    source = source_of(mariadb)
    stop = threading.Event()

    def write() -> None:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                key = number * 7919 % 600
                cursor.execute(f"REPLACE INTO t VALUES ({key}, {number})")
                cursor.execute(f"DELETE FROM t WHERE id = {number * 104729 % 600}")
                cursor.execute(
                    f"UPDATE IGNORE t SET id = id + 1000 WHERE id = {number * 31 % 600} AND id < 100"
                )

    writer = threading.Thread(target=write)
    placed: dict[int, tuple[int, int, int | None]] = {}

    def place(key: int, lsn: int, seq: int, value: int | None) -> None:
        if key not in placed or placed[key][:2] < (lsn, seq):
            placed[key] = (lsn, seq, value)

    with following(source) as log:
        writer.start()
        tables = source.open_tables()
        after, ended = None, False
        try:
            while not ended:
                upto = tables.next_boundary(of(mariadb), ["id"], after, 50, None)
                with tables.open_chunk(of(mariadb), KeyRange(after, upto)) as chunk:
                    for some in chunk.rows():
                        for key, n in zip(*(c.to_pylist() for c in some.columns), strict=True):
                            place(key, chunk.low, 1 << 62, n)
                after, ended = upto, upto is None
        finally:
            stop.set()
            writer.join()
        tables.close()
        for row in read_all(mariadb, log):
            gone = row["_cdc"]["op"] == "delete"
            place(row["id"], row["_cdc"]["lsn"], row["_cdc"]["seq"], None if gone else row["n"])
    state = {key: value for key, (_, _, value) in placed.items() if value is not None}
    assert state == dict(mariadb.execute("SELECT id, n FROM t"))  # type: ignore[arg-type]


def test_columns_change_between_two_chunks(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x')")
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        name = str(of(mariadb))
        assert chunk_rows(tables, name) == [{"id": 1, "a": "x"}]
        mariadb.execute("ALTER TABLE t ADD b int DEFAULT 7", "ALTER TABLE t DROP a")
        assert chunk_rows(tables, name) == [{"id": 1, "b": 7}]
        mariadb.execute("DROP TABLE t")
        with pytest.raises(NotYetError, match=name):
            chunk_rows(tables, name)
        tables.close()


@pytest.fixture
def altering(mariadb: MysqlDatabase) -> Iterator[Connection]:  # type: ignore[type-arg]
    connection = mariadb.connect()
    yield connection
    connection.close()


def waiting_for_lock(mariadb: MysqlDatabase) -> bool:
    query = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'"
    return bool(mariadb.execute(query))


def test_a_rewriting_alter_never_makes_a_chunk_empty(
    mariadb: MysqlDatabase,
    altering: Connection,  # type: ignore[type-arg]
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t SELECT seq, seq FROM seq_1_to_9"
    )
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        with altering.cursor() as cursor:
            cursor.execute("LOCK TABLES t WRITE")
            found: list[Row] = []
            reading = threading.Thread(target=lambda: found.extend(chunk_rows(tables, str(of(mariadb)))))
            reading.start()
            wait_until(lambda: waiting_for_lock(mariadb), "the chunk waits for the lock")
            cursor.execute("ALTER TABLE t MODIFY a bigint, ALGORITHM = COPY")
            cursor.execute("UNLOCK TABLES")
        reading.join(30)
        assert len(found) == 9
        tables.close()


def test_an_alter_waits_for_an_open_chunk_and_rows_do_not(
    mariadb: MysqlDatabase,
    altering: Connection,  # type: ignore[type-arg]
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_9")
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        assert len(chunk_rows(tables, str(of(mariadb)))) == 9  # from here on its statements may be cached
        ddl = threading.Thread(target=lambda: altering.query("TRUNCATE TABLE t"))
        with tables.open_chunk(of(mariadb), KeyRange()) as chunk:
            mariadb.execute("INSERT INTO t VALUES (100)")
            ddl.start()
            wait_until(lambda: waiting_for_lock(mariadb), "the statement waits for the chunk")
            assert sum(len(some.columns[0]) for some in chunk.rows()) == 9
        ddl.join(30)
        assert chunk_rows(tables, str(of(mariadb))) == []
        tables.close()


def test_a_lock_that_is_held_too_long_is_transient(
    mariadb: MysqlDatabase,
    altering: Connection,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[type-arg]
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        for session in (tables._connection, tables._guard):
            with session.cursor() as cursor:
                cursor.execute("SET lock_wait_timeout = 1")
        with altering.cursor() as cursor:
            cursor.execute("LOCK TABLES t WRITE")
            with pytest.raises(TransientError, match=r"[Ll]ock wait timeout"):
                chunk_rows(tables, str(of(mariadb)))
        tables.close()


KEYS = {
    "bigint": ("id bigint", "cast(seq AS signed) * 10 - 300", "id"),
    "bigint_unsigned": ("id bigint unsigned", "18446744073709551615 - seq", "id"),
    "decimal": ("id decimal(20,3)", "seq * 1.1 - 30", "id"),
    "decimal_wide": ("id decimal(65,30)", "seq * 1.000000000000000000000000000001 - 30", "id"),
    "double": ("id double", "(cast(seq AS signed) - 30) / 3", "id"),
    "float": ("id float", "(cast(seq AS signed) - 30) / 7", "id"),
    "double_of_24_characters": ("a double, id int", "-1.2345678901234567e-100 * (1 + seq % 2), seq", "a, id"),
    "year": ("id year", "1950 + seq", "id"),
    "bit": ("id bit(64)", "18446744073709551000 + seq", "id"),
    "date": ("id date", "'2020-01-01' + interval seq day", "id"),
    "zero_date": ("id date", "if(seq = 1, '0000-00-00', '2020-01-01' + interval seq day)", "id"),
    "datetime6": ("id datetime(6)", "'2020-03-28 23:59:59.999999' + interval seq hour", "id"),
    "timestamp3": ("id timestamp(3)", "timestamp'2020-10-25 00:30:00.5' + interval seq minute", "id"),
    "time": ("id time(2)", "sec_to_time(seq * 100 - 3000.25)", "id"),
    "varchar_ci": ("id varchar(9) COLLATE utf8mb4_general_ci", "concat(char(64 + seq), seq)", "id"),
    "varchar_bin": ("id varchar(20) COLLATE utf8mb4_bin", "concat(char(64 + seq % 60), seq)", "id"),
    "latin1": ("id varchar(20) CHARACTER SET latin1", "concat('ä', char(64 + seq % 40), seq, '€')", "id"),
    "swedish": ("id varchar(9) COLLATE utf8mb4_swedish_ci", "concat(elt(seq % 2 + 1, 'å', 'Z'), seq)", "id"),
    "char": ("id char(9)", "concat('c', seq)", "id"),
    "text_prefix": ("id text", "concat(repeat('k', 50), seq)", "id(60)"),
    "binary": ("id binary(16)", "unhex(lpad(hex(seq * 7919 % 65536), 32, 'F0'))", "id"),
    "varbinary": ("id varbinary(20)", "concat(unhex(hex(seq)), x'00FF27')", "id"),
    "blob_prefix": ("id blob", "unhex(lpad(hex(seq * 7919 % 65536), 32, 'F0'))", "id(16)"),
    "uuid": ("id uuid", "concat(lpad(seq * 99, 8, '0'), '-e89b-12d3-a456-426655440000')", "id"),
    "inet6": ("id inet6", "concat('2001:db8::', hex(seq * 1000))", "id"),
    "inet4": ("id inet4", "concat('10.0.', seq * 4, '.1')", "id"),
    "enum_and_int": ("a enum('z', 'ü', 'b''c'), id int", "1 + seq % 3, seq", "a, id"),
    "set_and_int": ("a set('z', 'm', 'b'), id int", "seq % 8, seq", "a, id"),
    "composite": (
        "b varchar(9) COLLATE utf8mb4_general_ci, a bigint, id binary(4)",
        "concat(if(seq % 2, 'x', 'X'), seq % 3), seq % 4, unhex(lpad(hex(seq), 8, '0'))", "b, a, id",
    ),
    "quoted": ('`a ``"B.` int', "seq", '`a ``"B.`'),
}  # fmt: skip


ONLY_MARIADB = ("uuid", "inet6", "inet4")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.only_mariadb) if n in ONLY_MARIADB else n for n in KEYS]
)
def test_chunks_by_any_key_hold_every_row_once(name: str, mariadb: MysqlDatabase) -> None:
    columns, values, key = KEYS[name]
    mariadb.execute(
        f"CREATE TABLE t ({columns}, n int, PRIMARY KEY ({key})) CHARACTER SET utf8mb4",
        f"INSERT INTO t SELECT {values}, seq FROM seq_1_to_60",
    )
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        (schema,) = source.tables().schemas

        def is_a_key(boundary: tuple[str, ...], rows: list[Row]) -> None:
            (row,) = rows_of_keys(tables, of(mariadb), [boundary])
            *values, absent = row
            assert not absent
            assert dict(zip((c.name for c in schema.columns), values, strict=True)) in rows

        every_row_once(tables, of(mariadb), schema.key, is_a_key)
        tables.close()


@pytest.mark.only_mariadb
@pytest.mark.every_release
@pytest.mark.parametrize(
    "collation", ["utf8mb4_general_nopad_ci", "latin1_nopad_bin", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin"]
)
def test_a_dump_has_each_row_once_whose_char_goes_on_below_the_blank(
    collation: str, mariadb: MysqlDatabase
) -> None:
    """Without padding, MariaDB orders such a key in another way than it compares it."""
    if not mariadb.execute(f"SHOW COLLATION LIKE '{collation}'"):
        pytest.skip("MariaDB has it from 11.4 on")
    charset = collation.partition("_")[0]
    mariadb.execute(
        f"CREATE TABLE t (id char(9) CHARACTER SET {charset} COLLATE {collation} PRIMARY KEY, n int)",
        "INSERT INTO t VALUES ('', 1), ('\t', 2), ('a', 3), ('a\t', 4), ('a\ta', 5), ('a ', 6), ('a b', 7)"
        " ON DUPLICATE KEY UPDATE n = n",
    )
    source = source_of(mariadb)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        found = [
            row["n"] for rows, _ in dump_scenarios.chunks(tables, of(mariadb), ["id"], 1) for row in rows
        ]
        assert sorted(found) == [1, 2, 3, 4, 5, 7]
        mariadb.execute(f"ALTER TABLE t MODIFY id varchar(9) CHARACTER SET {charset} COLLATE {collation}")
        assert len([*dump_scenarios.chunks(tables, of(mariadb), ["id"], 1)]) == 7


def test_the_order_of_a_chunk_is_another_after_its_key_was_altered(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (a enum('z', 'b'), id varchar(9), n int, PRIMARY KEY (a, id))")
    source = source_of(mariadb)
    with following(source), contextlib.closing(source.open_tables()) as tables:

        def order(after: tuple[str, ...] | None, upto: tuple[str, ...] | None) -> str | None:
            with tables.open_chunk(of(mariadb), KeyRange(after, upto)) as chunk:
                return chunk.order

        assert order(None, None) is None
        orders = [order(None, ("b", "x"))]
        mariadb.execute("INSERT INTO t VALUES ('z', 'a', 1)", "ALTER TABLE t MODIFY n bigint")
        assert order(("b", "x"), None) == orders[0]
        for change in ("id varchar(9) COLLATE utf8mb4_bin", "a enum('b', 'z') NOT NULL"):
            mariadb.execute(f"ALTER TABLE t MODIFY {change}")
            orders.append(order(("b", "x"), None))
        assert len({*orders}) == 3


def test_a_table_is_not_read_without_the_columns_that_may_no_longer_be_read(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    url = reader_of(mariadb)
    user, source = user_of(url), source_of(mariadb, url=url)
    with following(source):
        mariadb.execute(
            f"GRANT SELECT (id) ON t TO {user}", f"REVOKE SELECT ON `{mariadb.name}`.* FROM {user}"
        )
        with (
            contextlib.closing(source.open_tables()) as tables,
            pytest.raises(TableError, match="denied") as found,
            tables.open_chunk(of(mariadb), KeyRange()),
        ):
            pass
    assert "GRANT SELECT" in (found.value.hint or "")


@pytest.mark.parametrize("further", ["", "GRANT TRIGGER ON t TO {user}"])
def test_a_table_is_not_read_if_only_an_invisible_column_may_not_be_and_check_says_so(
    mariadb: MysqlDatabase, further: str
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, `a``\n  ``b` int DEFAULT 7 INVISIBLE,"
        " v text COMMENT '\n  `c` int')",
        "INSERT INTO t (id) VALUES (1)",
    )
    url = reader_of(mariadb)
    user, source = user_of(url), source_of(mariadb, url=url)
    grants = [further.format(user=user)] if further else []
    revoke = f"REVOKE SELECT ON `{mariadb.name}`.* FROM {user}"
    mariadb.execute(f"GRANT SELECT (id, v) ON t TO {user}", revoke, *grants)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        with pytest.raises(TableError) as found, tables.open_chunk(of(mariadb), KeyRange()):
            pass
        (finding,) = [each for each in source.check() if each.table == of(mariadb)]
        assert (finding.state, finding.detail) == ("failed", found.value.reason)
        assert ("may not read column a`\n  `b" in finding.detail) == (bool(further) and mariadb.is_mysql)
        assert finding.fix is not None
        mariadb.execute(finding.fix)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1, "a`\n  `b": 7, "v": None}]
        assert [each for each in source.check() if each.table == of(mariadb)] == []


def test_what_looks_like_a_column_in_the_comment_of_a_partition_is_none(mariadb: MysqlDatabase) -> None:
    comment = r"\n  `secret` int"
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
        f" (PARTITION p VALUES LESS THAN (9) COMMENT '{comment}')",
        "INSERT INTO t VALUES (1)",
    )
    source = source_of(mariadb)
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1}]


@pytest.mark.only_mysql
@pytest.mark.every_release
def test_check_refuses_rights_to_columns_through_a_role_too_and_a_role_with_the_table_suffices(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    url = reader_of(mariadb)
    user, source = user_of(url), source_of(mariadb, url=url)
    mariadb.execute(
        f"CREATE ROLE inner_{user}, outer_{user}", f"GRANT inner_{user} TO outer_{user}",
        f"GRANT outer_{user} TO {user}", f"SET DEFAULT ROLE ALL TO {user}",
        f"GRANT SELECT (id, v) ON t TO inner_{user}", f"REVOKE SELECT ON `{mariadb.name}`.* FROM {user}",
    )  # fmt: skip
    (finding,) = [each for each in source.check() if each.table == of(mariadb)]
    assert (finding.state, "rights to columns" in finding.detail) == ("failed", True)
    mariadb.execute(f"GRANT SELECT ON t TO inner_{user}")
    assert [each for each in source.check() if each.table == of(mariadb)] == []
    with following(source), contextlib.closing(source.open_tables()) as tables:
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1, "v": "a"}]


def test_a_predicate_limits_boundaries_and_rows(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_100")
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        dump_scenarios.predicate(tables, of(mariadb), unknown="nope", syntax="syntax")
        tables.close()


def test_keys_without_a_row_come_back_as_absent_in_the_columns_text(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (a decimal(8,2), b varchar(4), c date, d binary(2), v int, PRIMARY KEY (a, b, c, d))",
        "INSERT INTO t VALUES (1.5, 'x', '2020-01-02', x'00FF', 7)",
    )
    source = source_of(mariadb)
    with following(source):
        tables, table = source.open_tables(), of(mariadb)
        found = rows_of_keys(
            tables, table, [["1.5", "X", "2020-01-02", "0x00FF"], ["2.5", "y", "2020-01-03", "0x0001"]]
        )
        with pytest.raises(RequestError, match="is not a key"):
            rows_of_keys(tables, table, [["1"]])
        with pytest.raises(RequestError, match="not a number"):
            rows_of_keys(tables, table, [["1; DROP TABLE t", "x", "2020-01-02", "0x00"]])
        assert len(chunk_rows(tables, str(table))) == 1
        tables.close()
    assert [tuple(map(str, row)) for row in found] == [
        ("1.50", "x", "2020-01-02", r"b'\x00\xff'", "7", "False"),
        ("1.50", "X", "2020-01-02", r"b'\x00\xff'", "None", "True"),  # a lake's row of this text is a ghost
        ("2.50", "y", "2020-01-03", r"b'\x00\x01'", "None", "True"),
    ]


def test_many_keys_are_looked_up_together_and_each_is_found_or_absent(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int, name varchar(20), v text, PRIMARY KEY (id, name)) CHARACTER SET utf8mb4",
        "INSERT INTO t SELECT seq, concat('N', seq), repeat('x', seq % 7) FROM seq_1_to_1000",
    )
    wanted = [[str(n), f"{'nN'[n % 2]}{n}"] for n in range(501, 1501)]  # the latter half is not there
    wanted += [["7", "n7"], ["7", "N7"], ["8", "n7"], ["7", "n7"]]  # the same row, another, the first again
    source = source_of(mariadb)
    with following(source):
        tables, table = source.open_tables(), of(mariadb)
        sent: list[object] = []
        send = tables._connection._execute_command
        tables._connection._execute_command = lambda *a: (sent.append(a[1]), send(*a))[1]  # type: ignore[method-assign]
        found = rows_of_keys(tables, table, wanted)
        assert rows_of_keys(tables, table, []) == []
        assert rows_of_keys(tables, table, [["0", "none"]]) == [(0, "none", None, True)]
        tables.close()
    assert len(sent) < 150
    rows = [row for row in found if not row[3]]
    assert sorted(rows) == sorted(
        [(n, f"N{n}", "x" * (n % 7), False) for n in range(501, 1001)] + 3 * [(7, "N7", "", False)]
    )
    absent = [row for row in found if row[3]]
    assert sorted(absent) == sorted(
        [(n, f"{'nN'[n % 2]}{n}", None, True) for n in range(1001, 1501)]
        + [(n, f"n{n}", None, True) for n in range(502, 1001, 2)]  # there under another text
        + [(8, "n7", None, True)] + 2 * [(7, "n7", None, True)]
    )  # fmt: skip


def test_an_abandoned_chunk_does_not_harm_the_next(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT seq, repeat('x', 500) FROM seq_1_to_50000",
    )
    source, name = source_of(mariadb), str(of(mariadb))
    with following(source):
        tables = source.open_tables()
        with tables.open_chunk(of(mariadb), KeyRange()) as chunk:
            next(iter(chunk.rows()))
        with pytest.raises(TransientError):  # the connection was let go, and is reopened by the worker
            chunk_rows(tables, name)
        tables.close()
        tables = source.open_tables()
        assert len(chunk_rows(tables, name, KeyRange(None, ("10",)))) == 10
        tables.close()


def test_a_killed_select_is_transient(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT seq, repeat('x', 500) FROM seq_1_to_50000",
    )
    source = source_of(mariadb)
    with following(source):
        for kill in ("KILL QUERY", "KILL"):
            tables = source.open_tables()
            with tables.open_chunk(of(mariadb), KeyRange()) as chunk:
                rows = chunk.rows()
                next(rows)
                mariadb.execute(f"{kill} {tables._connection.thread_id()}")
                with pytest.raises(TransientError):
                    list(rows)
            tables.close()


def test_rows_are_read_within_bounded_batches(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT seq, repeat('x', 400) FROM seq_1_to_45000",
    )
    source = source_of(mariadb)
    with following(source):
        tables = source.open_tables()
        sizes = batch_sizes(tables, of(mariadb))
        assert sum(sizes) == 45000
        assert max(sizes) * 400 < dump.BATCH_BYTES + dump.RECEIVE_BYTES
        tables.close()


Chunk = tuple[int, int, list[str]]


def read_in_time(tables: MysqlTables, table: TableName, chunks: list[Chunk]) -> None:
    """Add a chunk's low and high watermark and values, once it can be read."""
    while not chunks:
        with contextlib.suppress(NotYetError), tables.open_chunk(table, KeyRange()) as chunk:
            values = [v for r in chunk.rows() for v in r.columns[1].to_pylist()]
            chunks.append((chunk.low, chunk.high, values))


@pytest.mark.parametrize("may_write", [True, False])
def test_a_commit_that_is_read_and_not_visible_is_after_the_low_watermark(
    mariadb: MysqlDatabase, may_write: bool
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb, url=None if may_write else reader_of(mariadb))
    chunks: list[tuple[int, int, list[str]]] = []

    with following(source) as log:
        tables = source.open_tables()
        reading = threading.Thread(target=read_in_time, args=(tables, of(mariadb), chunks))
        hanging = threading.Thread(target=lambda: mariadb.execute("UPDATE t SET v = 'new'"))
        with unanswered(mariadb):
            hanging.start()
            (update,) = events(read_rows(log, 1))  # the log has it ...
            assert mariadb.execute("SELECT v FROM t") == [("old",)]  # ... and nobody sees it
            reading.start()
            reading.join(1.0)
            opened_meanwhile = list(chunks)
        hanging.join(30)
        reading.join(30)
        ((low, high, rows),) = chunks
        lsn = update["_cdc"]["lsn"]
        if rows == ["old"]:
            assert low < lsn
            assert high <= lsn
        else:
            assert rows == ["new"]
            assert not opened_meanwhile
            assert high > lsn
        tables.close()


@pytest.mark.only_mariadb
@pytest.mark.parametrize("may_write", [True, False])
def test_the_last_commit_of_a_log_file_that_is_not_visible_is_after_the_low_watermark(
    mariadb: MysqlDatabase, may_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB reports a snapshot's position as if the next file were begun behind it."""
    monkeypatch.setattr(reader, "POLL_SECONDS", 1e9)  # or it notes the new file: a commit that waits, too
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb, url=None if may_write else reader_of(mariadb))
    chunks: list[Chunk] = []
    with following(source) as log:
        tables = source.open_tables()
        statements = ("UPDATE t SET v = 'new'", "FLUSH BINARY LOGS")
        hanging, flushing = (threading.Thread(target=mariadb.execute, args=(s,)) for s in statements)
        reading = threading.Thread(target=read_in_time, args=(tables, of(mariadb), chunks))
        with unanswered(mariadb):
            hanging.start()
            (update,) = events(read_rows(log, 1))
            flushing.start()
            read_to(log, (log.position >> 32) + 1 << 32)
            assert mariadb.execute("SELECT v FROM t") == [("old",)]
            reading.start()
            reading.join(2.0)
        for thread in (hanging, flushing, reading):
            thread.join(30)
        ((low, _, values),) = chunks
        assert values == ["new"] or low < update["_cdc"]["lsn"]
        tables.close()


@pytest.mark.only_mariadb
@pytest.mark.parametrize("may_write_at_start", [True, False])
def test_the_first_chunk_after_a_start_waits_for_commits_in_one_phase_from_before(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch, may_write_at_start: bool
) -> None:
    """They may have waited for a replica until just our first write, and no log that we read has them."""
    barriers: list[float] = []
    snapshots: list[float] = []
    run, raise_barrier = dump.query, StateTable.raise_barrier

    def noted_query(connection: Connection[Any], statement: str) -> None:
        snapshots.extend([time.monotonic()] * ("CONSISTENT SNAPSHOT" in statement))
        run(connection, statement)

    def noted_barrier(self: StateTable, connection: Connection[Any]) -> bool:
        if not (may_write_at_start or opened):
            raise pymysql.OperationalError(LOCKED[0], "by FLUSH TABLES WITH READ LOCK")
        is_raised = raise_barrier(self, connection)
        barriers.append(time.monotonic())
        return is_raised

    monkeypatch.setattr(dump, "query", noted_query)
    monkeypatch.setattr(StateTable, "raise_barrier", noted_barrier)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, opened = source_of(mariadb), False
    with following(source):
        opened = True
        for _ in range(2):
            tables = source.open_tables()
            assert chunk_rows(tables, f"{mariadb.name}.t") == []
            tables.close()
    assert (len(barriers), len(snapshots)) == (2 + may_write_at_start, 2)
    assert snapshots[0] >= barriers[0] + visibility.SETTLED_SECONDS


def test_a_commit_that_stays_invisible_is_waited_for_no_longer_than_the_limit(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mariadb.is_mysql:
        pytest.skip("MariaDB says at once that commits wait")
    monkeypatch.setattr(visibility, "VISIBLE_SECONDS", 0.2)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb, url=reader_of(mariadb))
    with following(source) as log:
        tables = source.open_tables()
        hanging = threading.Thread(target=lambda: mariadb.execute("UPDATE t SET v = 'new'"))
        with unanswered(mariadb):
            hanging.start()
            read_rows(log, 1)
            with pytest.raises(TransientError, match="not visible"):
                chunk_rows(tables, str(of(mariadb)))
        hanging.join(30)
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1, "v": "new"}]
        tables.close()


@pytest.mark.only_mysql
def test_without_gtids_the_snapshot_is_opened_after_a_barrier_that_follows_commits_in_their_order(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb)
    with following(source) as log:
        tables = source.open_tables()
        monkeypatch.setattr(tables, "_log_progress", lambda: log.progress._replace(gtids=None))
        raise_barrier = source._state_table.raise_barrier

        def late(connection: object) -> bool:
            mariadb.execute("UPDATE t SET v = 'new'")
            return raise_barrier(connection)  # type: ignore[arg-type]

        monkeypatch.setattr(source._state_table, "raise_barrier", late)
        mariadb.execute("SET GLOBAL binlog_order_commits = OFF")
        try:
            with pytest.raises(NotYetError, match="SET GLOBAL binlog_order_commits = ON"):
                chunk_rows(tables, str(of(mariadb)))
        finally:
            mariadb.execute("SET GLOBAL binlog_order_commits = ON")
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1, "v": "new"}]
        tables.close()


@pytest.mark.only_mysql
def test_gtids_prove_a_snapshot_whatever_the_order_of_commits_without_a_write(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that hangs may have begun when another order was set."""
    monkeypatch.setattr(visibility, "VISIBLE_SECONDS", 0.2)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    source = source_of(mariadb)
    with following(source) as log:
        tables = source.open_tables()
        try:
            mariadb.execute("SET GLOBAL binlog_order_commits = OFF")
            hanging = threading.Thread(target=lambda: mariadb.execute("UPDATE t SET v = 'new'"))
            with unanswered(mariadb):
                hanging.start()
                read_rows(log, 1)
                mariadb.execute("SET GLOBAL binlog_order_commits = ON")
                with pytest.raises(TransientError, match="not visible"):
                    chunk_rows(tables, str(of(mariadb)))
            hanging.join(30)
        finally:
            mariadb.execute("SET GLOBAL binlog_order_commits = ON")
        assert chunk_rows(tables, str(of(mariadb))) == [{"id": 1, "v": "new"}]
        tables.close()
