"""The binary log of a real MariaDB: every operation, exact resumption, gaps, what no event shows."""

from __future__ import annotations

import re
import threading

import pymysql
import pytest

from connector.demo.servers.mariadb import MariadbServer
from connector.errors import DeltatideError, PreconditionError, TransientError
from connector.landing.event_batch import EventBatch
from connector.schema import TableName
from connector.source import Failover, ResumePoint, Segment
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source import log_scenarios
from tests.support.source.log_scenarios import Logged
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import (
    Row,
    events,
    following,
    opened,
    ops,
    quarantines,
    read_rows,
    read_to,
    unlogged_in,
)
from tests.support.waiting import wait_until


def logged(mariadb: MysqlDatabase) -> Logged:
    return Logged(source_of(mariadb), mariadb.execute, lambda log, _: read_all(mariadb, log))


@pytest.mark.every_release
def test_every_operation_comes_in_order(mariadb: MysqlDatabase) -> None:
    found = log_scenarios.every_operation(logged(mariadb))
    lsns = [row["_cdc"]["lsn"] for row in found]
    assert lsns[0] == lsns[5] < lsns[6]
    gtid = r"[0-9a-f-]{36}:\d+" if mariadb.is_mysql else r"0-1-\d+"
    assert all(re.fullmatch(gtid, row["_cdc"]["txid"]) for row in found)


def test_a_savepoint_that_was_rolled_back_leaves_nothing(mariadb: MysqlDatabase) -> None:
    log_scenarios.savepoint_rolled_back(logged(mariadb))


def test_keys_swapped_in_one_transaction_keep_their_rows(mariadb: MysqlDatabase) -> None:
    log_scenarios.keys_swapped(logged(mariadb))


@pytest.mark.every_release
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_a_row_image_set_by_one_session_marks_what_it_leaves_out(mariadb: MysqlDatabase, image: str) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text)", "INSERT INTO t VALUES (1, 1, 'x')")
    with following(source_of(mariadb, partial_images=True)) as log:
        mariadb.execute(f"SET binlog_row_image = {image}", "UPDATE t SET n = 2")
        mariadb.execute("UPDATE t SET n = 3")
        *_, partial, whole = read_all(mariadb, log)
    assert (partial["n"], partial["v"], partial["_cdc"]["unchanged"]) == (2, None, ["v"])
    assert (whole["n"], whole["v"], whole["_cdc"]["unchanged"]) == (3, "x", None)


LACKING = {
    "INSERT INTO {} (id) VALUES (2)": ("n, v", "v"),
    "INSERT INTO {} (n, v) VALUES (2, 'y')": ("id", None),
    "INSERT INTO {} () VALUES ()": ("id, n, v", "v"),
    "UPDATE {} SET n = 2": ("n, v", "v"),
    "UPDATE {} SET v = 'y'": ("n, v", "v"),
    "DELETE FROM {}": ("n, v", "v"),
    "REPLACE INTO {} (id, n) VALUES (1, 2)": ("n, v", "v"),
}
"""What the log of each change lacks, with MINIMAL and with NOBLOB (None: nothing)."""


@pytest.mark.every_release
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_rows_of_which_the_log_lacks_columns_quarantine_their_table_unless_that_is_allowed(
    mariadb: MysqlDatabase, image: str
) -> None:
    changes = {f"t{number}": change for number, change in enumerate([*LACKING, "DO 1"])}
    for table in changes:
        mariadb.execute(
            f"CREATE TABLE {table} (id int DEFAULT 9 PRIMARY KEY, n int DEFAULT 5, v text)",
            f"INSERT INTO {table} VALUES (1, 1, 'x')",
        )
    with following(source_of(mariadb)) as log:
        mariadb.execute(
            f"SET binlog_row_image = {image}", *(change.format(table) for table, change in changes.items())
        )
        mariadb.execute(*(f"UPDATE {table} SET n = 7, v = 'z'" for table in changes))
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    found = {notice.table.name: notice for notice in quarantines(segment)}
    lacking = {table: LACKING[c][image == "NOBLOB"] for table, c in changes.items() if c in LACKING}
    assert {table: notice.reason.partition("(")[2].partition(")")[0] for table, notice in found.items()} == {
        table: columns for table, columns in lacking.items() if columns
    }
    assert {"allow_partial_row_images" in (notice.hint or "") for notice in found.values()} == {True}
    landed = {batch.schema.table.name for batch in segment.decode() if isinstance(batch, EventBatch)}
    assert landed == changes.keys() - found.keys()


@pytest.mark.every_release
@pytest.mark.parametrize("partial_images", [False, True])
def test_an_update_of_a_table_that_is_all_key_may_be_a_replace_though_its_old_row_is_whole(
    mariadb: MysqlDatabase, *, partial_images: bool
) -> None:
    """MariaDB's log lacks the default of b, so the row landed as it was before; MySQL's has it."""
    mariadb.execute(
        "CREATE TABLE t (a int, b int DEFAULT 5, PRIMARY KEY (a, b), UNIQUE (a))",
        "INSERT INTO t VALUES (1, 3)",
    )
    with following(source_of(mariadb, partial_images=partial_images)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", "REPLACE INTO t (a) VALUES (1)")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    if mariadb.is_mysql:
        assert ops(events(segment), "a", "b") == [("delete", 1, 3), ("insert", 1, 5)]
    else:
        (found,) = quarantines(segment)
        assert "a REPLACE of a default key looks the same" in found.reason


REPLACED = (
    "CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 5, m int, v text, w varchar(9) UNIQUE)",
    "INSERT INTO t VALUES (1, 1, 1, 'x', 'a'), (2, 2, 2, 'x', 'b'), (3, 3, 3, 'x', 'c'), (4, 4, 4, 'x', 'd')",
)
REPLACING = (
    "REPLACE INTO t (id, m) VALUES (1, 10)",
    "REPLACE INTO t (id, w) VALUES (20, 'b')",
    "INSERT INTO t (id, m) VALUES (3, 0) ON DUPLICATE KEY UPDATE n = DEFAULT, m = 9",
    "UPDATE t SET m = m + 1 WHERE id = 4",
)


@pytest.mark.every_release
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB", "FULL_NODUP"])
def test_what_a_replace_resets_is_reported_or_missing_and_never_the_old_value(
    mariadb: MysqlDatabase, image: str
) -> None:
    mariadb.execute(*REPLACED)
    names = ("id", "n", "m", "v", "w")
    with following(source_of(mariadb, partial_images=image != "FULL_NODUP")) as log:
        rows = {row[0]: list(row) for row in mariadb.execute("SELECT * FROM t")}
        try:
            mariadb.execute(f"SET binlog_row_image = {image}", *REPLACING)
        except pymysql.Error:
            pytest.skip(f"this release has no {image}")
        for event in read_all(mariadb, log):
            cdc, before = event["_cdc"], rows.pop(event["id"], None)
            if cdc["op"] != "delete":
                old = before if cdc["op"] == "update" and before else ["missing"] * 5
                lacking = cdc["unchanged"] or ()
                rows[event["id"]] = [old[n] if c in lacking else event[c] for n, c in enumerate(names)]
    for row in mariadb.execute("SELECT * FROM t"):
        landed = rows.pop(row[0])
        assert [a for a, b in zip(landed, row, strict=True) if a not in (b, "missing")] == []
    assert rows == {}


@pytest.mark.only_mariadb
@pytest.mark.parametrize(
    ("columns", "replaced"),
    [
        ("id int DEFAULT 0 PRIMARY KEY, n int DEFAULT 5, w int UNIQUE", "(w) VALUES (1)"),
        ("id int DEFAULT 0 PRIMARY KEY, w int UNIQUE", "(w) VALUES (1)"),  # all others have a value
        ("a int, id int DEFAULT 0, w int UNIQUE, PRIMARY KEY (a, id)", "(a, w) VALUES (1, 1)"),
    ],
)
def test_an_update_that_may_be_a_replace_of_the_default_key_quarantines_its_table(
    mariadb: MysqlDatabase, columns: str, replaced: str
) -> None:
    mariadb.execute(f"CREATE TABLE t ({columns})")
    mariadb.execute(f"INSERT INTO t VALUES ({', '.join(['1'] * (columns.count(' int')))})")
    with following(source_of(mariadb, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", f"REPLACE INTO t {replaced}")
        read_to(log, mariadb.end_of_log())
        (found,) = quarantines(log.take())
    assert "REPLACE" in found.reason
    assert "binlog_row_image = FULL" in found.hint


def test_partitions_come_under_their_table(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
        " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))"
    )
    with following(source_of(mariadb)) as log:
        mariadb.execute("INSERT INTO p VALUES (1, 'a')", "UPDATE p SET id = 11")
        found = read_all(mariadb, log)
    assert ops(found, "id") == [("insert", 1), ("delete", 1), ("insert", 11)]


def test_reading_again_gives_the_same_events_and_none_twice(mariadb: MysqlDatabase) -> None:
    log_scenarios.read_again(logged(mariadb))


@pytest.mark.every_release
def test_a_huge_transaction_can_be_taken_in_parts(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with following(source_of(mariadb)) as log:
        mariadb.execute("INSERT INTO t SELECT seq, repeat('x', 100) FROM seq_1_to_20000")
        end = mariadb.end_of_log()
        parts = log_scenarios.read_in_parts(log, lambda _: log.position >= end)
    found = [row for part in parts for row in events(part)]
    assert [row["id"] for row in found] == list(range(1, 20001))
    positions = [(row["_cdc"]["lsn"], row["_cdc"]["seq"]) for row in found]
    assert positions == sorted(set(positions))
    assert len({lsn for lsn, _ in positions}) == 1
    assert {part.position for part in parts[:3]} == {parts[0].position}
    assert parts[0].position < end


def test_events_larger_than_a_packet_come_whole(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    with following(source_of(mariadb)) as log:
        mariadb.execute("SET GLOBAL max_allowed_packet = 1 << 26")
        mariadb.execute("INSERT INTO t VALUES (1, repeat('x', 20000000)), (2, 'y')")
        rows = read_all(mariadb, log)
        mariadb.execute("INSERT INTO t VALUES (3, 'z')")
        rows += read_all(mariadb, log)
    assert [(row["id"], len(row["v"])) for row in rows] == [(1, 20_000_000), (2, 1), (3, 1)]


@pytest.mark.every_release
def test_the_log_goes_on_in_the_next_file_and_resumes_there(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(mariadb)
    with following(source) as log:
        start = log.position
        mariadb.execute("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        found = read_all(mariadb, log)
        assert log.position >> 32 == (start >> 32) + 1
        position = log.position
    assert ops(found, "id") == [("insert", 1), ("insert", 2)]
    with opened(source, ResumePoint(start, ())) as log:
        assert read_all(mariadb, log) == found
    with opened(source, ResumePoint(position, ())) as log:
        mariadb.execute("INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS")
        assert ops(read_all(mariadb, log), "id") == [("insert", 3)]
        assert source.check_resumable(ResumePoint(log.position)) is None


def test_an_idle_log_moves_with_what_is_not_captured(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    with following(source_of(mariadb, [f"{mariadb.name}.t"])) as log:
        mariadb.execute("INSERT INTO other SELECT seq FROM seq_1_to_1000")
        read_to(log, mariadb.end_of_log())
        assert (log.buffered_rows, log.buffered_bytes, log.behind_bytes) == (0, 0, 0)


def test_a_killed_dump_thread_is_transient_and_resumed_exactly(mariadb: MysqlDatabase) -> None:
    def kill() -> None:
        for (thread,) in mariadb.execute(
            "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"
        ):
            mariadb.execute(f"KILL {thread}")

    log_scenarios.sender_ended(logged(mariadb), kill)


def test_cut_connections_neither_skip_nor_double(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v varchar(300))")
    with LossyProxy(mariadb.server.port) as proxy:
        url = mariadb.url.replace(f":{mariadb.server.port}/", f":{proxy.port}/")
        source = source_of(mariadb, url=url)
        source.prepare()
        history = source.begin_log(fresh=False)
        done = threading.Event()

        def write() -> None:
            with mariadb.connect() as connection, connection.cursor() as cursor:
                for number in range(1500):
                    cursor.execute(f"INSERT INTO t (v) VALUES (repeat('x', {number % 300})), ('b'), ('c')")
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        found: list[Row] = []
        position = history.position
        while not (done.is_set() and position >= mariadb.end_of_log()):
            try:
                log = source.open_log(1, ResumePoint(position))
                try:
                    for turn in range(6):
                        log.read(0.01, 20_000)
                        segment = log.take()
                        found += events(segment)
                        position = segment.position
                        if turn == 4 and not done.is_set():
                            proxy.cut(1.0)
                finally:
                    log.close()
            except TransientError:
                continue
        writer.join()
        source.close()
    assert proxy.cuts >= 5
    assert [row["id"] for row in found] == [key for (key,) in mariadb.execute("SELECT id FROM t ORDER BY id")]
    assert [row["id"] for row in found] == list(range(1, 4501))


@pytest.mark.parametrize("crash", [False, pytest.param(True, marks=pytest.mark.every_release)])
def test_a_restarted_server_is_resumed_exactly(mariadb: MysqlDatabase, crash: bool) -> None:
    mariadb.execute("SET GLOBAL sync_binlog = 1", "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute("INSERT INTO t VALUES (1)")
        first = read_rows(log, 1)
        mariadb.execute("INSERT INTO t VALUES (2)")
        mariadb.server.restart(crash=crash)
        with pytest.raises(TransientError):
            wait_until(lambda: log.read(0.05, 1 << 20), "the connection is lost")
    assert source.check_resumable(ResumePoint(first.position)) is None
    with opened(source, ResumePoint(first.position, ())) as log:
        mariadb.execute("INSERT INTO t VALUES (3)")
        assert ops(read_all(mariadb, log), "id") == [("insert", 2), ("insert", 3)]


def with_rows(segment: Segment) -> list[EventBatch]:
    """The batches that hold rows; others only announce a layout."""
    return [found for found in segment.decode() if isinstance(found, EventBatch) and found.table.num_rows]


@pytest.mark.every_release
def test_columns_change_between_changes_and_the_log_says_how(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    source = source_of(mariadb)
    with following(source) as log:
        start = log.position
        mariadb.execute(
            "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD b int", "INSERT INTO t VALUES (2, 'a', 3)",
            "ALTER TABLE t DROP a", "INSERT INTO t VALUES (4, 5)",
            "ALTER TABLE t RENAME COLUMN b TO c, ADD d int FIRST", "INSERT INTO t VALUES (6, 7, 8)",
        )  # fmt: skip
        read_to(log, mariadb.end_of_log())
        batches = with_rows(log.take())
        now = source.tables().schemas[0]
    names = [[c.name for c in batch.schema.columns] for batch in batches]
    assert names == [["id", "a"], ["id", "a", "b"], ["id", "b"], ["d", "id", "c"]]
    assert batches[-1].schema == now
    with opened(
        source, ResumePoint(start, ())
    ) as log:  # the same after a restart, whatever the catalog says now
        read_to(log, mariadb.end_of_log())
        again = with_rows(log.take())
    assert [b.schema.id for b in again] == [b.schema.id for b in batches]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t MODIFY v varchar(2)",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "RENAME TABLE t TO old, ghost TO t",
        "ALTER TABLE p DROP PARTITION a",
        "ALTER TABLE `p` TRUNCATE PARTITION a",
        pytest.param("CREATE OR REPLACE TABLE t (id int PRIMARY KEY)", marks=pytest.mark.only_mariadb),
        "DROP TABLE t",
    ],
)
def test_what_changes_rows_without_events_is_reported_once(mariadb: MysqlDatabase, statement: str) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) CHARACTER SET utf8mb4",
        "CREATE TABLE ghost LIKE t", "INSERT INTO t VALUES (1, 'abc')",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
    )  # fmt: skip
    source = source_of(mariadb)
    with following(source) as log:
        name = "p" if "PARTITION" in statement else "t"
        mariadb.execute("SET sql_mode = ''", statement, "CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
        read_to(log, mariadb.end_of_log())
        assert unlogged_in(log.take()) - {"ghost"} == {name}
        mariadb.execute(
            "DELETE FROM t", "INSERT INTO t (id) VALUES (7)", "ALTER TABLE t ADD later int",
            "CREATE INDEX i ON t (id)",
        )  # fmt: skip
        read_to(log, mariadb.end_of_log())
        assert unlogged_in(log.take()) == set()


def test_a_change_in_the_statement_format_quarantines_its_table_and_the_others_go_on(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    with following(source_of(mariadb)) as log:
        mariadb.execute("SET binlog_format = STATEMENT", "INSERT INTO t VALUES (1)")
        mariadb.execute("INSERT INTO u VALUES (2)")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    (found,) = quarantines(segment)
    assert found.table == TableName.parse(f"{mariadb.name}.t")
    assert "statement format" in found.reason
    assert "binlog_format" in found.hint
    assert segment.rows == 1


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO w VALUES (5, 1)", "INSERT INTO plain VALUES (5, 1)", "CALL p()", "DO f()", "SELECT f()",
     "UPDATE plain, w SET w.v = 3, plain.v = 4", "UPDATE w SET v = 2"],
)  # fmt: skip
def test_a_statement_that_leads_to_a_table_indirectly_has_it_read_again(
    mariadb: MysqlDatabase, statement: str
) -> None:
    mariadb.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE plain LIKE t", "INSERT INTO plain VALUES (1, 1)", "CREATE VIEW w AS SELECT * FROM t",
        "CREATE TRIGGER r AFTER INSERT ON plain FOR EACH ROW INSERT INTO t VALUES (NEW.id + 100, 1)",
        "CREATE PROCEDURE p() UPDATE w SET v = 7",
        "CREATE FUNCTION f() RETURNS int DETERMINISTIC MODIFIES SQL DATA"
        " BEGIN UPDATE t SET v = 9; RETURN 1; END",
    )  # fmt: skip
    source = source_of(mariadb, [f"{mariadb.name}.t"])
    with following(source) as log:
        mariadb.execute("SET binlog_format = STATEMENT", statement)
        read_to(log, mariadb.end_of_log())
        segment = log.take()
        assert quarantines(segment) or unlogged_in(segment) == {"t"}


@pytest.mark.only_mysql
def test_the_log_begins_in_a_file_whose_first_statement_is_in_another_character_set(
    mariadb: MysqlDatabase,
) -> None:
    """The server shows it as it is; what was executed before the file could not be read any more."""
    with mariadb.connect() as session, session.cursor() as cursor:
        cursor.execute("SET NAMES latin1")
        mariadb.execute("FLUSH BINARY LOGS")
        cursor.execute(b"CREATE TABLE t (id int PRIMARY KEY) COMMENT '\xfc'")
    with opened(source := source_of(mariadb), source.begin_log(fresh=False)) as log:
        mariadb.execute("INSERT INTO t VALUES (1)")
        assert ops(read_all(mariadb, log), "id") == [("insert", 1)]


@pytest.mark.only_mysql
def test_a_statement_that_changes_another_database_leaves_these_tables_alone(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE DATABASE IF NOT EXISTS elsewhere")
    source = source_of(mariadb)
    try:
        with following(source) as log:
            before = source.check_catalog().tables
            mariadb.execute(
                "CREATE TABLE elsewhere.c (n int PRIMARY KEY)", "SET binlog_format = STATEMENT",
                "REPLACE INTO elsewhere.c VALUES (1), (2)",
            )  # fmt: skip
            read_to(log, mariadb.end_of_log())
            assert quarantines(log.take()) == []
            assert source.check_catalog().tables == before
    finally:
        mariadb.execute("DROP DATABASE elsewhere")


def test_a_table_without_metadata_or_key_is_quarantined_and_the_others_go_on(mariadb: MysqlDatabase) -> None:
    odd = '`a."b`'
    mariadb.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "u", odd)))
    source = source_of(mariadb)
    captured = {schema.table for schema in source.tables().schemas}
    with following(source) as log:
        for name in ("t", odd):
            mariadb.execute(f"ALTER TABLE {name} DROP PRIMARY KEY", f"INSERT INTO {name} VALUES (1)")
        mariadb.execute("INSERT INTO u VALUES (2)")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
        quarantined = quarantines(segment)
        assert {found.table for found in quarantined} == captured - {TableName(mariadb.name, "u")}
        assert {found.reason for found in quarantined} == {"it has no primary key"}
        mariadb.execute("SET GLOBAL binlog_row_metadata = NO_LOG")
        try:
            mariadb.execute("INSERT INTO u VALUES (3)")
        finally:
            mariadb.execute("SET GLOBAL binlog_row_metadata = FULL")
        read_to(log, mariadb.end_of_log())
        (found,) = quarantines(log.take())
    assert found.table == TableName.parse(f"{mariadb.name}.u")
    assert "binlog_row_metadata" in found.hint


def test_an_xa_transaction_quarantines_its_tables(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    with following(source_of(mariadb)) as log:
        mariadb.execute(
            "XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"
        )
        mariadb.execute("INSERT INTO u VALUES (2)")
        read_to(log, mariadb.end_of_log())
        found = quarantines(log.take())
    assert {str(each.table) for each in found} == {f"{mariadb.name}.t"}
    assert all("XA transaction" in each.reason for each in found)


@pytest.mark.every_release
@pytest.mark.parametrize("compressed", [False, True])
def test_compressed_events_are_the_same_events(mariadb: MysqlDatabase, compressed: bool) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))")
    with following(source_of(mariadb)) as log:
        mariadb.execute(f"SET GLOBAL log_bin_compress = {int(compressed)}")
        try:
            mariadb.execute(
                "INSERT INTO t VALUES (1, repeat('x', 2000))", "UPDATE t SET v = repeat('y', 2000)"
            )
            long = " " * 500
            mariadb.execute(f"TRUNCATE TABLE {long} t")
        finally:
            mariadb.execute("SET GLOBAL log_bin_compress = 0")
        found = read_all(mariadb, log)
    assert [(op, v and v[0]) for op, v in ops(found, "v")] == [
        ("insert", "x"),
        ("update", "y"),
        ("truncate", None),
    ]


def test_names_with_quotes_dots_and_signs_are_captured(mariadb: MysqlDatabase) -> None:
    name = "a\"b.c `d' ☃"
    quoted = "`" + name.replace("`", "``") + "`"
    mariadb.execute(f"CREATE TABLE {quoted} (`k 'ü` int PRIMARY KEY, {quoted} text)")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute(f"INSERT INTO {quoted} VALUES (1, 'x')", f"TRUNCATE TABLE {quoted}")
        found = read_all(mariadb, log)
        (schema,) = source.tables().schemas
        tables = source.open_tables()
        mariadb.execute(f"INSERT INTO {quoted} VALUES (2, 'y')")
        assert tables.next_boundary(schema.table, schema.key, None, 1, None) == ("2",)
        tables.close()
    assert [(row["_cdc"]["op"], row["k 'ü"], row[name]) for row in found] == [
        ("insert", 1, "x"),
        ("truncate", None, None),
    ]
    assert schema.table.name == name


def test_a_purged_file_is_a_gap(mariadb: MysqlDatabase) -> None:
    source = source_of(mariadb)
    with following(source) as log:
        start = log.position
        assert source.check_resumable(ResumePoint(start)) is None
        mariadb.execute("FLUSH BINARY LOGS")
        read_to(log, mariadb.end_of_log())
        position = log.position
    (last,) = mariadb.execute("SHOW BINARY LOGS")[-1:]
    mariadb.execute("FLUSH BINARY LOGS")

    def purged() -> bool:
        mariadb.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
        return len(mariadb.execute("SHOW BINARY LOGS")) == 2

    wait_until(purged, "the file is purged")
    assert "is gone" in (source.check_resumable(ResumePoint(start)) or "")
    assert source.check_resumable(ResumePoint(position)) is None
    assert "ends at" in (source.check_resumable(ResumePoint(position + (1 << 30))) or "")
    with pytest.raises(TransientError):
        source.open_log(1, ResumePoint(start))
    source.close()


def test_a_reset_log_is_a_gap_even_where_the_same_file_and_offset_are_there_again(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "RESET MASTER")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute("INSERT INTO t VALUES (1)")
        position = read_rows(log, 1).position
    assert source.check_resumable(ResumePoint(position)) is None
    before = mariadb.execute("SELECT UNIX_TIMESTAMP()")
    wait_until(lambda: mariadb.execute("SELECT UNIX_TIMESTAMP()") > before, "another second begins")
    mariadb.execute("RESET MASTER", "INSERT INTO t SELECT seq FROM seq_2_to_3000")
    assert mariadb.end_of_log() > position
    again = source_of(mariadb)  # another process
    assert "reset" in (again.check_resumable(ResumePoint(position)) or "")
    history = again.begin_log(fresh=True)
    assert "reset" in (
        source_of(mariadb).check_resumable(ResumePoint(position)) or ""
    )  # a crash before the next manifest
    with opened(again, history):
        assert again.check_resumable(history) is None
    source.close()


def test_a_log_reset_while_it_is_read_ends_the_reading(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(mariadb)
    with following(source) as log:
        mariadb.execute("INSERT INTO t SELECT seq FROM seq_1_to_1000")
        read_to(log, mariadb.end_of_log())
        log.take()
        mariadb.execute("RESET MASTER")
        with pytest.raises(TransientError):
            wait_until(lambda: log.read(0.1, 1 << 20), "it is noticed")
        assert source.check_resumable(ResumePoint(log.position))


def test_an_older_agents_connection_gives_way_to_a_newer_one(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(source_of(mariadb)) as log:
        position = log.position
        with opened(source_of(mariadb), ResumePoint(position, ())) as other:
            with pytest.raises(TransientError):
                wait_until(lambda: log.read(0.05, 1 << 20), "the older one is ended")
            mariadb.execute("INSERT INTO t VALUES (1)")
            assert ops(read_all(mariadb, other), "id") == [("insert", 1)]


@pytest.mark.only_mariadb  # MySQL's server_uuid cannot be set
def test_replicas_share_the_identity_and_another_server_is_a_gap(
    mariadb: MysqlDatabase, mariadb_server: MariadbServer
) -> None:
    source = source_of(mariadb)
    before = source.identity().system_id
    source.prepare()
    assert source.identity().system_id != before == "1-0"
    history = source.begin_log(fresh=False)
    with opened(source, history):
        pass
    mariadb.execute("SET GLOBAL server_id = 77")  # as if it were a replica that was promoted
    try:
        other = source_of(mariadb)
        assert other.identity().system_id == source.identity().system_id
        found = other.check_resumable(history)
        assert isinstance(found, Failover)
        assert "server 77-0" in found.reason
        other.close()
    finally:
        mariadb.execute("SET GLOBAL server_id = 1")
        source.close()


def test_a_wrong_password_and_an_unreachable_server_are_distinguished(mariadb: MysqlDatabase) -> None:
    url = mariadb.server.url(password="wrong-password")
    with pytest.raises(PreconditionError, match="access denied") as refused:
        source_of(mariadb, url=url).identity()
    assert "wrong-password" not in str(refused.value)
    with pytest.raises(TransientError, match="can't reach"):
        source_of(mariadb, url="mysql://u:p@127.0.0.1:1/x").identity()
    with pytest.raises(DeltatideError, match="unknown parameter"):
        source_of(mariadb, url=f"{mariadb.url}?nope=1").identity()
