"""Conditions of requests on a real PostgreSQL: they choose rows, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from connector.errors import RequestError
from connector.postgres.dump import PostgresTables
from connector.postgres.predicate import called_functions
from connector.schema import TableName
from connector.source import KeyRange
from tests.support.servers.postgres import Database
from tests.support.source.postgres_source import both_ways, source_of
from tests.support.source.predicate_attacks import attack, taken
from tests.support.source.reading import chunk_rows, following

T = TableName("public", "t")

ESCAPES = [
    "id < 0) LIMIT 1; CREATE TABLE evil (); DELETE FROM canary WHERE (true",
    "true; DELETE FROM canary",
    "true; DELETE FROM canary --",
    "true) TO STDOUT; DELETE FROM canary; COPY (SELECT 1",
    "true); COMMIT; DELETE FROM canary; --",
    "false) UNION SELECT 7, secret, now() FROM canary --",
    "false) UNION SELECT 7, secret, now() FROM canary /*",
    "false) UNION (SELECT 7, secret, now() FROM canary WHERE true",
    "false UNION SELECT 7, secret, now() FROM canary",
    "true LIMIT 1",
    "true FOR UPDATE",
    "true GROUP BY id",
    "true /* unclosed",
    "true OR v = 'unclosed",
    "true OR v = $a$unclosed",
    "SELECT true",
    "true, true",
    "true\0",
    "$1",
]
EFFECTS = [
    "nextval('s') > 0",
    "id IN (SELECT 3 LIMIT length(set_config('a.b', 'c', false)))",
    "id IN (SELECT 3 LIMIT length(Set_Config/* /* */ */\n('a.b', 'c', false)))",
    "id IN (SELECT 3 LIMIT length(U&\"\\0073et_config\"('a.b', 'c', false)))",
    "id IN (SELECT count(*) OVER (ROWS length(set_config('a.b', 'c', false)) PRECEDING) FROM t)",
    "EXISTS (SELECT 1 FROM pg_sleep(60))",
    "EXISTS (SELECT 1 FROM ROWS FROM (pg_sleep(60), generate_series(1, 2)))",
    "CASE WHEN id > 0 THEN true ELSE pg_sleep(60) IS NULL END",
    "false AND pg_sleep(60) IS NULL",
    "(SELECT count(*) FROM (WITH d AS (DELETE FROM canary RETURNING 1) SELECT * FROM d) x) > 0",
    "(WITH d AS (DELETE FROM canary RETURNING 1) SELECT count(*) FROM d) > 0",
    "id = (SELECT id FROM canary FOR UPDATE)",
    "set_config('TimeZone', 'Asia/Tokyo', false) <> ''",
    "set_config('transaction_read_only', 'off', false) <> ''",
    "pg_advisory_lock(7) IS NULL",
    "pg_terminate_backend(pg_backend_pid())",
    "pg_terminate_backend((SELECT pid FROM pg_stat_activity WHERE wait_event IS NOT NULL LIMIT 1))",
    "pg_cancel_backend(1)",
    "pg_reload_conf()",
    "pg_notify('a', 'b') IS NULL",
    "setval('s', 7) > 0",
    "lo_create(0) > 0",
    "lo_import('/etc/hostname') > 0",
    "lo_export(1, '/tmp/deltatide-evil') > 0",
    "pg_read_file('/etc/hostname') <> ''",
    "pg_read_binary_file('/etc/hostname') IS NOT NULL",
    "EXISTS (SELECT pg_ls_dir('/etc'))",
    "dblink('dbname=postgres', 'CREATE TABLE evil ()') IS NULL",
    "dblink_exec('dbname=postgres', 'CREATE TABLE evil ()') IS NULL",
    "pg_drop_replication_slot('it') IS NULL",
    "pg_logical_emit_message(false, 'a', 'b') IS NOT NULL",
    "query_to_xml('DELETE FROM canary', true, true, '') IS NULL",
    "pg_catalog . pg_sleep ( 60 ) IS NULL",
    '"pg_sleep"(60) IS NULL',
]
OTHERS = [
    "EXISTS (SELECT FROM pg_stat_activity WHERE query ~ 'password')",
    "EXISTS (TABLE canary)",
    "'s3cret' = ANY (ARRAY(SELECT secret FROM canary))",
    "(WITH c AS MATERIALIZED (TABLE canary) SELECT count(*) FROM c) = 1",
    "id IN (SELECT id FROM t)",
    "pg_stat_get_backend_activity(1) ~ 'password'",
    "table_to_xml('canary', true, true, '')::text ~ 's3cret'",
]


@pytest.fixture
def tables(database: Database) -> Iterator[PostgresTables]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz DEFAULT '2026-01-01Z')")
    database.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 10) i")
    database.execute("CREATE TABLE canary (id int, secret text); INSERT INTO canary VALUES (1, 's3cret')")
    database.execute("CREATE SEQUENCE s")
    missing = "feature_not_supported OR undefined_file"  # then dblink is no function at all
    database.execute(f"DO $$ BEGIN CREATE EXTENSION dblink; EXCEPTION WHEN {missing} THEN END $$")
    database.execute(
        "CREATE FUNCTION change_zone(int) RETURNS boolean LANGUAGE plpgsql STABLE AS"
        " $$ BEGIN PERFORM set_config('TimeZone', 'Asia/Tokyo', false); RETURN true; END $$"
    )
    source = source_of(database, ["public.t"])
    with following(source):
        opened = source.open_tables()
        yield opened
        opened.close()


def traces(database: Database) -> list[object]:
    relations = (
        "SELECT string_agg(relname, ',' ORDER BY 1) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    return [
        database.execute("TABLE canary"),
        database.execute("SELECT is_called FROM s"),
        database.execute(relations),
        database.execute("SELECT count(*) FROM pg_largeobject_metadata"),
        database.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
        database.execute("SELECT count(*) FROM pg_replication_slots"),
    ]


def ids(tables: PostgresTables, where: str) -> list[int]:
    rows = chunk_rows(tables, "public.t", KeyRange(("2",), ("9",)), where)
    assert all(row["at"].isoformat() == "2026-01-01T00:00:00+00:00" for row in rows)
    assert all(row["v"] == f"v{row['id']}" for row in rows)
    return sorted(row["id"] for row in rows)


@both_ways
def test_a_condition_that_is_more_than_one_expression_is_refused_whole(
    tables: PostgresTables, database: Database
) -> None:
    before = traces(database)
    texts = [*ESCAPES, *EFFECTS, *OTHERS]
    assert taken(texts, lambda where: ids(tables, where)) == []
    assert taken(texts, lambda where: tables.next_boundary(T, ["id"], None, 3, where)) == []
    assert traces(database) == before
    for other in OTHERS:
        with pytest.raises(RequestError, match=r"subquery|the condition calls (pg_stat_get|table_to_xml)"):
            ids(tables, other)
    assert ids(tables, "id % 2 = 0 -- even") == [4, 6, 8]


@both_ways
def test_a_condition_cannot_change_the_values_of_rows(tables: PostgresTables) -> None:
    assert ids(tables, "change_zone(id) AND id < 5") == [3, 4]
    assert ids(tables, "id < 4 AND at < now() AND v LIKE 'v%' AND pg_typeof(id) = 'int'::regtype") == [3]


@both_ways
def test_a_condition_writes_nothing_whatever_its_functions_are_declared(
    database: Database, tables: PostgresTables
) -> None:
    """A stable function may call a volatile one, which no plan shows: only the transaction refuses."""
    body = "RETURNS boolean LANGUAGE plpgsql"
    database.execute(
        f"CREATE FUNCTION removes() {body} AS $$ BEGIN DELETE FROM canary; RETURN true; END $$;"
        f"CREATE FUNCTION looks(int) {body} STABLE AS $$ BEGIN RETURN removes(); END $$"
    )
    for use in (ids, lambda tables, where: tables.next_boundary(T, ["id"], None, 3, where)):
        with pytest.raises(RequestError, match="read-only transaction"):
            use(tables, "looks(id)")


@both_ways
def test_a_condition_that_takes_too_long_is_refused(database: Database, tables: PostgresTables) -> None:
    tables._predicate_seconds = 0.2
    slow = "sha512(convert_to(repeat(v, 20000000), 'UTF8')) IS NOT NULL"
    with pytest.raises(RequestError, match="statement timeout"):
        ids(tables, slow)
    with pytest.raises(RequestError, match="statement timeout"):
        tables.next_boundary(T, ["id"], None, 3, slow)
    assert ids(tables, "id = 3") == [3]


TELLING = [
    "v::int = 3",
    "(v || '-')::date < now()",
    "id / (length(v) - 2) > 0",
    "v::regclass IS NULL",
    "v::regrole IS NULL",
    "current_setting(v) = 'on'",
    "to_tsquery(v || ' v') IS NULL",
    "repeat(v, 2000)::tsquery IS NULL",
    "v::regconfig IS NULL",
    "has_table_privilege(v, 'SELECT')",
    "('$ ' || v)::jsonpath IS NULL",
]


@both_ways
@pytest.mark.parametrize("where", TELLING)
def test_an_error_of_a_condition_shows_no_value_of_a_row(tables: PostgresTables, where: str) -> None:
    """It is in the log, the manifest and on the status page."""
    for use in (lambda: ids(tables, where), lambda: tables.next_boundary(T, ["id"], None, 3, where)):
        with pytest.raises(RequestError, match=r"the condition fails for a row: [a-z]+ ") as refused:
            use()
        assert not re.search(r"v\d", f"{refused.value} {refused.value.hint}")
    with pytest.raises(RequestError, match="nonsense"):
        ids(tables, "id = 'nonsense'")


# fmt: off
PIECES = st.sampled_from([
    "(", ")", "'", '"', ";", "$", "\\", "\n", " ", "--", "/*", "*/", "$$", "$a$", "E'", "U&'", "\\'",
    "''", "true", "false", "id", "v", " AND ", " OR ", " UNION SELECT 7, 'x', now() ",
    "; DELETE FROM canary ", "DROP TABLE canary;", "COMMIT;", "nextval('s')", "=", "1", "SELECT ",
    " FROM canary", "CASE WHEN ", " THEN ", " END ", "::text", "--\n", ",", "[", "]", "nextval",
    "pg_sleep(9)", " IN ", "LIMIT 1", "ROLLBACK TO SAVEPOINT predicate;", "\u2028", "\x01",
    "set_config('a.b', 'c', false)", "lo_create(0)", "pg_read_file('/etc/hostname')", "pg_advisory_lock(1)",
    "pg_terminate_backend(1)", "dblink('', '')", "U&\"", "EXISTS ",
])
# fmt: on


@both_ways
def test_no_text_leaves_a_trace_or_a_foreign_row(database: Database, tables: PostgresTables) -> None:
    before = traces(database)
    attack(tables, T, PIECES)
    assert traces(database) == before


def test_called_functions_are_found_in_a_plans_text() -> None:
    plan = """Output: (f(1) AND s."G ""h"(x) AND 'i(' = "j(" AND "it's" = k AND 'it''s(' = l)"""
    assert list(called_functions(plan)) == ["f", 'G "h']
