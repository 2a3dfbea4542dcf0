"""Statements of every kind beside a running capture: what landed is the tables, or it says why it is not.

The worst would be a table that differs and says nothing, so each case names what must come of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymysql
import pytest

from connector.landing.event_batch import UnloggedNotice
from connector.landing.manifest_store import newest_manifest
from connector.mysql.connection import parse_url
from connector.schema import TableName
from tests.support.agent.mysql_agents import (
    agent,
    assert_equal,
    is_equal,
    short_waits,
    wait_caught_up,
)
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.source.reading import following, read_to
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(50)) CHARACTER SET utf8mb4",
    "CREATE TABLE u (id int PRIMARY KEY, v varchar(50)) CHARACTER SET utf8mb4",
    "CREATE TABLE p (id int PRIMARY KEY, v varchar(50)) CHARACTER SET utf8mb4 PARTITION BY RANGE (id)"
    " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20),"
    " PARTITION c VALUES LESS THAN MAXVALUE)",
    "CREATE TABLE wide (id bigint PRIMARY KEY, v text)",
    "INSERT INTO t SELECT seq, concat('t', seq) FROM seq_1_to_30",
    "INSERT INTO u SELECT seq, concat('u', seq) FROM seq_1_to_30",
    "INSERT INTO p SELECT seq, concat('p', seq) FROM seq_1_to_30",
)
EQUAL = {
    "insert ... on duplicate key": [
        "INSERT INTO t VALUES (1, 'x'), (99, 'y') ON DUPLICATE KEY UPDATE v = 'dup'"
    ],
    "insert ... on duplicate key that changes the key": [
        "INSERT INTO t VALUES (1, 'x') ON DUPLICATE KEY UPDATE id = 500, v = 'dup'",
    ],
    "replace": ["REPLACE INTO t VALUES (1, 'r'), (77, 'r')"],
    "replace by another unique key": [
        "ALTER TABLE t ADD UNIQUE (v)",
        "REPLACE INTO t VALUES (400, 't7')",
        "REPLACE INTO t VALUES (3, 't9')",
    ],
    "insert ignore": ["INSERT IGNORE INTO t VALUES (1, 'no'), (88, 'yes')"],
    "update of many tables": [
        "UPDATE t JOIN u USING (id) SET t.v = concat(u.v, '!'), u.v = 'w' WHERE id % 2"
    ],
    "delete from many tables": ["DELETE t, u FROM t JOIN u USING (id) WHERE id < 9"],
    "savepoints": [
        "BEGIN",
        "INSERT INTO t VALUES (100, 'a')",
        "SAVEPOINT s",
        "DELETE FROM t WHERE id < 5",
        "SAVEPOINT s2",
        "UPDATE t SET v = 'q'",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (101, 'b')",
        "COMMIT",
    ],
    "rolled back": ["BEGIN", "DELETE FROM t", "ROLLBACK", "DELETE FROM t WHERE id = 2"],
    "create ... select": [
        "CREATE TABLE fresh (PRIMARY KEY (id)) SELECT * FROM t",
        "DELETE FROM t WHERE id = 1",
    ],
    "create ... like": ["CREATE TABLE fresh LIKE t", "INSERT INTO fresh SELECT * FROM t"],
    "a temporary table of the same name": [
        "CREATE TEMPORARY TABLE t LIKE u",
        "INSERT INTO t VALUES (4000, 'temporary')",
        "TRUNCATE TABLE t",
        "INSERT INTO t VALUES (4001, 'temporary')",
        "DELETE FROM t",
        "ALTER TABLE t ADD w int",
        "DROP TEMPORARY TABLE t",
        "INSERT INTO t VALUES (4002, 'real')",
    ],
    "a temporary table of the same name in the statement format": [
        "SET binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE t LIKE u",
        "TRUNCATE TABLE t",
        "DROP TEMPORARY TABLE t",
    ],
    "a temporary table that ends with its session": [
        "CREATE TEMPORARY TABLE t LIKE u",
        "INSERT INTO t VALUES (4000, 'temporary')",
    ],
    "changes from a temporary table": [
        "CREATE TEMPORARY TABLE x SELECT * FROM t",
        "BEGIN",
        "INSERT INTO x VALUES (900, 'x')",
        "INSERT INTO u SELECT id + 1000, v FROM x",
        "COMMIT",
        "DROP TEMPORARY TABLE x",
    ],
    "truncate": ["TRUNCATE t", "INSERT INTO t VALUES (5, 'new')"],
    "delete all": ["DELETE FROM t", "INSERT INTO t VALUES (5, 'new')"],
    "truncate partition": ["ALTER TABLE p TRUNCATE PARTITION b", "INSERT INTO p VALUES (11, 'new')"],
    "drop partition": ["ALTER TABLE p DROP PARTITION a"],
    "exchange partition": [
        "CREATE TABLE x (id int PRIMARY KEY, v varchar(50)) CHARACTER SET utf8mb4",
        "INSERT INTO x VALUES (12, 'exchanged')",
        "ALTER TABLE p EXCHANGE PARTITION b WITH TABLE x",
    ],
    "reorganized partitions": [
        "ALTER TABLE p REORGANIZE PARTITION a, b INTO (PARTITION ab VALUES LESS THAN (20))",
        "UPDATE p SET v = 'q' WHERE id = 15",
        "ALTER TABLE p REMOVE PARTITIONING",
        "DELETE FROM p WHERE id = 3",
    ],
    "optimize": ["OPTIMIZE TABLE t", "UPDATE t SET v = 'o' WHERE id = 1"],
    "rebuilt": ["ALTER TABLE t ENGINE = InnoDB", "ALTER TABLE t FORCE", "UPDATE t SET v = 'o' WHERE id = 1"],
    "dropped and made again": [
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(50))",
        "INSERT INTO t VALUES (2, 'again')",
    ],
    "dropped and made again at once by several": [
        "DROP TABLE u, t",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(50))",
        "CREATE TABLE u LIKE t",
    ],
    "swapped": ["RENAME TABLE t TO x, u TO t, x TO u", "UPDATE t SET v = 's' WHERE id = 3"],
    "renamed by alter": ["ALTER TABLE t RENAME TO x", "ALTER TABLE u RENAME t", "CREATE TABLE u LIKE t"],
    "a prepared statement": [
        "SET @s = 'UPDATE t SET v = ? WHERE id = 5', @v = 'prepared'",
        "PREPARE s FROM @s",
        "EXECUTE s USING @v",
    ],
    "charset converted": ["ALTER TABLE t CONVERT TO CHARACTER SET latin1", "INSERT INTO t VALUES (55, 'é')"],
    "a trigger": [
        "SET GLOBAL log_bin_trust_function_creators = 1",
        "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW UPDATE u SET v = 'g' WHERE id = NEW.id - 100",
        "INSERT INTO t VALUES (103, 'x')",
    ],
    "an updatable view": ["CREATE VIEW w AS SELECT * FROM t", "UPDATE w SET v = 'view' WHERE id < 4"],
    "two alters": ["ALTER TABLE t ADD a int DEFAULT 4, ADD KEY (a)", "ALTER TABLE t DROP v, ADD v int"],
    "an alter that lets the layout be": [
        "INSERT INTO t VALUES (800, 'a')",
        "ALTER TABLE t ADD KEY k (v)",
        "INSERT INTO t VALUES (801, 'b')",
    ],
    "a new number in each row": ["ALTER TABLE t ADD n int NOT NULL AUTO_INCREMENT UNIQUE"],
    "a key of another type": ["ALTER TABLE t MODIFY id varchar(20)", "UPDATE t SET v = 'k' WHERE id = '3'"],
    "keys that differ by case, accent and space": [
        "CREATE TABLE k (id varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v int) CHARACTER SET utf8mb4",
        "INSERT INTO k VALUES ('abc', 1), ('É', 2), ('x ', 3)",
        "UPDATE k SET id = 'ABC' WHERE id = 'abc'",
        "UPDATE k SET id = 'e' WHERE v = 2",
        "UPDATE k SET id = 'x' WHERE v = 3",
        "REPLACE INTO k VALUES ('Abc', 4)",
        "DELETE FROM k WHERE id = 'E'",
        "INSERT INTO k VALUES ('X', 5) ON DUPLICATE KEY UPDATE v = 6",
    ],
    "a procedure": [
        "CREATE PROCEDURE pr() BEGIN TRUNCATE t; ALTER TABLE p DROP PARTITION b; END",
        "CALL pr()",
    ],
    "a database dropped and made again": [
        "DROP DATABASE {db}",
        "CREATE DATABASE {db}",
        "USE {db}",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(50))",
        "INSERT INTO t VALUES (1, 'n')",
    ],
    "away to another database and back": [
        "CREATE DATABASE IF NOT EXISTS elsewhere",
        "RENAME TABLE t TO elsewhere.away",
        "UPDATE elsewhere.away SET v = 'e' WHERE id < 10",
        "RENAME TABLE elsewhere.away TO t",
    ],
    "replaced by a table of another database": [
        "CREATE DATABASE IF NOT EXISTS elsewhere",
        "CREATE TABLE elsewhere.other (PRIMARY KEY (id)) SELECT * FROM u",
        "DROP TABLE t",
        "ALTER TABLE elsewhere.other RENAME TO {db}.t",
    ],
    "from within another database": [
        "CREATE DATABASE IF NOT EXISTS elsewhere",
        "USE elsewhere",
        "TRUNCATE {db}.t",
        "ALTER TABLE {db}.p TRUNCATE PARTITION a",
    ],
    "names in double quotes": [
        "SET sql_mode = 'ANSI_QUOTES'",
        'TRUNCATE "t"',
        'ALTER TABLE "p" DROP PARTITION "a"',
    ],
    "comments that are executed": [
        "/* x */ TRUNCATE /*!50000 TABLE */ t -- y",
        "/*!50000 ALTER */ TABLE p DROP /* hm */ PARTITION a",
    ],
    "a file": ["LOAD DATA LOCAL INFILE '{file}' INTO TABLE t FIELDS TERMINATED BY ','"],
    "xa that was never prepared": [
        "XA START 'x1'",
        "DELETE FROM t WHERE id = 4",
        "XA END 'x1'",
        "XA ROLLBACK 'x1'",
        "DELETE FROM t WHERE id = 5",
    ],
    "xa in one phase": [
        "XA START 'x2'",
        "DELETE FROM t WHERE id = 4",
        "XA END 'x2'",
        "XA COMMIT 'x2' ONE PHASE",
        "DELETE FROM t WHERE id = 5",
    ],
    "values shortened": ["SET sql_mode = ''", "ALTER TABLE t MODIFY v varchar(2)"],
    "a default that was a null": ["ALTER TABLE t ADD n int", "ALTER TABLE t MODIFY n int NOT NULL DEFAULT 0"],
    "many events": [
        "INSERT INTO wide SELECT seq, repeat('w', 300) FROM seq_1_to_3000",
        "DELETE FROM wide WHERE id % 3",
    ],
}
EQUAL_IN_MARIADB = {
    "versions": ["ALTER TABLE t ADD SYSTEM VERSIONING", "DELETE FROM t WHERE id = 4"],
    "delete ... returning": ["DELETE FROM t WHERE id < 5 RETURNING id"],
    "create or replace": ["CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v varchar(50))"],
    "create or replace ... select": [
        "CREATE OR REPLACE TABLE t (PRIMARY KEY (id)) SELECT * FROM u WHERE id < 9"
    ],
    "a sequence": [
        "CREATE SEQUENCE s",
        "SELECT NEXTVAL(s)",
        "INSERT INTO t SELECT NEXTVAL(s) + 700, 's'",
        "SELECT SETVAL(s, 900)",
    ],
    "a portion of time": [
        "CREATE TABLE f (id int PRIMARY KEY AUTO_INCREMENT, a date, b date, PERIOD FOR pr (a, b))",
        "INSERT INTO f VALUES (1, '2020-01-01', '2021-01-01')",
        "DELETE FROM f FOR PORTION OF pr FROM '2020-03-01' TO '2020-04-01'",
    ],
    "alter in two phases": [
        "SET binlog_alter_two_phase = 1",
        "ALTER TABLE t ADD a int DEFAULT 4",
        "UPDATE t SET v = 'q' WHERE id = 7",
        "ALTER TABLE t DROP a",
        "ALTER TABLE t ADD a int DEFAULT 9, ALGORITHM = COPY",
    ],
    "alter in two phases that fails": [
        "SET binlog_alter_two_phase = 1",
        "INSERT INTO t VALUES (600, 't7')",
        "!ALTER TABLE t ADD UNIQUE (v), ALGORITHM = COPY",
        "INSERT INTO t VALUES (601, 't7')",
    ],
    "a partition that becomes a table": [
        "ALTER TABLE p CONVERT PARTITION a TO TABLE fresh",
        "UPDATE fresh SET v = 'q' WHERE id = 3",
    ],
    "a table that becomes a partition": [
        "CREATE TABLE x (id int PRIMARY KEY, v varchar(50)) CHARACTER SET utf8mb4",
        "ALTER TABLE p DROP PARTITION c",
        "INSERT INTO x VALUES (25, 'x')",
        "ALTER TABLE p CONVERT TABLE x TO PARTITION c VALUES LESS THAN (50)",
    ],
    "ignoring duplicates": ["INSERT INTO t VALUES (601, 't7')", "ALTER IGNORE TABLE t ADD UNIQUE (v)"],
    "an engine that keeps nothing": [
        "INSTALL SONAME 'ha_blackhole'",
        "LOCK TABLES t WRITE",  # a dump that finds it there quarantines the table
        "ALTER TABLE t ENGINE = BLACKHOLE",
        "ALTER TABLE t ENGINE = InnoDB",
        "UNLOCK TABLES",
    ],
    "behind settings": [
        "SET STATEMENT max_statement_time = 100 FOR TRUNCATE TABLE t",
        "SET STATEMENT max_statement_time = 100 FOR ALTER TABLE p DROP PARTITION a",
    ],
    "analyzed": [
        "ANALYZE DELETE FROM t WHERE id < 5",
        "ANALYZE FORMAT = JSON UPDATE t SET v = 'z' WHERE id < 9",
    ],
    "rolled back with a temporary table": [
        "BEGIN",
        "DELETE FROM t",
        "CREATE TEMPORARY TABLE x (id int)",
        "ROLLBACK",
        "DELETE FROM t WHERE id = 2",
    ],
    "rolled back to a savepoint with a temporary table": [
        "BEGIN",
        "DELETE FROM t WHERE id = 3",
        "SAVEPOINT s",
        "DELETE FROM t",
        "CREATE TEMPORARY TABLE x (id int)",
        "ROLLBACK TO s",
        "DELETE FROM t WHERE id = 2",
        "COMMIT",
    ],
    "rolled back to a savepoint whose name differs by case only": [
        "BEGIN",
        "SAVEPOINT S",
        "DELETE FROM t WHERE id < 6",
        "SAVEPOINT s",
        "DELETE FROM t WHERE id < 8",
        "CREATE TEMPORARY TABLE x (id int)",
        "ROLLBACK TO S",
        "COMMIT",
    ],
    "rolled back to a savepoint of whose name a trigger has one, too": [
        "CREATE TRIGGER g AFTER DELETE ON t FOR EACH ROW BEGIN SAVEPOINT s;"
        " INSERT INTO u VALUES (OLD.id + 2000, 'g'); END",
        "BEGIN",
        "SAVEPOINT s",
        "DELETE FROM t WHERE id < 6",
        "CREATE TEMPORARY TABLE x (id int)",
        "ROLLBACK TO s",
        "COMMIT",
    ],
    "executed at once": ["EXECUTE IMMEDIATE 'TRUNCATE TABLE t'"],
    "a block": [
        "BEGIN NOT ATOMIC TRUNCATE t; INSERT INTO t VALUES (1, 'n'); ALTER TABLE p DROP PARTITION b; END"
    ],
}

XA = ["XA START 'x'", "INSERT INTO wide SELECT seq, repeat('w', 300) FROM seq_1_to_5000", "XA END 'x'"]
STATEMENT = "SET binlog_format = STATEMENT"

QUARANTINED = {
    "xa committed": (["wide"], [*XA, "XA PREPARE 'x'", "XA COMMIT 'x'"]),
    "xa rolled back": (["wide"], [*XA, "XA PREPARE 'x'", "XA ROLLBACK 'x'"]),
    "a file in the statement format": (
        ["t"],
        [STATEMENT, "LOAD DATA LOCAL INFILE '{file}' INTO TABLE t FIELDS TERMINATED BY ','"],
    ),
    "another key": (
        ["t"],
        ["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "INSERT INTO t VALUES (7, 'zzz')"],
    ),
    "tables without transactions": (
        ["t"],
        [
            "CREATE TABLE m (id int PRIMARY KEY, v int) ENGINE = MyISAM",
            "INSERT INTO m VALUES (1, 1), (2, 2)",
            "!INSERT INTO m VALUES (3, 1), (4, 2), (1, 4)",
            "ALTER TABLE t ENGINE = MyISAM",
            "UPDATE t SET v = 'm' WHERE id = 3",
        ],
    ),
    "an event that the server could not log": (
        ["t", "u", "p", "wide"],
        [
            "SET GLOBAL max_binlog_stmt_cache_size = 4096",
            "CREATE TABLE m (id int PRIMARY KEY, v longtext) ENGINE = MyISAM",
            "RECONNECT",
            "!INSERT INTO m SELECT seq, repeat('w', 3000) FROM seq_1_to_30",
            "SET GLOBAL max_binlog_stmt_cache_size = 18446744073709547520",
            "INSERT INTO t VALUES (800, 'after')",
        ],
    ),
}
QUARANTINED_IN_MARIADB = {
    "a foreign key that cascades below the log": (
        ["t"],
        [
            "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES u (id) ON DELETE CASCADE",
            "DELETE FROM u WHERE id = 3",
        ],
    ),
    "tables with and without transactions": (
        [],
        [
            "CREATE TABLE m (id int PRIMARY KEY, v int) ENGINE = MyISAM",
            "BEGIN",
            "INSERT INTO t VALUES (700, 'a')",
            "INSERT INTO m VALUES (1, 1), (2, 2)",
            "UPDATE m SET v = 3",
            "INSERT INTO t VALUES (701, 'b')",
            "ROLLBACK",
            "BEGIN",
            "INSERT INTO t VALUES (702, 'b')",
            "DELETE FROM m WHERE id = 2",
            "COMMIT",
        ],
    ),
    "a format behind settings": (
        ["t"],
        ["SET STATEMENT binlog_format = 'STATEMENT' FOR DELETE FROM t WHERE id < 5"],
    ),
    "analyzed in the statement format": (["t"], [STATEMENT, "ANALYZE DELETE FROM t WHERE id < 5"]),
}


def of_mariadb(names: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.only_mariadb) for name in names]


@pytest.mark.parametrize("name", [*EQUAL, *of_mariadb(EQUAL_IN_MARIADB)])
def test_what_landed_is_the_tables_after(mariadb: MysqlDatabase, tmp_path: Path, name: str) -> None:
    mariadb.execute(*TABLES)
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        run(mariadb, tmp_path, {**EQUAL, **EQUAL_IN_MARIADB}[name])
        wait_caught_up(mariadb, store)

        def differing() -> list[str]:
            tables = newest_manifest(store).tables  # type: ignore[union-attr]
            captured = [t for t in present(mariadb) if TableName(mariadb.name, t) in tables]
            return sorted({*present(mariadb)} - {t for t in captured if is_equal(mariadb, store, t)})

        wait_until(lambda: not differing(), "all tables are equal", seconds=20)
        newest = newest_manifest(store)
        assert newest is not None
        assert {table.state for table in newest.tables.values()} == {"captured"}


@pytest.mark.parametrize("name", [*QUARANTINED, *of_mariadb(QUARANTINED_IN_MARIADB)])
def test_a_table_is_quarantined_by(mariadb: MysqlDatabase, tmp_path: Path, name: str) -> None:
    mariadb.execute(*TABLES)
    expected, statements = {**QUARANTINED, **QUARANTINED_IN_MARIADB}[name]
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        run(mariadb, tmp_path, [*statements, "SET binlog_format = ROW", "UPDATE u SET v = 'goes on'"])
        wait_caught_up(mariadb, store)
        without = "m" in present(mariadb)

        def quarantined() -> set[str]:
            newest = newest_manifest(store)
            assert newest is not None
            return {name.name for name, table in newest.tables.items() if table.state == "quarantined"}

        wait_until(lambda: quarantined() == {*expected, *(["m"] if without else [])}, "these are quarantined")
        wait_caught_up(mariadb, store)
        newest = newest_manifest(store)
    assert newest is not None
    assert all(
        table.reason and table.hint for table in newest.tables.values() if table.state == "quarantined"
    )
    for table in {"t", "u"} - {*expected}:
        assert_equal(mariadb, store, table)


def test_statements_take_effect_on_tables_that_are_named_like_keywords(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    names = ("tables", "online", "event")
    for name in names:
        columns = "(id int PRIMARY KEY, v varchar(50))"
        mariadb.execute(f"CREATE TABLE {name} {columns}", f"INSERT INTO {name} VALUES (1, '01')")
    with agent(mariadb, tmp_path) as store:
        wait_caught_up(mariadb, store)
        mariadb.execute(
            "SET sql_quote_show_create = 0",
            "TRUNCATE TABLE tables",
            "ALTER TABLE online MODIFY v int",
            "DROP TABLE event",
            "CREATE TABLE event LIKE tables",
        )
        wait_until(lambda: all(is_equal(mariadb, store, name) for name in names), "all tables are equal")


GONE_BY_NOW = {
    "dropped": ["ALTER TABLE t ADD COLUMN c int DEFAULT 5", "ALTER TABLE t DROP COLUMN c"],
    "renamed": ["ALTER TABLE t ADD COLUMN c int DEFAULT 5", "ALTER TABLE t RENAME COLUMN c TO d"],
    "dropped as renamed": ["ALTER TABLE t RENAME COLUMN v TO c", "ALTER TABLE t DROP COLUMN c"],
    "dropped again": [
        "ALTER TABLE t DROP COLUMN v;ALTER TABLE t ADD COLUMN v int", "ALTER TABLE t DROP COLUMN v",
    ],
    "without its key": ["ALTER TABLE t ADD COLUMN c int DEFAULT 5", "ALTER TABLE t DROP PRIMARY KEY"],
    "dropped with its table": ["ALTER TABLE t ADD (c int DEFAULT 5)", "DROP TABLE t"],
    "in a former table": [
        "ALTER TABLE t ADD COLUMN c int DEFAULT 5", "DROP TABLE t;CREATE TABLE t (id int PRIMARY KEY, v int)",
    ],
    "there": ["ALTER TABLE t ADD COLUMN c int DEFAULT 5, ADD INDEX (v)", ""],
}  # fmt: skip
"""What an agent that is behind finds in the log, and what the catalog shows by then."""


@pytest.mark.parametrize("case", GONE_BY_NOW)
def test_a_column_that_comes_and_is_gone_by_the_time_its_log_is_read_has_the_table_dumped(
    mariadb: MysqlDatabase, case: str
) -> None:
    """No row shows it, and the catalog does not any more, so cuts in between would lack its values."""
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    comes, goes = (list(filter(None, part.split(";"))) for part in GONE_BY_NOW[case])
    with following(source_of(mariadb)) as log:
        mariadb.execute(*comes)
        between = mariadb.end_of_log()
        mariadb.execute("DO 1", *goes)
        read_to(log, mariadb.end_of_log())
        found = [each for each in log.take().decode() if isinstance(each, UnloggedNotice)]
    assert [each.lsn < between for each in found] == [True] * (case != "there")


def test_dates_that_a_copy_may_have_made_zeros_count_though_their_column_is_gone_by_now(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, d date)")
    with following(source_of(mariadb)) as log:
        mariadb.execute("INSERT INTO t VALUES (1, '2026-00-15')")
        mariadb.execute("SET sql_mode = 'NO_ZERO_IN_DATE'", "ALTER TABLE t ADD CHECK (id > 0)")
        between = mariadb.end_of_log()
        mariadb.execute("ALTER TABLE t DROP COLUMN d")
        read_to(log, mariadb.end_of_log())
        found = [each for each in log.take().decode() if isinstance(each, UnloggedNotice)]
    assert [each.lsn < between for each in found] == [True]


def present(mariadb: MysqlDatabase) -> list[str]:
    found = mariadb.execute(
        "SELECT table_name FROM information_schema.tables"
        f" WHERE table_type = 'BASE TABLE' AND table_schema = '{mariadb.name}'"
    )
    return [name for (name,) in found]


def run(mariadb: MysqlDatabase, folder: Path, statements: list[str]) -> None:
    """Run statements in one session; those that begin with ! fail."""
    file = folder / "rows.csv"
    file.write_text("901,a\n902,b\n")
    mariadb.execute("SET GLOBAL local_infile = 1")
    for part in "\n".join(statements).split("\nRECONNECT\n"):
        settings = {**parse_url(mariadb.url), "charset": "utf8mb4", "autocommit": True, "local_infile": True}
        with pymysql.connect(**settings) as session, session.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
            if mariadb.is_mysql:
                cursor.execute("SET cte_max_recursion_depth = 1000000")
            for statement in part.splitlines():
                text = statement.lstrip("!").replace("{db}", mariadb.name).replace("{file}", str(file))
                if statement.startswith("!"):
                    with pytest.raises(pymysql.Error):
                        cursor.execute(mariadb._translated(text))
                else:
                    cursor.execute(mariadb._translated(text))
