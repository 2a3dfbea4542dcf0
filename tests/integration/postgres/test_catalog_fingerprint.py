"""What PostgreSQL's log does not tell, seen in the catalog of a real server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from functools import partial
from threading import Thread, Timer
from typing import Any

import pytest

from connector.errors import TransientError
from connector.findings import unfit_tables
from connector.landing.event_batch import EventBatch
from connector.postgres import catalog_fingerprint, publication
from connector.schema import COMMENT_CHARACTERS, TableComments, TableName
from connector.source import UnloggedChange
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import opened, read_rows
from tests.support.waiting import wait_until

PARTITIONED = """
    CREATE TABLE t (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
    CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);
    INSERT INTO t SELECT g, g % 20 FROM generate_series(1, 100) g"""


TABLE, PARTITION = TableName("public", "t"), TableName("public", "t2")


def is_unlogged(database: Database, *statements: str) -> bool:
    """Whether statements leave table t changed without row events, as its fingerprints have it."""
    return bool(unlogged_after(database, statements)[0])


def unlogged_after(database: Database, *steps: Sequence[str]) -> list[UnloggedChange | None]:
    """What each step leaves of table t changed without row events."""
    source = source_of(database)
    source.prepare()
    found = []
    try:
        before = source.check_catalog().tables[TABLE]
        position = 0
        for statements in steps:
            for statement in statements:
                database.execute(statement)
            now = source.check_catalog()
            assert now.position >= position
            found.append(source.unlogged(before, now.tables[TABLE]))
            before, position = source.remember(before, now.tables[TABLE]), now.position
        return found
    finally:
        source.close()


def test_a_look_tells_whether_the_list_of_columns_that_are_logged_was_edited(database: Database) -> None:
    """Also by a root's entry; nothing else edits it."""
    database.execute(PARTITIONED)
    source = source_of(database)
    source.prepare()
    try:
        name = source._config.publication
        looks = [source.check_catalog().look.published[TABLE]]
        looks.append(source.look_at_columns([TABLE]).published[TABLE])
        database.execute("CREATE TABLE other (id int PRIMARY KEY)")
        database.execute(f"ALTER PUBLICATION {name} ADD TABLE other; ALTER TABLE t ADD more text")
        looks.append(source.look_at_columns([TABLE]).published[TABLE])
        database.execute(f"ALTER PUBLICATION {name} SET TABLE t (id, day)")
        database.execute(f"ALTER PUBLICATION {name} SET TABLE t")
        looks.append(source.look_at_columns([TABLE, PARTITION]).published[TABLE])
        looks.append(source.look_at_columns([PARTITION]).published[PARTITION])
    finally:
        source.close()
    assert looks[0] == looks[1] == looks[2] != looks[3] == looks[4]
    assert looks[0]


def test_a_check_tells_a_position_from_before_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged while it lasts, it may not have seen."""
    find_tables, source = catalog_fingerprint.find_tables, source_of(database)

    def found_while_others_write(*given: Any) -> Any:
        found = find_tables(*given)
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        return found

    monkeypatch.setattr(catalog_fingerprint, "find_tables", found_while_others_write)
    before = database.end_of_log()
    found = source.check_catalog()
    source.close()
    assert TABLE not in found.tables
    assert before - 50 <= found.begun < found.position  # in a page's header it is rounded down


@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE t1",),
        ("ALTER TABLE t DETACH PARTITION t2",),
        (
            "ALTER TABLE t DETACH PARTITION t2",
            "UPDATE t2 SET note = 'unseen'",
            "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)",
        ),
        ("DROP TABLE t2",),
        (
            "CREATE TABLE t3 (id int, day int NOT NULL, note text, PRIMARY KEY (id, day))",
            "INSERT INTO t3 VALUES (1, 25)",
            "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (20) TO (30)",
        ),
        ("ALTER PUBLICATION it DROP TABLE t", "ALTER PUBLICATION it ADD TABLE t"),
        ("ALTER TABLE t DROP COLUMN note", "ALTER TABLE t ADD COLUMN note text"),
        ("ALTER TABLE t RENAME COLUMN note TO remark",),
        ("ALTER TABLE t ALTER note TYPE text USING note || '!'",),
    ],
)
def test_what_changes_rows_or_capture_unlogged_is_seen(
    database: Database, statements: tuple[str, ...]
) -> None:
    database.execute(PARTITIONED)
    assert is_unlogged(database, *statements)


def test_a_partition_being_detached_counts_until_it_is_gone(database: Database) -> None:
    """If nothing else of it changes, the log goes on with its rows as the table's, which omits them."""
    database.execute(PARTITIONED + "; ALTER TABLE t2 ADD CHECK (day IS NOT NULL AND day >= 10 AND day < 20)")
    source, reader, detaching = source_of(database), database.connect(autocommit=False), database.connect()
    source.prepare()
    with closing(source), closing(reader), closing(detaching), reader.cursor() as reads:
        found = [source.check_catalog().tables[TABLE]]
        reads.execute("SELECT FROM t")
        statement = "ALTER TABLE t DETACH PARTITION t2 CONCURRENTLY"
        detach = Thread(target=lambda: detaching.cursor().execute(statement))
        detach.start()
        pending = "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = 't2'::regclass"
        wait_until(lambda: database.execute(pending) == [(True,)], "its detaching waits")
        found.append(source.check_catalog().tables[TABLE])
        meanwhile = source.tables().existing
        reader.rollback()
        detach.join(30)
        found.append(source.check_catalog().tables[TABLE])
        assert source.unlogged(found[0], found[1])
        assert source.unlogged(found[1], found[2])
        assert PARTITION not in meanwhile, "so long the log may have its rows as the table's"
        assert PARTITION in source.tables().existing


@pytest.mark.parametrize(
    "statements",
    [
        (
            "INSERT INTO t VALUES (1000, 1)",
            "UPDATE t SET day = 11 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ),
        ("CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)",),
        ("VACUUM t", "ANALYZE t"),
        ("ALTER TABLE t ADD COLUMN more text",),
        ("ALTER TABLE t DROP COLUMN note",),
    ],
)
def test_what_the_log_shows_is_no_reason_for_a_dump(database: Database, statements: tuple[str, ...]) -> None:
    database.execute(PARTITIONED)
    assert not is_unlogged(database, *statements)


def test_a_dump_is_repeated_when_the_order_of_its_key_changes(database: Database) -> None:
    database.execute("CREATE TABLE t (name text PRIMARY KEY, note text)")
    other_order = ['ALTER TABLE t ALTER name TYPE text COLLATE "POSIX"']
    note, index = ['ALTER TABLE t ALTER note TYPE text COLLATE "POSIX"'], ["CREATE UNIQUE INDEX ON t (note)"]
    found = unlogged_after(database, note, index, other_order, ["INSERT INTO t VALUES ('a', 'b')"])
    assert [reason.reason if reason else None for reason in found] == [
        None,
        None,
        "the collation of a column of its key changed",
        None,
    ]


KEPT = [
    ["REINDEX TABLE t", "REINDEX INDEX CONCURRENTLY t_pkey", "ALTER INDEX t_pkey RENAME TO other"],
    ["ALTER TABLE t ALTER id TYPE varchar(20)"],
    ["CREATE UNIQUE INDEX later ON t (id)"],
    ["ALTER TABLE t DROP CONSTRAINT other, ADD CONSTRAINT t_pkey PRIMARY KEY USING INDEX later"],
    ["ALTER TABLE t DROP CONSTRAINT t_note_key", "ALTER TABLE t ADD UNIQUE (note)"],
]
GONE_FOR_A_TIME = ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id)"]


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_a_dump_is_repeated_when_the_index_of_its_key_was_gone_and_when_no_other_was(
    database: Database,
) -> None:
    database.execute("CREATE TABLE t (id varchar(10) PRIMARY KEY, note text, UNIQUE (note))")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    *kept, gone = unlogged_after(database, *KEPT, GONE_FOR_A_TIME)
    assert kept == [None] * len(KEPT)
    assert gone is not None
    assert "unique index" in gone.reason


def test_a_new_table_without_a_key_is_left_out_of_the_publication(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    source = source_of(database)
    source.prepare()
    seen = source.check_catalog()
    assert set(seen.tables) == {TABLE}
    assert set(seen.unfit) == {TableName("public", "keyless")}
    database.execute("INSERT INTO keyless VALUES (1)")
    database.execute("UPDATE keyless SET id = 2")  # fails for a table that is published without an identity
    source.close()


PLAIN = """
    CREATE TYPE tone AS ENUM ('flat', 'sharp');
    CREATE TYPE mood AS ENUM ('low', 'high'); CREATE DOMAIN feeling AS mood;
    CREATE TYPE pair AS (a int, b feeling[]);
    CREATE TABLE t (id int PRIMARY KEY, at timestamp, c char(4), n numeric, f feeling[], p pair,
                    doubled int GENERATED ALWAYS AS (id * 2) STORED);
    INSERT INTO t VALUES (1, now(), 'a', 1.234, '{low}', '(1,{high})')"""

LOST = [
    ["ALTER PUBLICATION it DROP TABLE t", "ALTER PUBLICATION it ADD TABLE t"],
    [
        "ALTER PUBLICATION it SET (publish = 'insert')",
        "ALTER PUBLICATION it SET (publish = 'insert, update')",
    ],
    ["DROP PUBLICATION it", "CREATE PUBLICATION it FOR TABLE t"],
    ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME TO t"],
    ["CREATE SCHEMA s", "ALTER TABLE t SET SCHEMA s", "ALTER TABLE s.t SET SCHEMA public"],
    ["DROP TABLE t", PLAIN[PLAIN.index("CREATE TABLE") : PLAIN.index("INSERT")]],
]
REWRITTEN = [
    ["ALTER TYPE mood RENAME VALUE 'low' TO 'poor'"],
    ["ALTER TYPE mood RENAME VALUE 'high' TO 'top'", "ALTER TYPE mood RENAME VALUE 'top' TO 'high'"],
    ["ALTER TYPE pair ADD ATTRIBUTE c int"],
    ["ALTER TABLE t ALTER at TYPE timestamp(0)"],
    ["ALTER TABLE t ALTER c TYPE char(8)"],
    ["ALTER TABLE t ALTER n TYPE numeric(50,2)"],
    ["ALTER TABLE t ALTER n TYPE numeric(50,2) USING n + 1"],
    ["ALTER TABLE t ADD COLUMN d int DEFAULT 5"],
    ["ALTER TABLE t ADD COLUMN e float DEFAULT random()"],
    ["ALTER TABLE t ALTER doubled DROP EXPRESSION"],
    ["ALTER TABLE t RENAME n TO m"],
    ["ALTER TABLE t OWNER TO pg_monitor"],
    ["ALTER TABLE t ADD COLUMN less text"],
    ["ALTER TABLE t DROP COLUMN less", 'ALTER TABLE t ADD COLUMN "LESS" text'],
    ['ALTER TABLE t ADD COLUMN "SEÑAL" text'],
]
LOGGED = [
    ["ALTER TABLE t ADD COLUMN less text", "ALTER TABLE t ADD COLUMN last text"],
    ["ALTER TABLE t DROP COLUMN less"],
    ["ALTER TABLE t ADD COLUMN more text"],
    ['ALTER TABLE t RENAME more TO "More"'],
    ["ALTER TABLE t ADD COLUMN señal text"],
    ["ALTER TABLE t DROP COLUMN señal"],
    ["ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'"],
    ["ALTER TABLE t ADD COLUMN tone tone, ADD COLUMN tones tone[]"],
    ["ALTER TABLE t DROP COLUMN tone, DROP COLUMN tones"],
    ["VACUUM FULL t", "CLUSTER t USING t_pkey"],
    ["TRUNCATE t"],
    ["CREATE INDEX ON t (at)", "ANALYZE t", "GRANT SELECT ON t TO public", "COMMENT ON TABLE t IS 'c'"],
    ["ALTER TABLE t SET (fillfactor = 50)", "ALTER TABLE t ALTER at SET DEFAULT now()"],
    ["CREATE TABLE other (id int PRIMARY KEY)", "ALTER PUBLICATION it ADD TABLE other"],
]


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_rewrites_and_lost_log_are_distinguished_from_what_changes_nothing(database: Database) -> None:
    database.execute(PLAIN)
    found = unlogged_after(database, *LOGGED, *REWRITTEN, *LOST)
    reported, rewritten = found[: len(LOGGED)], found[len(LOGGED) : len(LOGGED) + len(REWRITTEN)]
    assert reported == [None] * len(LOGGED)
    assert [what and what.lost for what in rewritten] == [False] * len(REWRITTEN)
    assert [what and what.lost for what in found[-len(LOST) :]] == [True] * len(LOST)


def test_a_publication_of_all_tables_or_of_a_schema_is_checked_too(database: Database) -> None:
    """A table that is not in it by itself may be unlogged for a time, so that another file counts."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION it FOR TABLES IN SCHEMA public")
    leave = [
        "ALTER PUBLICATION it DROP TABLES IN SCHEMA public",
        "ALTER PUBLICATION it ADD TABLES IN SCHEMA public",
    ]
    unlog = ["ALTER TABLE t SET UNLOGGED", "ALTER TABLE t SET LOGGED"]
    left, unlogged = unlogged_after(database, leave, unlog)
    assert left is not None
    assert left.lost
    assert unlogged is not None


def test_a_look_takes_as_many_queries_for_many_tables_as_for_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for tables in (1, 30):
        for n in range(tables):
            database.execute(f"CREATE TYPE e{tables}_{n} AS ENUM ('a')")
            database.execute(f"CREATE TABLE t{tables}_{n} (id int PRIMARY KEY, v e{tables}_{n})")
        queries: list[str] = []
        for module in [m for n, m in sys.modules.items() if n.startswith("connector.postgres.")]:
            for name in ("all_rows", "one_row"):
                if run := getattr(module, name, None):
                    monkeypatch.setattr(module, name, partial(_noted, queries, run))
        source = source_of(database)
        source.prepare()
        queries.clear()
        assert len(source.check_catalog().tables) >= tables
        counts.append(len(queries))
        source.close()
        monkeypatch.undo()
    assert counts[0] == counts[1]


def test_comments_are_those_of_now_of_the_table_itself_and_change_no_fingerprint(database: Database) -> None:
    odd = "it's \"odd\" \\ `x` %s {y} ü \U0001f600\n\t'; --"
    database.execute(PARTITIONED)
    database.execute("CREATE TABLE bare (id int PRIMARY KEY)")
    database.execute("CREATE INDEX t_note ON t (note)")
    source = source_of(database)
    source.prepare()
    before = source.check_catalog()
    assert before.comments == {}
    for what, comment in (
        ("TABLE t", odd), ("COLUMN t.note", odd), ("COLUMN t.day", "x" * 9999), ("TABLE t1", "a partition's"),
        ("COLUMN t1.id", "a partition's"), ("INDEX t_note", "an index's"), ("CONSTRAINT t_pkey ON t", "key"),
    ):  # fmt: skip
        quoted = comment.replace("'", "''")
        database.execute(f"COMMENT ON {what} IS '{quoted}'")
    seen = source.check_catalog()
    columns = {"note": odd, "day": "x" * COMMENT_CHARACTERS}
    assert seen.comments == {TABLE: TableComments(TABLE, odd, columns)}
    assert source.unlogged(before.tables[TABLE], seen.tables[TABLE]) is None
    database.execute("COMMENT ON TABLE t IS NULL")
    database.execute("ALTER TABLE t RENAME note TO remark")
    database.execute("ALTER TABLE t ADD COLUMN note text")
    now = source.check_catalog()
    assert now.comments[TABLE] == TableComments(TABLE, "", {"remark": odd, "day": columns["day"]})
    were, are = before.look.ids[TABLE], now.look.ids[TABLE]
    assert are == {"id": were["id"], "day": were["day"], "remark": were["note"], "note": were["note"] + 1}
    assert len({id_ for ids in now.look.ids.values() for id_ in ids.values()}) == len(are) + 1, "of bare"
    source.close()


def test_a_partition_that_somebody_locks_stops_no_look_at_the_others(database: Database) -> None:
    database.execute(PARTITIONED)
    source = source_of(database)
    source.prepare()
    known = source.check_catalog().tables
    database.execute("CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)")
    holder = database.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("TRUNCATE t2, t3")
    end = "SELECT pg_terminate_backend(%s)", (holder.info.backend_pid,)
    release = Timer(5, database.execute, end)
    release.start()
    source.prepare()
    assert not [f for f in source.check() if f.state == "failed"]
    assert source.tables().existing == {TABLE}
    seen = source.check_catalog(known).tables[TABLE]
    assert source.unlogged(known[TABLE], seen) is not None, "nobody can tell that a new partition is empty"
    assert source.unlogged(seen, source.check_catalog({TABLE: seen}).tables[TABLE]) is None
    assert release.is_alive(), "something waited for the lock"
    release.cancel()
    holder.close()
    source.close()


def test_a_look_does_not_wait_for_a_catalog_that_somebody_locks(database: Database) -> None:
    """The log is read on meanwhile, and what changes without row events goes unseen.

    `pg_inherits`, as a new connection may open each catalog that has a cache of its rows.
    """
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database)
    source.prepare()
    holder = database.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("LOCK TABLE pg_inherits IN ACCESS EXCLUSIVE MODE")
    release = Timer(20, holder.rollback)
    release.start()
    with pytest.raises(TransientError, match="lock timeout"):
        source.check_catalog()
    assert release.is_alive(), "the check waited for the lock"
    release.cancel()
    holder.rollback()
    assert source.check_catalog().tables.keys() == {TABLE}
    holder.close()
    source.close()


def _noted(queries: list[str], run: Callable[..., Any], connection: Any, query: str, *rest: Any) -> Any:
    queries.append(query)
    return run(connection, query, *rest)


def test_a_table_that_is_replaced_during_a_look_is_seen_as_it_was_when_the_look_began(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = source_of(database)
    source.prepare()
    before = source.check_catalog()
    find = catalog_fingerprint.find_publication

    def drop_and_find(*arguments: Any) -> Any:
        database.execute("DROP TABLE t")
        return find(*arguments)

    monkeypatch.setattr(catalog_fingerprint, "find_publication", drop_and_find)
    now = source.check_catalog()
    assert (now.tables, now.unfit, now.unprepared) == (before.tables, {}, frozenset())
    assert now.position > before.position
    source.close()


def test_a_table_that_is_dropped_while_the_publication_is_made_hinders_one_attempt_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    source = source_of(database)
    find = publication.find_publication

    def find_and_drop(*arguments: Any) -> Any:
        found = find(*arguments)
        database.execute("DROP TABLE IF EXISTS t")
        return found

    monkeypatch.setattr(publication, "find_publication", find_and_drop)
    with pytest.raises(TransientError):
        source.prepare()
    source.prepare()
    assert source.check_catalog().unprepared == frozenset()
    source.close()


@pytest.mark.parametrize("own", ["", ", t1"])
def test_a_partition_whose_rows_are_published_as_those_of_its_root_is_unfit(
    database: Database, own: str
) -> None:
    database.execute(PARTITIONED)
    database.execute(f"CREATE PUBLICATION it FOR TABLE t{own} WITH (publish_via_partition_root = true)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    source, part = source_of(database, exclude=["public.t"]), TableName("public", "t1")
    assert source.prepare().added == (TableName("public", "u"),)
    unfit = source.check_catalog().unfit
    assert set(unfit) == {part, TableName("public", "t2")}
    assert {p.table for p in unfit_tables(source.check())} == set(unfit)
    assert "as those of public.t" in unfit[part].reason
    database.execute(unfit[part].hint.split("or: ")[1].split("; then")[0].split("; ")[0])
    source.prepare()
    assert source.check_catalog().unfit == {}
    source.close()


def test_log_of_a_type_that_was_dropped_since_is_decoded_as_before(database: Database) -> None:
    """As text, it stopped the table's merges: another agent than the one that reads it had seen the type."""
    database.execute("""
        CREATE DOMAIN price AS numeric(9,2); CREATE DOMAIN part AS bigint; CREATE TYPE tone AS ENUM ('low');
        CREATE TABLE t (id part PRIMARY KEY, p price, t tone)""")
    source = source_of(database)
    source.prepare()
    begun = source.begin_log(fresh=False)
    known = source.check_catalog().tables[TABLE]
    source.close()
    database.execute("INSERT INTO t VALUES (1, 1.5, 'low')")
    database.execute("ALTER TABLE t ALTER id TYPE bigint, ALTER p TYPE numeric(9,2), ALTER t TYPE text")
    database.execute("DROP DOMAIN price; DROP DOMAIN part; DROP TYPE tone")
    for _ in range(2):  # the second agent's manifest knows what the first one's did
        source = source_of(database)
        known = source.remember(known, source.check_catalog({TABLE: known}).tables[TABLE])
        with opened(source, begun) as log:
            (batch,) = read_rows(log, 1).decode()
        assert isinstance(batch, EventBatch)
        assert [(c.source_type, c.type) for c in batch.schema.columns] == [
            ("public.part", "bigint"), ("public.price", "decimal(9,2)"), ("public.tone", "string"),
        ]  # fmt: skip
        assert [row["p"] for row in batch.table.to_pylist()] == [Decimal("1.50")]


def test_a_table_is_unfit_once_the_type_of_its_key_loses_an_attribute(database: Database) -> None:
    """Its rows share a key then, of which the lake can have one: cuts were called exact."""
    database.execute("""
        CREATE TYPE pair AS (a int, b int); CREATE TABLE t (p pair PRIMARY KEY);
        INSERT INTO t VALUES ((1, 1)), ((1, 2))""")
    source = source_of(database)
    source.prepare()
    assert set(source.check_catalog().tables) == {TABLE}
    database.execute("ALTER TYPE pair ADD ATTRIBUTE c int")
    assert set(source.check_catalog().tables) == {TABLE}
    database.execute("ALTER TYPE pair DROP ATTRIBUTE b")
    seen = source.check_catalog()
    source.close()
    assert not seen.tables
    assert "has lost an attribute" in seen.unfit[TABLE].reason


@pytest.mark.parametrize("type_", ["regproc", "regoper[]", "looked_up", "tsquery", "op", "calls"])
def test_a_table_is_unfit_if_values_of_its_key_have_the_same_text(type_: str, database: Database) -> None:
    """Of such rows, the lake had one: `abs(int)` and `abs(float8)` are both written `abs`."""
    database.execute(f"""
        CREATE DOMAIN looked_up AS tsquery; CREATE TYPE op AS (a int, b regoper[]);
        CREATE TYPE calls AS RANGE (subtype = regproc);
        CREATE TABLE t (id {type_} PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY, v {type_});
        CREATE TABLE w (id regprocedure PRIMARY KEY)""")
    source = source_of(database)
    source.prepare()
    seen, listed = source.check_catalog(), source.tables()
    source.close()
    assert {str(table) for table in seen.tables} == {"public.u", "public.w"}
    assert [problem.table for problem in listed.unfit] == [TABLE]  # though its type's name is known already
    assert "writes different values alike" in seen.unfit[TABLE].reason


@pytest.mark.parametrize("postgres", [17], indirect=True)  # with extensions
@pytest.mark.parametrize("type_", ["seg", "issn", "measured", "issn[]"])
def test_a_table_is_unfit_if_an_extension_writes_values_of_its_key_alike(
    type_: str, database: Database
) -> None:
    """`seg` writes six digits of the seven that it keeps, and `issn` leaves out the number of the issue."""
    database.execute(f"""
        CREATE EXTENSION seg; CREATE SCHEMA numbers; CREATE EXTENSION isn SCHEMA numbers;
        SET search_path = public, numbers;
        CREATE DOMAIN measured AS seg; CREATE TABLE t (id {type_} PRIMARY KEY);
        CREATE TABLE u (id int PRIMARY KEY, v {type_}); CREATE TABLE w (id issn13 PRIMARY KEY)""")
    source = source_of(database)
    source.prepare()
    seen = source.check_catalog()
    source.close()
    assert {str(table) for table in seen.tables} == {"public.u", "public.w"}
    assert "writes different values alike" in seen.unfit[TABLE].reason
