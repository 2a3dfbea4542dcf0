"""Layouts of tables on real servers: the log and the catalog say the same of them, rows included."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from connector.mysql import catalog
from connector.mysql.connection import connect
from connector.mysql.dump import MysqlTables
from connector.schema import TableName, TableSchema
from connector.source import KeyRange, ResumePoint
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import chunk_rows, events, following, opened, quarantines, read_to

Rows = dict[Any, dict[str, Any]]


def rows_by_table(found: list[dict[str, Any]], keys: dict[str, tuple[str, ...]]) -> dict[str, Rows]:
    """What the events leave of each table, by key."""
    state: dict[str, Rows] = {table: {} for table in keys}
    for row in found:
        rows, key = state[row["_table"]], tuple(row[c] for c in keys[row["_table"]])
        if row["_cdc"]["op"] == "delete":
            del rows[key]
        else:
            assert row["_cdc"]["unchanged"] is None
            rows[key] = {name: value for name, value in row.items() if name[0] != "_"}
    return state


def dumped(tables: MysqlTables, table: str, key: tuple[str, ...]) -> tuple[TableSchema, Rows]:
    with tables.open_chunk(TableName.parse(table), KeyRange()) as chunk:
        schema = chunk.schema
    return schema, {tuple(row[c] for c in key): row for row in chunk_rows(tables, table)}


def assert_same_from_log_and_dump(database: MysqlDatabase, changes: dict[str, list[str]]) -> list[str]:
    """Run changes while the log is read; layouts and rows of log and dump agree. Return the ops."""
    source = source_of(database)
    with following(source) as log:
        database.execute(*[statement for each in changes.values() for statement in each])
        found = read_all(database, log)
        schemas = {str(schema.table): schema for schema in source.tables().schemas}
        keys = {table: schema.key for table, schema in schemas.items()}
        state = rows_by_table(found, keys)
        tables = source.open_tables()
        try:
            for table, schema in schemas.items():
                name = TableName.parse(table)
                logged = log._buffer._groups._schema_cache.latest(name)
                assert logged is not None
                assert (logged.schema, table) == (schema, table)
                assert (table, dumped(tables, table, schema.key)) == (table, (schema, state[table]))
        finally:
            tables.close()
    return [f"{row['_table'].partition('.')[2]} {row['_cdc']['op']}" for row in found]


TYPES = (
    *("year", "bit(3)", "date", "time(3)", "datetime(6)", "timestamp(2) NULL", "char(3)", "varchar(300)"),
    *("tinytext", "longblob", "enum('a','b')", "set('x','y')", "json", "point", "decimal(10,2)"),
    *("decimal(10,2) unsigned", "float", "float unsigned", "double", "tinyint", "smallint unsigned"),
    *("mediumint", "bigint unsigned", "binary(4)"),
)
VALUES = {
    "year": "2155", "bit(3)": "5", "date": "'2026-01-02'", "time(3)": "'-1:02:03.004'", "json": "'[1]'",
    "enum('a','b')": "'b'", "set('x','y')": "'x,y'", "point": "ST_GeomFromText('POINT(1 2)')",
    "datetime(6)": "'2026-01-02 03:04:05.6'", "timestamp(2) NULL": "'2026-01-02 03:04:05.6'",
}  # fmt: skip


@pytest.mark.every_release
def test_each_type_stands_before_and_behind_numbers_of_either_sign(mariadb: MysqlDatabase) -> None:
    types = [*TYPES, *([] if mariadb.is_old or not mariadb.is_mysql else ["vector(2)"])]
    values = {**VALUES, "vector(2)": "to_vector('[1,2]')"}
    columns = [f"a{n} int, x{n} {type_}, b{n} int unsigned" for n, type_ in enumerate(types)]
    row = ", ".join(f"-1, {values.get(type_, '100')}, 4294967295" for type_ in types)
    mariadb.execute(f"CREATE TABLE t (y year, id tinyint unsigned PRIMARY KEY, {', '.join(columns)})")
    assert_same_from_log_and_dump(mariadb, {"t": [f"INSERT INTO t VALUES (1901, 200, {row})"]})


@pytest.mark.parametrize("kind", ["enum", "set"])
def test_members_that_the_catalog_escapes_are_as_the_log_has_them(mariadb: MysqlDatabase, kind: str) -> None:
    members = (r"'a\\b','a\\nb','a\nb','a\rb','a\tb','a/*b*/c'", "'a /* b','c */ d','a)b','it''s','it\"s'")
    columns = f"id int PRIMARY KEY, e {kind}({','.join(members)}), f {kind}('x /*', '*/ y')"
    rows = ", ".join(f"({n}, {1 << n if kind == 'set' else n + 1}, 1)" for n in range(11))
    mariadb.execute(f"CREATE TABLE t ({columns})")
    assert_same_from_log_and_dump(mariadb, {"t": [f"INSERT INTO t VALUES {rows}"]})


@pytest.mark.parametrize("mark", ["?", "\U0001f600"])
def test_a_set_may_have_a_question_mark_in_any_of_its_64_members(mariadb: MysqlDatabase, mark: str) -> None:
    """The catalog shows one for other characters too."""
    marked = {8, 9, 31, 32, 33, 63, 64}
    members = [f"m{n}{mark}" if n in marked else f"m{n}" for n in range(1, 65)]
    listed = ", ".join(f"'{name}'" for name in members)
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, s set({listed}) CHARACTER SET utf8mb4)")
    rows = ", ".join(f"({n}, {1 << n - 1})" for n in range(1, 65))
    assert_same_from_log_and_dump(mariadb, {"t": [f"INSERT INTO t VALUES {rows}"]})


def test_a_member_that_the_server_does_not_return_is_the_problem_of_its_table(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, e enum('a', 'b?'))", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    source = source_of(mariadb)
    for answer in ({}, {0: None}, {0: ""}, {0: "a"}):
        monkeypatch.setattr(catalog, "_by_union", lambda *_, answer=answer: answer)
        listing = source.tables()
        assert [schema.table.name for schema in listing.schemas] == ["u"]
        assert [(problem.table.name, problem.reason) for problem in listing.unfit] == [
            ("t", "column e: the server does not return its member 'b?' in full")
        ]
    source.close()


# By table: how it is made, and how it changes. What the server keeps for itself must not land.
VERSIONED = "WITH SYSTEM VERSIONING"
PERIOD = (
    "s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END {},"
    " PERIOD FOR SYSTEM_TIME (s, e)"
)
MARIADB_TABLES = {
    "hashed": (
        ["CREATE TABLE hashed (id int PRIMARY KEY, a text, b blob, UNIQUE (a), UNIQUE (b))"],
        ["INSERT INTO hashed VALUES (1, 'x', 'y'), (2, NULL, NULL)", "UPDATE hashed SET b = NULL"],
    ),
    "widened": (
        ["CREATE TABLE widened (id int PRIMARY KEY, a text, UNIQUE (a))", "ALTER TABLE widened ADD c int"],
        ["INSERT INTO widened VALUES (1, 'x', 7)", "UPDATE widened SET a = 'y', id = 2"],
    ),
    "shown": (  # a name that the server would take, if it were free
        [
            "CREATE TABLE shown (id int PRIMARY KEY, a text, DB_ROW_HASH_1 bigint unsigned,"
            " UNIQUE (a))"
        ],
        ["INSERT INTO shown VALUES (1, 'x', 7)"],
    ),
    "virtual_hash": (
        ["CREATE TABLE virtual_hash (id int PRIMARY KEY, a text, v text AS (concat(a, 'x')), UNIQUE (v))"],
        ["INSERT INTO virtual_hash (id, a) VALUES (1, 'x'), (2, NULL)"],
    ),
    "versioned": (
        [f"CREATE TABLE versioned (id int PRIMARY KEY, a text, UNIQUE (a)) {VERSIONED}"],
        [
            "INSERT INTO versioned VALUES (1, 'x'), (2, 'y')", "UPDATE versioned SET a = 'z' WHERE id = 1",
            "UPDATE versioned SET id = 3 WHERE id = 1", "DELETE FROM versioned WHERE id = 2",
            "REPLACE INTO versioned VALUES (3, 'q')", "DELETE HISTORY FROM versioned",
        ],
    ),
    "named": (
        [f"CREATE TABLE named (id int PRIMARY KEY, a int, {PERIOD.format('')}) {VERSIONED}"],
        [
            "INSERT INTO named (id, a) VALUES (1, 1), (2, 2)", "UPDATE named SET a = 3",
            "DELETE FROM named WHERE id = 2",
        ],
    ),
    "invisible": (
        [f"CREATE TABLE invisible (id int PRIMARY KEY, a int, {PERIOD.format('INVISIBLE')}) {VERSIONED}"],
        ["INSERT INTO invisible (id, a) VALUES (1, 1)", "UPDATE invisible SET a = 3"],
    ),
    "in_part": (
        [f"CREATE TABLE in_part (id int PRIMARY KEY, a int WITHOUT SYSTEM VERSIONING, b text) {VERSIONED}"],
        ["INSERT INTO in_part VALUES (1, 1, 'x')", "UPDATE in_part SET a = 3", "UPDATE in_part SET b = 'y'"],
    ),
}  # fmt: skip
MYSQL_TABLES = {
    "functional": (
        [
            "CREATE TABLE functional (a int, KEY ((a + 1)), KEY ((a * 2)))",
            "ALTER TABLE functional ADD b year FIRST, ADD c int unsigned",
            "ALTER TABLE functional ADD d int NOT NULL, ADD PRIMARY KEY (d)",
        ],
        [
            "INSERT INTO functional VALUES (2000, 1, 7, 8), (2001, NULL, 4000000000, -1)",
            "UPDATE functional SET a = 7",
        ],
    ),
    "many": (
        ["CREATE TABLE many (id int PRIMARY KEY, j json, KEY k ((CAST(j->'$.z' AS unsigned array))))"],
        ["""INSERT INTO many VALUES (1, '{"z": [1, 2]}'), (2, NULL)""", "UPDATE many SET j = NULL"],
    ),
    "unkeyed": (
        ["SET sql_generate_invisible_primary_key = ON", "CREATE TABLE unkeyed (a int, KEY ((a + 1)))"],
        ["INSERT INTO unkeyed (a) VALUES (1), (2)", "UPDATE unkeyed SET a = 7"],
    ),
    "invisible": (
        [
            "CREATE TABLE invisible (h int INVISIBLE PRIMARY KEY, a int, v int AS (a) VIRTUAL INVISIBLE,"
            " x int AS (a) STORED, KEY ((a + 2)), KEY (v))"
        ],
        ["INSERT INTO invisible (h, a) VALUES (1, 1), (2, 2)", "UPDATE invisible SET a = 7"],
    ),
}  # fmt: skip


@pytest.mark.every_release
def test_columns_that_the_server_keeps_for_itself_do_not_land(mariadb: MysqlDatabase) -> None:
    cases = MYSQL_TABLES if mariadb.is_mysql else MARIADB_TABLES
    mariadb.execute(*[statement for made, _ in cases.values() for statement in made])
    ops = assert_same_from_log_and_dump(mariadb, {table: changes for table, (_, changes) in cases.items()})
    if not mariadb.is_mysql:
        versioned = [op.partition(" ")[2] for op in ops if op.startswith("versioned ")]
        assert versioned[:2] == ["insert", "insert"]
        assert set(versioned) == {"insert", "update", "delete"}


@pytest.mark.only_mariadb
@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL UNIQUE"])
def test_a_version_that_ends_is_a_delete_also_in_a_minimal_image(mariadb: MysqlDatabase, key: str) -> None:
    mariadb.execute(
        f"CREATE TABLE t (id int {key}, a int) {VERSIONED}", "INSERT INTO t VALUES (1, 1), (2, 2)"
    )
    with following(source_of(mariadb, keys={f"{mariadb.name}.t": ["id"]}, partial_images=True)) as log:
        mariadb.execute("SET binlog_row_image = MINIMAL", "UPDATE t SET a = 5", "DELETE FROM t WHERE id = 1")
        found = read_all(mariadb, log)
    assert [(row["_cdc"]["op"], row["id"], row["a"]) for row in found] == [
        ("update", 1, 5), ("update", 2, 5), ("delete", 1, None),
    ]  # fmt: skip


@pytest.mark.only_mariadb
@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL UNIQUE", "UNIQUE"])
def test_ordinary_columns_that_went_are_not_taken_for_a_period_by_their_names(
    mariadb: MysqlDatabase, key: str
) -> None:
    """The catalog no longer shows them, as it never shows a period without names."""
    mariadb.execute(
        f"CREATE TABLE t (id int {key}, row_start timestamp(6) NOT NULL DEFAULT '2020-01-01',"
        " row_end timestamp(6) NOT NULL DEFAULT '2030-01-01')"
    )
    with following(source_of(mariadb, keys={f"{mariadb.name}.t": ["id"]})) as log:
        mariadb.execute("INSERT INTO t (id) VALUES (1)", "ALTER TABLE t DROP row_start, DROP row_end")
        read_to(log, mariadb.end_of_log())
        segment = log.take()
    if key == "UNIQUE":  # the log shows no key
        assert quarantines(segment)
    else:
        assert [row["id"] for row in events(segment)] == [1]


@pytest.mark.only_mariadb
def test_versions_by_transaction_ids_are_refused_since_the_log_has_statements_only(
    mariadb: MysqlDatabase,
) -> None:
    period = PERIOD.format("").replace("timestamp(6)", "bigint unsigned")
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, {period}) {VERSIONED}")
    source = source_of(mariadb)
    found = [f.detail for f in source.check() if f.name == f"table {mariadb.name}.t" and f.state == "failed"]
    source.close()
    assert any("numbered by transaction id" in detail for detail in found)


def test_table_ids_begin_again_when_the_server_starts_again(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in "abc"))
    source = source_of(mariadb)
    expected: list[tuple[str, int]] = []

    def insert(tables: str) -> None:
        key = len(expected)
        mariadb.execute(*(f"INSERT INTO {table} VALUES ({key})" for table in tables))
        expected.extend((f"{mariadb.name}.{table}", key) for table in tables)

    with following(source) as log:
        begin = log.position
        insert("abc")
        mariadb.execute("FLUSH TABLES")  # each table gets another id
        insert("abc")
        found = read_all(mariadb, log)
        behind = log.position
    for tables in ("abc", "ca"):
        mariadb.restart()
        insert(tables)
    with opened(source, ResumePoint(behind, ())) as log:
        found += read_all(mariadb, log)
    assert [(row["_table"], row["id"]) for row in found] == expected
    # What lies between two restarts comes in many segments, too.
    end, backlog = mariadb.end_of_log(), []
    with opened(source, ResumePoint(begin, ())) as log:
        monkeypatch.setattr("connector.mysql.log.stream.RECEIVE_BYTES", 100)
        while log.position < end:
            log.read(0.0, 64 << 20)
            backlog += events(log.take())
    assert backlog == found


KEY_CHANGES = {
    "dropped": (["DROP TABLE t"], [], None),
    "dropped and made again": (["DROP TABLE t"], ["CREATE TABLE t (v int, id int PRIMARY KEY)"], ("id",)),
    "another key": (["ALTER TABLE t DROP PRIMARY KEY, ADD w int, ADD PRIMARY KEY (v)"], [], ("v",)),
    "without a primary key": (["ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (id)"], [], ()),
}
"""What others do between the two queries, and after them; the key found, None without the table."""


@pytest.mark.parametrize("name", KEY_CHANGES)
def test_columns_and_key_are_of_one_definition_whenever_the_table_changes(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    before, after, key = KEY_CHANGES[name]
    read, due = catalog.primary_key, [[*after], [*before]]

    def read_among_changes(connection: Any, table: TableName) -> tuple[str, ...]:
        for statement in due.pop() if due else ():
            mariadb.execute(statement)
        found = read(connection, table)
        for statement in due.pop() if due else ():
            mariadb.execute(statement)
        return found

    monkeypatch.setattr(catalog, "primary_key", read_among_changes)
    table = TableName(mariadb.name, "t")
    with closing(connect(mariadb.url, "test")) as connection:
        resolved = catalog.layout_of(connection, table, {})
        if key is None:
            assert resolved is None
            return
        assert resolved is not None
        if not key:
            assert str(resolved.problem) == f"{table}: it has no primary key"
            return
        assert resolved.schema is not None
        assert resolved.schema.key == key
        assert resolved == catalog.layout_of(connection, table, {})


def test_a_key_that_is_shown_as_the_primary_one_is_read_once(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE TABLE t (id int NOT NULL UNIQUE, v int)")
    read, asked = catalog.primary_key, []

    def counted(connection: Any, table: TableName) -> tuple[str, ...]:
        asked.append(table)
        return read(connection, table)

    monkeypatch.setattr(catalog, "primary_key", counted)
    table = TableName(mariadb.name, "t")
    with closing(connect(mariadb.url, "test")) as connection:
        table_map = catalog.table_map_of(connection, table)
    assert table_map is not None
    assert (table_map.key, asked) == ((), [table])
