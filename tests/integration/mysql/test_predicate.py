"""Conditions of requests on real MariaDB and MySQL servers: they choose rows, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pymysql
import pytest
from hypothesis import strategies as st

from connector.errors import RequestError
from connector.mysql.dump import MysqlTables
from connector.schema import TableName
from connector.source import KeyRange
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import source_of
from tests.support.source.predicate_attacks import attack, taken
from tests.support.source.reading import chunk_rows, following

ESCAPES = [
    "id < 0) LIMIT 1; CREATE TABLE evil (id int); DELETE FROM canary WHERE (true",
    "true; DELETE FROM canary",
    "true; DELETE FROM canary #",
    "true); COMMIT; DELETE FROM canary; -- ",
    "false) UNION SELECT 7, secret FROM canary -- ",
    "false) UNION SELECT 7, secret FROM canary #",
    "false) UNION SELECT 7, secret FROM canary /*",
    "false) UNION (SELECT 7, secret FROM canary WHERE true",
    "false UNION SELECT 7, secret FROM canary",
    "true LIMIT 1",
    "true FOR UPDATE",
    "true INTO OUTFILE '/tmp/deltatide-evil'",
    "true INTO @x",
    "true /* unclosed",
    "true /*! OR true",
    "true OR v = 'unclosed",
    "true OR v = `unclosed",
    "SELECT true",
    "true\0; DELETE FROM canary",
    "? = 1",
]
EFFECTS = [
    "write_canary(id) = 1",
    "write_loose(id) = 1",
    "sleep(60) = 0",
    "`sleep`/* */ /*!(60)*/ = 0",
    "GET_LOCK ('a', 1) = 1",
    "load_file('/etc/passwd') IS NULL",
    "benchmark(1000000000, 1) = 0",
    "/*!50000get_lock('a', 1)*/ = 1",
    "release_all_locks() = 0",
    "Load_File(concat('/etc/', 'hostname')) IS NULL",
    "id IN (SELECT sleep(60))",
    "EXISTS (SELECT 1 FROM (SELECT benchmark(1000000000, sha1('a')) b) x WHERE b = 0)",
    "CASE WHEN id > 0 THEN true ELSE get_lock('a', 1) END",
    "id IN (SELECT id FROM canary FOR UPDATE)",
    "id IN (SELECT id FROM canary FOR SHARE)",
    "id IN (SELECT id FROM canary LOCK IN SHARE MODE)",
    "id IN (SELECT id FROM canary lock/* */in -- so\n share #\n mode)",
    "id IN (SELECT id FROM canary WHERE id < 1.5LOCK IN SHARE MODE)",
    "id IN (SELECT id FROM canary /*!50000LOCK IN SHARE MODE*/)",
    "id IN (SELECT id FROM canary LOCK /*!99999 x*/ IN SHARE MODE)",
]
OTHERS = [
    "EXISTS (SELECT 1 FROM information_schema.processlist WHERE info LIKE '%password%')",
    "EXISTS (/* */table canary)",
    "EXISTS (VALUES ROW(1, 'x') UNION TABLE`canary`)",
    "(WITH c AS (SELECT * FROM canary) SELECT count(*) FROM c) = 1",
    "id IN (SELECT id FROM t)",
]


@pytest.fixture
def tables(mariadb: MysqlDatabase) -> Iterator[MysqlTables]:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, `table` int)",
        "INSERT INTO t (id, v) SELECT seq, concat('v', seq) FROM seq_1_to_10",
        "CREATE TABLE canary (id int PRIMARY KEY, secret text)",
        "INSERT INTO canary VALUES (1, 's3cret')",
        "CREATE TABLE loose (id int PRIMARY KEY) ENGINE=MyISAM",
        "INSERT INTO loose VALUES (1)",
        "CREATE FUNCTION write_loose(n int) RETURNS int NO SQL BEGIN DELETE FROM loose; RETURN 1; END",
        "CREATE FUNCTION write_canary(n int) RETURNS int NO SQL BEGIN DELETE FROM canary; RETURN 1; END",
    )
    source = source_of(mariadb)
    with following(source):
        opened = source.open_tables()
        yield opened
        opened.close()


def traces(mariadb: MysqlDatabase) -> list[object]:
    return [
        mariadb.execute("SELECT * FROM canary"),
        mariadb.execute("SELECT * FROM loose"),
        mariadb.execute("SHOW TABLES"),
    ]


def ids(tables: MysqlTables, mariadb: MysqlDatabase, where: str) -> list[int]:
    rows = chunk_rows(tables, f"{mariadb.name}.t", KeyRange(("2",), ("9",)), where)
    assert all(row["v"] == f"v{row['id']}" for row in rows)
    return sorted(row["id"] for row in rows)


# fmt: off
PIECES = st.sampled_from([
    "(", ")", "'", '"', ";", "`", "\\", "\n", "#", " ", "-- ", "/*", "*/", "/*!", "\\'", "''", "true",
    "false", "id", "v", "--\n", ",", "?", " AND ", " OR ", " UNION SELECT 7, 'x' ",
    "; DELETE FROM canary ", "DROP TABLE canary;", "COMMIT;", "=", "1", "SELECT ", " FROM canary",
    "CASE WHEN ", " THEN ", " END ", "@a := 1", "0x27", "_binary", " IN ", "LIMIT 1",
    " INTO OUTFILE '/tmp/deltatide-evil'", "sleep(9)", "\u2028", "\x01",
    "get_lock('a', 1)", "load_file('/etc/hostname')", "benchmark(9, 1)", "sleep", "EXISTS ", "/*M!", "/* */",
])
# fmt: on


def test_a_condition_is_one_expression_and_leaves_no_trace(
    mariadb: MysqlDatabase, tables: MysqlTables
) -> None:
    table, before = TableName(mariadb.name, "t"), traces(mariadb)
    texts = [*ESCAPES, *EFFECTS, *OTHERS]
    assert taken(texts, lambda where: ids(tables, mariadb, where)) == []
    assert taken(texts, lambda where: tables.next_boundary(table, ["id"], None, 3, where)) == []
    assert traces(mariadb) == before
    for other in OTHERS:
        with pytest.raises(RequestError, match="no subqueries"):
            ids(tables, mariadb, other)
    assert ids(tables, mariadb, "id % 2 = 0 AND v <> 'selected' AND `table` IS NULL -- even") == [4, 6, 8]

    tables._predicate_seconds = 0.2
    slow = " AND ".join(f"sha2(repeat(v, {5_000_000 + n}), 512) <> ''" for n in range(10))
    with pytest.raises(RequestError, match=r"max_statement_time|maximum statement execution time"):
        ids(tables, mariadb, slow)
    with pytest.raises(RequestError, match=r"max_statement_time|maximum statement execution time"):
        tables.next_boundary(table, ["id"], None, 3, slow)
    assert ids(tables, mariadb, "id = 3") == [3]
    assert len(chunk_rows(tables, str(table))) == 10


@pytest.mark.parametrize("mariadb", ["mariadb", "mysql"], indirect=True)
def test_an_error_of_a_condition_shows_no_value_of_a_row(mariadb: MysqlDatabase, tables: MysqlTables) -> None:
    """It is in the log, the manifest and on the status page."""
    table = TableName(mariadb.name, "t")
    where, said = "id + 9223372036854775807 > 0", "out of range in "
    if mariadb.is_mysql:
        where, said = "uuid_to_bin(v) IS NULL", "'v[0-9]"
    with pytest.raises(pymysql.Error, match=said):
        mariadb.execute(f"SELECT * FROM t WHERE {where}")
    for use in (
        lambda: ids(tables, mariadb, where),
        lambda: tables.next_boundary(table, ["id"], None, 3, where),
    ):
        with pytest.raises(RequestError, match=r"the condition fails for a row, .* error \d+") as refused:
            use()
        assert not re.search(said, f"{refused.value} {refused.value.hint}")
    with pytest.raises(RequestError, match="nonsense"):
        ids(tables, mariadb, "nonsense = 1")


@pytest.mark.parametrize("mariadb", ["mariadb", "mysql"], indirect=True)
def test_no_text_leaves_a_trace_or_a_foreign_row(mariadb: MysqlDatabase, tables: MysqlTables) -> None:
    before = traces(mariadb)
    attack(tables, TableName(mariadb.name, "t"), PIECES)
    assert traces(mariadb) == before
