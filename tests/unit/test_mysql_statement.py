"""What statements in the log do to tables that no row event tells."""

from __future__ import annotations

import pytest

from connector.mysql.statement import effects_of


def told(statement: str) -> set[tuple[str, str, str | None]]:
    return {(effect.kind, effect.database, effect.name) for effect in effects_of(statement, "d")}


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("TRUNCATE t", ("d", "t")),
        ("truncate table `a.b`.`t``x` ;", ("a.b", "t`x")),
        ("/* a comment */ TRUNCATE -- another\n TABLE\t x . t", ("x", "t")),
        ("/*!50000 TRUNCATE TABLE */ t", ("d", "t")),
        ('TRUNCATE TABLE "t"', ("d", "t")),
        ("SET STATEMENT max_statement_time = 1 FOR TRUNCATE t", ("d", "t")),
    ],
)
def test_a_truncate_names_its_table(statement: str, table: tuple[str, str]) -> None:
    assert told(statement) == {("truncate", *table)}


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN c int DEFAULT 5 AFTER b, ADD INDEX (c)",
        "ALTER ONLINE TABLE t DROP COLUMN c, ALGORITHM=INSTANT",
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME INDEX x TO y",
        "ALTER TABLE t COMMENT 'MODIFY CONVERT DROP PARTITION'",
        'ALTER TABLE t ADD `modify` int COMMENT "it\'s CHANGE"',
        "CREATE TABLE IF NOT EXISTS t (a int)",
        "CREATE INDEX i ON t (a)",
        "DROP INDEX i ON t",
        "DROP TEMPORARY TABLE t",
        "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`",
        "DROP VIEW t",
        "CREATE OR REPLACE VIEW t AS SELECT 1",
        "CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW DELETE FROM u",
        "GRANT SELECT ON t TO x",
        "RENAME USER a TO b",
        "ANALYZE TABLE t",
        "ANALYZE LOCAL TABLE t",
        "SET STATEMENT max_statement_time = 1 FOR OPTIMIZE TABLE t",
        "ALTER TABLE t ENGINE = InnoDB",
        "FLUSH TABLES",
        "# only a comment",
        "",
    ],
)
def test_a_statement_that_leaves_rows_alone_has_no_effect(statement: str) -> None:
    assert {kind for kind, _, _ in told(statement)} <= {"columns"}


@pytest.mark.parametrize(
    ("clauses", "columns"),
    [
        ("DROP COLUMN c, DROP INDEX i, DROP `D`, ALTER e DROP DEFAULT", ("c", "D")),
        ("RENAME COLUMN a TO b, RENAME COLUMN `b` TO `a`", ("a", "b")),
        ("DROP COLUMN IF EXISTS c, ALGORITHM=INSTANT", ("c",)),
        ("ADD c int, RENAME INDEX x TO y, DROP PRIMARY KEY, DROP FOREIGN KEY f, DROP CHECK z", ()),
        ("DROP `index`", ("index",)),
    ],
)
def test_an_alter_names_the_columns_that_went(clauses: str, columns: tuple[str, ...]) -> None:
    (effect,) = [e for e in effects_of(f"ALTER TABLE x.t {clauses}", "d") if e.kind == "columns"]
    assert (effect.database, effect.name, effect.columns) == ("x", "t", columns)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t MODIFY a int",
        "alter table d.t change `a` b int",
        "ALTER IGNORE TABLE t ADD UNIQUE (a)",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE `t` DROP PARTITION p0",
        "ALTER TABLE t TRUNCATE PARTITION ALL",
        "ALTER TABLE t IMPORT TABLESPACE",
        "ALTER TABLE t DROP COLUMN a, ADD COLUMN a int DEFAULT 3",
        "ALTER TABLE u EXCHANGE PARTITION p0 WITH TABLE t",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE u RENAME t",
        "RENAME TABLE u TO v, d.`t` TO w",
        "RENAME TABLES t TO u",
        "DROP TABLE IF EXISTS u, t CASCADE",
        "CREATE OR REPLACE TABLE t (a int)",
        "SET STATEMENT max_statement_time = 1, sort_buffer_size = 9 FOR ALTER TABLE t DROP PARTITION p0",
        "ALTER TABLE t ENGINE = BLACKHOLE",
        "SOMETHING NEW WITH t",
    ],
)
def test_what_may_change_rows_untold_names_the_table(statement: str) -> None:
    assert ("untold", "d", "t") in told(statement)


def test_a_dropped_database_means_all_its_tables() -> None:
    assert told("DROP DATABASE IF EXISTS `x y`") == {("untold", "x y", None)}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (1)",
        "INSERT IGNORE INTO d.t SELECT * FROM u",
        "UPDATE u, t SET t.a = 1",
        "DELETE FROM `t` WHERE a = 'x'",
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR DELETE FROM t",
        "ANALYZE DELETE FROM t",
        "ANALYZE FORMAT = JSON UPDATE t SET a = 1",
        "SET STATEMENT max_statement_time = 1 FOR ANALYZE INSERT INTO t VALUES (1)",
    ],
)
def test_a_change_in_the_statement_format_names_the_table(statement: str) -> None:
    assert ("statement", "d", "t") in told(statement)


def test_an_insert_does_not_change_the_tables_that_it_reads() -> None:
    statement = "REPLACE INTO percona.checksums SELECT count(*) FROM d.t"
    assert told(statement) == {("statement", "percona", "checksums")}
