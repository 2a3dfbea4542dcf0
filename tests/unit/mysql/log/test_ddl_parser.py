"""What statements in the log do to tables that no row event tells."""

from __future__ import annotations

import struct

import pytest

from connector.mysql.log import events
from connector.mysql.log.ddl_parser import changes_rows, rebuilt_by, statement_effects


def reported(statement: str) -> set[tuple[str, str, str | None]]:
    return {(effect.kind, effect.database, effect.name) for effect in statement_effects(statement, "d")}


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("TRUNCATE t", ("d", "t")),
        ("truncate table `a.b`.`t``x` ;", ("a.b", "t`x")),
        ("/* a comment */ TRUNCATE -- another\n TABLE\t x . t", ("x", "t")),
        ("/*!50000 TRUNCATE TABLE */ t", ("d", "t")),
        ('TRUNCATE TABLE "t"', ("d", "t")),
        ("SET STATEMENT max_statement_time = 1 FOR TRUNCATE t", ("d", "t")),
        ("TRUNCATE TABLE .t", ("d", "t")),
        ("TRUNCATE TABLE `;`", ("d", ";")),
        ("TRUNCATE `.`.`,`", (".", ",")),
    ],
)
def test_a_truncate_names_its_table(statement: str, table: tuple[str, str]) -> None:
    assert reported(statement) == {("truncate", *table)}


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
        "ALTER TABLE t REORGANIZE PARTITION p INTO (PARTITION a VALUES LESS THAN (9), PARTITION b VALUES LESS"
        " THAN MAXVALUE)",
        "FLUSH TABLES",
        "# only a comment",
        "",
    ],
)
def test_a_statement_that_leaves_rows_alone_has_no_effect(statement: str) -> None:
    assert {kind for kind, _, _ in reported(statement)} <= {"columns", "copy", "traits"}


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES u (a)",
        "ALTER TABLE t ADD CHECK (a < 5)",
        "ALTER TABLE t PARTITION BY KEY ALGORITHM = 2 (a)",
        "ALTER TABLE t ADD COLUMN c int, ALGORITHM = DEFAULT",
        "ALTER ONLINE TABLE t FORCE, ALGORITHM COPY",
        "ALTER TABLE t ALGORITHM = INSTANT, FORCE, ALGORITHM = COPY",
        "ALTER TABLE t ADD CHECK (algorithm = instant)",
        "ALTER TABLE t ADD c int, COMMENT 'ALGORITHM = INSTANT'",
        "ALTER TABLE t ADD c int /*!80099 , ALGORITHM = INSTANT */",
        "ALTER TABLE t ADD INDEX `algorithm` (`inplace`)",
        "CREATE INDEX i ON t (a)",
        "CREATE UNIQUE INDEX i USING BTREE ON t (a) ALGORITHM = COPY LOCK = SHARED",
        "CREATE FULLTEXT INDEX IF NOT EXISTS `on` ON d.t (a)",
        "CREATE OR REPLACE INDEX i ON t (a)",
        "DROP INDEX i ON t ALGORITHM COPY",
        "OPTIMIZE LOCAL TABLE u, t",
        "SET STATEMENT max_statement_time = 1 FOR OPTIMIZE TABLE t",
    ],
)
def test_a_statement_that_may_copy_a_table_names_it(statement: str) -> None:
    assert ("copy", "d", "t") in reported(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD c int, ALGORITHM = INSTANT",
        "ALTER TABLE t FORCE, ALGORITHM INPLACE, LOCK = NONE",
        "ALTER TABLE t ALGORITHM=NOCOPY, ADD INDEX (a)",
        "ALTER TABLE t ADD CHECK (a IN (1, 2)), ALGORITHM = INPLACE",
        "CREATE INDEX i ON t (a) ALGORITHM = inplace LOCK = NONE",
        "DROP INDEX i ON t ALGORITHM = INPLACE",
        "/*!40000 ALTER TABLE `t` DISABLE KEYS */",
        "ALTER TABLE t ENABLE KEYS;",
        "ANALYZE TABLE t",
        "CREATE TABLE t (INDEX (a), a timestamp ON UPDATE current_timestamp)",
    ],
)
def test_a_statement_that_copies_no_table_does_not_say_so(statement: str) -> None:
    assert "copy" not in {kind for kind, _, _ in reported(statement)}


@pytest.mark.parametrize(
    ("clauses", "changes"),
    [
        ("ADD PRIMARY KEY (a)", True),
        ("ADD c int, ADD CONSTRAINT PRIMARY KEY USING BTREE (a), ALGORITHM = INPLACE", True),
        ("ADD CONSTRAINT x PRIMARY KEY (a)", True),
        ("ADD CONSTRAINT `x` PRIMARY KEY (a)", True),
        ("ADD (c int, primary key (a))", True),
        ("ADD COLUMN (PRIMARY KEY (a))", True),
        ("ADD COLUMN c int AUTO_INCREMENT PRIMARY KEY", False),
        ("ADD c varchar(5) DEFAULT ',' PRIMARY KEY FIRST", False),
        ('ADD c int COMMENT "(" PRIMARY KEY', False),
        ("ADD INDEX `primary` (a)", False),
        ("ADD PERIOD FOR p (a, b)", True),
        ("ADD PERIOD IF NOT EXISTS FOR p (a, b)", True),
        ("ADD (c int, PERIOD FOR p (a, b))", True),
        ("DROP PERIOD FOR p", False),
        ("ADD period int", False),
    ],
)
def test_what_makes_columns_not_null_that_are_there_may_change_their_nulls(
    clauses: str, changes: bool
) -> None:
    assert (("unlogged", "d", "t") in reported(f"ALTER TABLE t {clauses}")) == changes


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX i ON t",
        "drop index if exists `on` on d.`t` wait 5",
        "SET STATEMENT max_statement_time = 1 FOR DROP INDEX `PRIMARY` ON .t",
        "DROP INDEX i ON t ALGORITHM = INPLACE",
        "CREATE OR REPLACE INDEX i ON t (a)",
        "CREATE OR REPLACE UNIQUE INDEX IF NOT EXISTS i USING BTREE ON t (a)",
        "ALTER TABLE t DROP INDEX i",
        "ALTER TABLE t ADD c int, DROP KEY IF EXISTS `i`",
        "ALTER TABLE t DROP PRIMARY KEY",
        "ALTER TABLE t /*!80019 DROP CONSTRAINT i */",
    ],
)
def test_a_dropped_index_names_its_table(statement: str) -> None:
    assert ("index", "d", "t") in reported(statement)


@pytest.mark.parametrize(
    ("statement", "may_change"),
    [
        ("CREATE UNIQUE INDEX i ON t (a)", True),
        ("CREATE OR REPLACE INDEX i ON t (a)", True),
        ("CREATE INDEX `unique` ON t (a)", False),
        ("DROP INDEX i ON t", True),
        ("ALTER TABLE t ADD UNIQUE (a)", True),
        ("ALTER TABLE t ADD CONSTRAINT c UNIQUE KEY (a)", True),
        ("ALTER TABLE t ADD INDEX (a)", False),
    ],
)
def test_a_unique_index_may_be_the_key_whose_defaults_count(statement: str, *, may_change: bool) -> None:
    assert (("traits", "d", "t") in reported(statement)) == may_change


@pytest.mark.parametrize(
    "clauses", ["RENAME INDEX i TO j", "DROP FOREIGN KEY f", "ADD INDEX (a)", "DROP `index`", "DROP a"]
)
def test_an_alter_that_drops_no_index_names_none(clauses: str) -> None:
    assert "index" not in {kind for kind, _, _ in reported(f"ALTER TABLE t {clauses}")}


def test_an_alter_names_the_columns_that_lost_their_default() -> None:
    clauses = "ALTER COLUMN IF EXISTS `a b` DROP DEFAULT, ALTER c SET DEFAULT 1, DROP d, ALTER e DROP DEFAULT"
    effects = statement_effects(f"ALTER TABLE x.t {clauses}", "d")
    assert [(e.database, e.name, e.columns) for e in effects if e.kind == "default"] == [
        ("x", "t", ("a b", "e"))
    ]


@pytest.mark.parametrize(
    ("clauses", "renamed"),
    [
        ("DROP note, RENAME COLUMN ssn TO note, ADD ssn text", [("ssn", "note")]),
        ("RENAME COLUMN IF EXISTS `to` TO `a b`, RENAME COLUMN x TO y", [("to", "a b"), ("x", "y")]),
        ("CHANGE COLUMN IF EXISTS a t.`b` int AFTER c, CHANGE `c` d text", [("a", "b"), ("c", "d")]),
        ("CHANGE a A int, RENAME TO u, RENAME INDEX i TO j, DROP c", []),
        ("RENAME COLUMN a /*!80000 TO b */", [("a", "b")]),
    ],
)
def test_an_alter_names_what_columns_are_renamed_to(clauses: str, renamed: list[tuple[str, str]]) -> None:
    (effect,) = [e for e in statement_effects(f"ALTER TABLE t {clauses}", "d") if e.kind == "columns"]
    assert [*effect.renamed] == renamed


@pytest.mark.parametrize(
    ("clauses", "added"),
    [
        ("ADD u uuid", ["u"]),
        ("ADD COLUMN `add` int AFTER v, ADD w int DEFAULT (f(1, 2)), ALGORITHM = INSTANT", ["add", "w"]),
        ("ADD COLUMN (u uuid, `w` decimal(9, 2), x int CHECK (x IN (1, 2)), y int)", ["u", "w", "x", "y"]),
        ("ADD (u int, UNIQUE (u), KEY (u), `unique` int)", ["u", "unique"]),
        ("ADD UNIQUE KEY (u, w), ADD CONSTRAINT c CHECK (u > w), MODIFY x int, DROP z", []),
        ("ADD INDEX IF NOT EXISTS i (u), ADD PARTITION (PARTITION p VALUES LESS THAN (9))", []),
        ("ADD FULLTEXT (u), ADD VECTOR KEY (w), ADD PRIMARY KEY (i), ADD FOREIGN KEY (x) REFERENCES y", []),
        ("ADD SYSTEM VERSIONING, ADD PERIOD FOR p (a, b), ADD PERIOD IF NOT EXISTS FOR q (a, b)", []),
        ("ADD vector int, ADD period date, ADD system int", ["vector", "period", "system"]),
        ("ADD COLUMN IF NOT EXISTS u uuid", []),
        ("COMMENT = 'ADD u', RENAME COLUMN `add` TO u", []),
    ],
)
def test_an_alter_names_what_columns_it_adds(clauses: str, added: list[str]) -> None:
    (effect,) = (e for e in statement_effects(f"ALTER TABLE t {clauses}", "d") if e.kind == "columns")
    assert [name for name, is_certain in effect.added if is_certain] == added


def test_a_column_that_is_added_if_it_is_not_there_may_not_be_new() -> None:
    clauses = "ADD COLUMN IF NOT EXISTS u uuid, ADD IF NOT EXISTS (v int, w int), ADD x int"
    (effect,) = (e for e in statement_effects(f"ALTER TABLE t {clauses}", "d") if e.kind == "columns")
    assert effect.added == (("u", False), ("v", False), ("w", False), ("x", True))


@pytest.mark.parametrize(
    ("clauses", "columns"),
    [
        ("DROP COLUMN c, DROP INDEX i, DROP `D`, ALTER e DROP DEFAULT", ("c", "D")),
        ("RENAME COLUMN a TO b, RENAME COLUMN `b` TO `a`", ("a", "b")),
        ("CHANGE a b int, CHANGE COLUMN IF EXISTS `b` `a` text FIRST, CHANGE c C bigint", ("a", "b")),
        ("DROP COLUMN IF EXISTS c, ALGORITHM=INSTANT", ("c",)),
        ("ADD c int, RENAME INDEX x TO y, DROP PRIMARY KEY, DROP FOREIGN KEY f, DROP CHECK z", ()),
        ("DROP `index`", ("index",)),
        ("DROP COLUMN period, DROP system", ("period", "system")),
        ("DROP PERIOD FOR p, DROP SYSTEM VERSIONING", ()),
    ],
)
def test_an_alter_names_the_columns_that_went(clauses: str, columns: tuple[str, ...]) -> None:
    (effect,) = [e for e in statement_effects(f"ALTER TABLE x.t {clauses}", "d") if e.kind == "columns"]
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
        "ALTER TABLE t DROP SYSTEM VERSIONING",
        "ALTER TABLE t REORGANIZE PARTITION a, b INTO (PARTITION a VALUES IN (1, 2))",
        "ALTER TABLE t REBUILD PARTITION a",
        "ALTER TABLE t REPAIR PARTITION LOCAL ALL",
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
        "ALTER TABLE .t MODIFY a int",
        "RENAME TABLE .u TO .t",
    ],
)
def test_what_may_change_rows_unlogged_names_the_table(statement: str) -> None:
    assert ("unlogged", "d", "t") in reported(statement)


KEYWORDS = (
    "analyze begin commit engine event format function innodb library modify nowait offline online package"
    " partition role sequence server statement tables temporary trigger truncate undo user view wait"
).split()
"""Words of the grammar that may name a table without quotes."""


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE {t} WAIT 5",
        "TRUNCATE {t}",
        "TRUNCATE .{t}",
        "ALTER TABLE {t} MODIFY a int",
        "ALTER ONLINE IGNORE TABLE {t} ADD UNIQUE (a)",
        "ALTER TABLE IF EXISTS {t} NOWAIT DROP PARTITION p",
        "ALTER TABLE u RENAME {t}",
        "ALTER TABLE u ADD c int, RENAME AS {t}",
        "ALTER TABLE u RENAME = {t}",
        "ALTER TABLE x.u RENAME {t}",
        "ALTER TABLE u CONVERT TABLE {t} TO PARTITION p VALUES LESS THAN (1)",
        "CREATE OR REPLACE TABLE {t} (a int)",
        "DROP INDEX i ON {t}",
        "DROP TABLE {t}",
        "DROP TABLE IF EXISTS u, {t}",
        "RENAME TABLE u TO v, {t} TO w",
        "INSERT INTO {t} VALUES (1)",
    ],
)
@pytest.mark.parametrize("name", KEYWORDS)
def test_a_keyword_may_name_a_table(statement: str, name: str) -> None:
    assert any((kind, "d", name) in reported(statement.format(t=name)) for kind in CHANGED)


CHANGED = ("truncate", "unlogged", "statement", "index")


@pytest.mark.parametrize("statement", ["TRUNCATE @ t", "ALTER TABLE @ t DROP COLUMN c", "INSERT INTO @ t"])
def test_a_statement_whose_table_can_not_be_parsed_has_an_effect_on_all_it_mentions(statement: str) -> None:
    assert {("unlogged", "d", "t"), ("statement", "d", "t")} & reported(statement)


@pytest.mark.parametrize(
    ("clauses", "warns"),
    [
        ("EXCHANGE PARTITION p WITH TABLE t WITHOUT VALIDATION", True),
        ("CONVERT TABLE t TO PARTITION p VALUES LESS THAN (9) WITHOUT VALIDATION", True),
        ("EXCHANGE PARTITION p WITH TABLE t WITH VALIDATION", False),
        ("EXCHANGE PARTITION p WITH TABLE t", False),
    ],
)
def test_rows_that_may_be_in_a_partition_that_is_not_theirs_are_warned_of(clauses: str, warns: bool) -> None:
    found = {e.name: e.reason for e in statement_effects(f"ALTER TABLE u {clauses}", "d")}
    assert [("CHECK TABLE" in found[name]) for name in ("u", "t")] == [warns, warns]


def test_a_dropped_database_means_all_its_tables() -> None:
    assert reported("DROP DATABASE IF EXISTS `x y`") == {("unlogged", "x y", None)}
    assert reported("DROP SCHEMA tables") == {("unlogged", "tables", None)}
    assert reported("CREATE OR REPLACE DATABASE `x y` CHARACTER SET utf8mb4") == {("unlogged", "x y", None)}
    assert reported("CREATE OR REPLACE SCHEMA tables") == {("unlogged", "tables", None)}
    assert reported("CREATE DATABASE IF NOT EXISTS x") == set()


def test_a_replaced_sequence_may_have_been_a_table() -> None:
    assert reported("CREATE OR REPLACE SEQUENCE t START WITH 1") == {("unlogged", "d", "t")}
    assert reported("CREATE SEQUENCE t") == set()


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
    assert ("statement", "d", "t") in reported(statement)


def test_an_insert_does_not_change_the_tables_that_it_reads() -> None:
    statement = "REPLACE INTO percona.checksums SELECT count(*) FROM d.t"
    assert reported(statement) == {("statement", "percona", "checksums")}


@pytest.mark.parametrize(
    ("statement", "rebuilds"),
    [
        ("TRUNCATE t", True),
        ("ALTER TABLE t FORCE", True),
        ("OPTIMIZE LOCAL TABLE u, t", True),
        ("SET STATEMENT max_statement_time = 1 FOR OPTIMIZE TABLE t", True),
        ("CREATE FULLTEXT INDEX i ON t (v)", True),
        ("DROP INDEX i ON t", True),
        ("DROP TABLE t", True),
        ("RENAME TABLE u TO t", True),
        ("ALTER TABLE u EXCHANGE PARTITION p WITH TABLE t", True),
        ("ANALYZE TABLE t", False),
        ("CHECK TABLE t", False),
        ("GRANT SELECT ON t TO x", False),
        ("CREATE OR REPLACE VIEW w AS SELECT * FROM t", False),
        ("CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW DELETE FROM u", False),
        ("CREATE TABLE IF NOT EXISTS t (a int)", False),
        ("CREATE TABLE u LIKE t", False),
        ("INSERT INTO t VALUES (1)", False),
        ("ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (a)", False),
    ],
)
def test_only_a_statement_that_may_rebuild_a_table_explains_its_new_id(
    statement: str, rebuilds: bool
) -> None:
    assert (("d", "t") in {(e.database, e.name) for e in rebuilt_by(statement, "d")}) == rebuilds


def test_only_a_table_that_is_created_runs_a_select() -> None:
    for statement in (
        "CREATE OR REPLACE VIEW v AS SELECT f()",
        "CREATE DEFINER = x PROCEDURE p() SELECT 1",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO INSERT INTO t SELECT 1",
    ):
        assert not changes_rows(statement)
    assert changes_rows("CREATE OR REPLACE TEMPORARY TABLE t AS SELECT f()")
    assert changes_rows("CREATE TABLE t (a int) VALUES (f())")
    parted = "CREATE TABLE t (a int) PARTITION BY {} (PARTITION p VALUES {} (1))"
    assert not changes_rows(parted.format("RANGE (a)", "LESS THAN"))
    assert not changes_rows(parted.format("LIST (a)", "IN"))


MODES, CHARSETS = 1, 4


def read(text: bytes, *, modes: int = 0, client: int = 45) -> str | None:
    status = struct.pack("<BIBQ", 0, 0, MODES, modes) + b"\6\3std"
    status += struct.pack("<BHHH", CHARSETS, client, 45, 8)
    head = struct.pack("<IIBHH", 1, 0, 5, 0, len(status))
    return events.parse_query(events.QUERY, head + status + b"other\0" + text).statement


def test_a_statement_is_read_in_the_character_set_of_its_client() -> None:
    statement = "ALTER TABLE d.`é` MODIFY v varchar(5)"
    assert read(statement.encode("latin1"), client=8) == statement
    assert read(b"TRUNCATE TABLE `[`", client=8) == "TRUNCATE TABLE `[`"
    assert read(b"TRUNCATE TABLE `[`", client=10) is None  # in swe7 the bracket is a letter
    assert read(statement.encode("latin1")) is None
    assert read(statement.encode()) == statement
    assert read(statement.encode(), client=63) == statement  # binary: as it is
    assert read(statement.encode(), client=8) == statement.replace("é", "Ã©")  # so the server calls it
    assert read(statement.encode(), client=32) is None  # not known
    assert read("ALTER TABLE t COMMENT '表'".encode("sjis"), client=13) == "ALTER TABLE t COMMENT '表'"


def test_a_statement_in_which_backslashes_escape_nothing_or_that_is_huge_is_not_read() -> None:
    hidden = rb"ALTER TABLE t COMMENT 'x\', MODIFY v varchar(3) COMMENT 'y'"
    assert read(hidden, modes=1 << 20) is None
    assert read(hidden) is not None
    assert read(b"TRUNCATE t", modes=1 << 20) == "TRUNCATE t"
    assert read(b"INSERT INTO t VALUES " + b"(1)," * (1 << 20) + b"(2)") is None


def test_a_space_of_the_clients_character_set_never_hides_what_a_statement_does() -> None:
    assert read(b"TRUNCATE TABLE\xa0t", client=8) is None  # in latin1 a space
    utf8 = "TRUNCATE TABLE \u00a0t"
    assert read(utf8.encode()) == utf8
    assert reported(utf8) == {("truncate", "d", "\u00a0t")}  # in UTF-8 part of the name


def test_a_backslash_in_a_quoted_name_never_hides_what_follows_it() -> None:
    statement = rb"""ALTER TABLE t RENAME COLUMN "a\" TO b, MODIFY "c" tinyint"""
    assert read(statement, modes=1 << 2) is None
    comment = rb"""ALTER TABLE `t` COMMENT 'it\'s', MODIFY c tinyint"""
    assert read(comment, modes=1 << 2) == comment.decode()


def test_brackets_around_a_name_never_hide_what_a_statement_does() -> None:
    """MariaDB accepts them with sql_mode = 'MSSQL'."""
    for statement in (b"TRUNCATE TABLE [my table]", b"TRUNCATE TABLE [other].[t]"):
        assert read(statement, modes=1 << 10 | 1 << 2) is None
    assert read(b"TRUNCATE TABLE t", modes=1 << 10) == "TRUNCATE TABLE t"
    assert read(b"ALTER TABLE t COMMENT '[a]'", modes=1 << 2) is not None
