"""What `check` finds on a server and a role that are not fit, and how failures to connect are told."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from connector.demo.servers.postgres import PostgresServer, find_bin_dirs
from connector.errors import (
    ConfigurationError,
    DeltatideError,
    PreconditionError,
    TableError,
    TransientError,
)
from connector.postgres import publication
from connector.postgres.connection import connect
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import Finding
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source.postgres_source import Pooled, both_ways, source_of
from tests.support.source.reading import chunk_rows, following, opened, ops, read_rows
from tests.support.source.reading import events as events_of
from tests.support.waiting import wait_until


def bad(source: PostgresSource) -> dict[str, Finding]:
    """What failed, by name."""
    try:
        return {f"{f.name}: {f.detail}": f for f in source.check() if f.state == "failed"}
    finally:
        source.close()


def only(found: dict[str, Finding], part: str) -> Finding:
    """The one failure whose name or detail holds the part."""
    (match,) = [finding for text, finding in found.items() if part in text]
    return match


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_a_fit_database_passes_on_every_version(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int NOT NULL UNIQUE)")
    database.execute("ALTER TABLE u REPLICA IDENTITY USING INDEX u_id_key")
    database.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as it is since PostgreSQL 15
    source = source_of(database)
    assert all(finding.state == "ok" for finding in source.check())
    source.prepare()
    source.begin_log(fresh=False)
    assert all(finding.state == "ok" for finding in source.check())
    assert [schema.key for schema in source.tables().schemas] == [("id",), ("id",)]
    source.close()


def test_a_connection_pooler_is_warned_of(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, pooled, connect_to_server = (
        source_of(database),
        Pooled(database.connect()),
        PostgresSource._connect,
    )

    def connect_to_pooler(self: PostgresSource, replication: bool = False) -> Any:
        return connect_to_server(self, replication) if replication else pooled

    monkeypatch.setattr(PostgresSource, "_connect", connect_to_pooler)
    with contextlib.closing(pooled.connection):
        pooled.connection = database.connect()
        (found,) = (finding for finding in source.check() if finding.state != "ok")
    source.close()
    assert (found.name, found.state, found.fix) == ("session", "warning", "connect to the server directly")


def test_every_table_that_is_not_fit_is_found_at_once_with_what_fixes_it(database: Database) -> None:
    database.execute(
        "CREATE TABLE nokey (a int); CREATE TABLE hidden (id int PRIMARY KEY);"
        "ALTER TABLE hidden REPLICA IDENTITY NOTHING; CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);"
        "CREATE TABLE configured (a int, b int); ALTER TABLE configured REPLICA IDENTITY FULL;"
        "CREATE TABLE good (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1;"
        'CREATE SCHEMA other; CREATE TABLE other."a\nb" (id int PRIMARY KEY) PARTITION BY LIST (id);'
        'CREATE TABLE other.leaf PARTITION OF other."a\nb" DEFAULT'
    )
    found = bad(source_of(database, ["public.*", "public.missing"], {"public.configured": ["a"]}))
    assert 'key in [tables."public.nokey"]' in (only(found, "public.nokey").fix or "")
    assert only(found, "replica identity of public.hidden").fix == (
        'ALTER TABLE "public"."hidden" REPLICA IDENTITY DEFAULT;'
    )
    assert (
        only(found, "public.unlogged").fix
        == 'ALTER TABLE "public"."unlogged" SET LOGGED; or add it to source.exclude'
    )
    assert only(found, "public.configured").fix == 'CREATE UNIQUE INDEX ON "public"."configured" ("a");'
    assert "no table matches" in only(found, "tables public.missing").detail
    assert not [text for text in found if "public.good" in text]
    database.execute(only(found, "public.configured").fix or "")
    again = only(bad(source_of(database, keys={"public.configured": ["a"]})), "public.configured")
    database.execute(again.fix or "")
    assert not [t for t in bad(source_of(database, keys={"public.configured": ["a"]})) if "configured" in t]


def test_a_publication_that_carries_less_is_found_and_fixed_by_the_sql_given(database: Database) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE PUBLICATION it FOR TABLE t (id), p WITH (publish = 'insert')"
    )
    role = f"p_{database.name}"[:60]
    database.execute(
        f'CREATE ROLE "{role}" LOGIN REPLICATION PASSWORD \'pw\'; GRANT SELECT ON p, t TO "{role}"'
    )
    try:
        ours = source_of(database)
        assert [f.state for f in ours.check() if f.name == "publication"] == ["warning"] * 3, "we may fix it"
        ours.close()
        url = database.server.url(user=role, password="pw", database=database.name)
        found = bad(source_of(database, exclude=["public.p1"], url=url))
        assert len(found) == 3
        with pytest.raises(PreconditionError, match="publish every kind of change") as refused:
            source_of(database, url=url).prepare()
        assert "ALTER PUBLICATION" in (refused.value.hint or "")
        for finding in found.values():
            database.execute(finding.fix or "")
        assert bad(source_of(database, exclude=["public.p1"], url=url)) == {}
    finally:
        database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')
    source = source_of(database)
    with following(source) as log:
        database.execute("INSERT INTO p VALUES (1); INSERT INTO t VALUES (1, 2)")
        assert len(ops(events_of(read_rows(log, 2)), "id")) == 2


def test_a_table_whose_schema_is_renamed_during_a_check_is_not_unfit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
    source, find = source_of(database, ["s.*"]), publication.find_publication
    source.prepare()

    def find_after_rename(*args: Any) -> Any:
        database.execute("ALTER SCHEMA s RENAME TO away")
        return find(*args)

    monkeypatch.setattr(publication, "find_publication", find_after_rename)
    assert bad(source) == {}


def test_what_a_publication_of_others_lacks_of_one_table_keeps_no_other_from_being_captured(
    database: Database,
) -> None:
    database.execute(
        "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE absent (id int PRIMARY KEY);"
        "CREATE TABLE part (id int PRIMARY KEY, v int);"
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9); CREATE PUBLICATION it FOR TABLE good, p;"
    )
    if database.server.version >= "15":
        database.execute("ALTER PUBLICATION it ADD TABLE part (id)")
    role = f"q_{database.name}"[:60]
    database.execute(f"CREATE ROLE \"{role}\" LOGIN REPLICATION PASSWORD 'pw'")
    try:
        database.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"')
        source = source_of(
            database, url=database.server.url(user=role, password="pw", database=database.name)
        )
        found = [f for f in source.check() if f.state == "failed"]
        source.prepare()
        unfit = source.check_catalog().unfit
        assert (
            {f.table for f in found}
            == set(unfit)
            == {TableName("public", n) for n in ("absent", "part", "p")}
        )
        for finding in found:
            assert unfit[finding.table].hint.startswith(finding.fix or "?")
            database.execute(finding.fix or "")
        assert [f for f in source.check() if f.state == "failed"] == []
        assert source.check_catalog().unfit == {}
        source.close()
    finally:
        database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_second_connection_that_cannot_be_had_now_is_waited_for_unless_something_else_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    for tables, waits in (["public.*"], True), (["public.missing"], False):
        source = source_of(database, tables)
        source.identity()  # connected
        connect_now = source._connect
        monkeypatch.setattr(source, "_connect", partial(_refused, connect_now))
        if waits:
            with pytest.raises(TransientError, match="starting up"):
                source.check()
        else:
            assert {f.detail for f in source.check() if f.state == "failed"} == {
                "no table matches", "it is starting up",
            }  # fmt: skip
        source.close()


def _refused(connect_now: Callable[[], Any], replication: bool = False) -> Any:
    if replication:
        raise TransientError("it is starting up")
    return connect_now()


KEYS = """
    CREATE TABLE late (id int PRIMARY KEY DEFERRABLE); CREATE TABLE late_full (id int PRIMARY KEY DEFERRABLE);
    ALTER TABLE late_full REPLICA IDENTITY FULL;
    CREATE TABLE chosen (id int NOT NULL UNIQUE DEFERRABLE); ALTER TABLE chosen REPLICA IDENTITY FULL;
    CREATE TABLE ours (id int PRIMARY KEY, "_Cdc" int);
    CREATE TYPE pair AS (a int, b int); CREATE DOMAIN pairs AS pair[];
    CREATE TABLE paired (id int, p pairs, PRIMARY KEY (id, p));
    CREATE TABLE unkeyed (id int PRIMARY KEY, p pair);
    ALTER TYPE pair DROP ATTRIBUTE b;
    CREATE TABLE merged (id int PRIMARY KEY, "_cdc.holds" int);
    CREATE TABLE twice (id int PRIMARY KEY, a int, "A" int);
    CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE UNLOGGED TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9);
    CREATE FUNCTION other_handler(internal) RETURNS table_am_handler
        LANGUAGE internal AS 'heap_tableam_handler';
    CREATE ACCESS METHOD other TYPE TABLE HANDLER other_handler;
    CREATE TABLE stored (id int PRIMARY KEY) USING other;
    CREATE TABLE mixed (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE mixed_1 PARTITION OF mixed FOR VALUES FROM (0) TO (9);
    CREATE TABLE mixed_2 PARTITION OF mixed FOR VALUES FROM (10) TO (19) USING other;
    CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id); ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE whole_1 PARTITION OF whole FOR VALUES FROM (0) TO (9);
    CREATE TABLE folded (tenant int, email text NOT NULL, f text GENERATED ALWAYS AS (lower(email)) STORED,
                         PRIMARY KEY (tenant, f));
    CREATE TABLE by_index (tenant int NOT NULL, f int NOT NULL GENERATED ALWAYS AS (tenant * 2) STORED,
                           id int PRIMARY KEY, UNIQUE (tenant, f));
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_tenant_f_key;
    CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE r_1 (id int PRIMARY KEY DEFERRABLE);
    ALTER TABLE r ATTACH PARTITION r_1 FOR VALUES FROM (0) TO (9)"""

FIXED = """
    CREATE TYPE single AS (a int);
    ALTER TABLE paired ALTER p TYPE single[] USING ARRAY[ROW((p[1]).a)::single];
    ALTER TABLE ours RENAME "_Cdc" TO cdc; ALTER TABLE merged RENAME "_cdc.holds" TO holds;
    ALTER TABLE twice RENAME "A" TO b;
    CREATE UNIQUE INDEX unfolded ON folded (tenant, email);
    ALTER TABLE folded REPLICA IDENTITY USING INDEX unfolded; ALTER TABLE by_index REPLICA IDENTITY DEFAULT;
    ALTER TABLE r DETACH PARTITION r_1; ALTER TABLE r_1 DROP CONSTRAINT r_1_pkey, ADD PRIMARY KEY (id);
    ALTER TABLE r ATTACH PARTITION r_1 FOR VALUES FROM (0) TO (9)"""


def test_check_and_the_running_agent_find_the_same_tables_unfit_and_the_sql_given_fixes_them(
    database: Database,
) -> None:
    database.execute(KEYS)
    tables = {"public.chosen": ["id"]}
    source = source_of(database, keys=tables)
    found = bad(source)
    source.prepare()
    seen = source.check_catalog()
    source.close()
    names = "late late_full chosen ours merged paired twice parts stored mixed whole folded by_index r"
    assert set(seen.unfit) == {TableName("public", n) for n in names.split()}
    assert set(seen.tables) == {TableName("public", "unkeyed")}
    for table, unfit in seen.unfit.items():
        finding = only(found, f"table {table}:")
        assert (finding.detail, finding.fix) == (unfit.reason, unfit.hint)
        if "anew" in unfit.hint:
            assert "the type pairs of its key column p" in unfit.reason.replace("public.", "")
        elif "SET ACCESS METHOD" in unfit.hint:
            database.execute(unfit.hint.partition(" or add ")[0])
        elif "rename" not in unfit.hint and "generated" not in unfit.hint and "DETACH" not in unfit.hint:
            database.execute(unfit.hint)
    database.execute(FIXED)
    tables["public.folded"] = ["tenant", "email"]
    assert not [text for text in bad(source_of(database, keys=tables)) if "publication" not in text]


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_the_hint_for_a_table_of_another_access_method_is_one_that_the_release_has(
    database: Database,
) -> None:
    """Before release 15, no statement moves a table to another access method."""
    database.execute("""
        CREATE FUNCTION other_handler(internal) RETURNS table_am_handler
            LANGUAGE internal AS 'heap_tableam_handler';
        CREATE ACCESS METHOD other TYPE TABLE HANDLER other_handler;
        CREATE TABLE t (id int PRIMARY KEY) USING other""")
    hint = only(bad(source_of(database)), "table public.t:").fix or ""
    statement, sql, _ = hint.partition(";")
    if database.server.version.startswith("14"):
        assert "created with USING heap" in hint
        created = "CREATE TABLE u (LIKE t INCLUDING ALL) USING heap"
        statement = f"{created}; DROP TABLE t; ALTER TABLE u RENAME TO t"
    else:
        assert sql
    database.execute(statement)
    assert not [text for text in bad(source_of(database)) if "publication" not in text]


def test_a_column_that_holds_the_id_of_another_object_is_warned_of(database: Database) -> None:
    database.execute(
        "CREATE TYPE region AS ENUM ('eu'); CREATE DOMAIN relation AS regclass;"
        "CREATE TYPE granted AS (number int, rights aclitem[]);"
        "CREATE TABLE t (id int PRIMARY KEY, c regclass, a regrole[], r region, d relation, p granted[])"
    )
    (found,) = [f for f in source_of(database).check() if f.state == "warning" and f.table is not None]
    assert found.detail.startswith("c (regclass), a (regrole[]), d (public.relation), p (public.granted[]): ")


def test_tables_that_inherit_from_a_captured_one_and_are_not_captured_are_warned_of(
    database: Database,
) -> None:
    """A hypertable has all of its rows in such tables."""
    database.execute(
        "CREATE SCHEMA internal; CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE TABLE internal.aside () INHERITS (t); CREATE TABLE own (PRIMARY KEY (id)) INHERITS (t);"
        "CREATE TABLE internal.below (PRIMARY KEY (id)) INHERITS (own);"
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE internal.part PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE internal.chunk_1 (PRIMARY KEY (id)) INHERITS (internal.aside);"
        + "".join(f"CREATE TABLE internal.chunk_{n} (PRIMARY KEY (id)) INHERITS (t);" for n in range(2, 5))
    )

    def warned(tables: list[str], *exclude: str) -> dict[str, str]:
        found = source_of(database, tables=tables, exclude=list(exclude)).check()
        assert [f for f in found if f.state == "failed"] == []
        return {
            str(f.table): f.detail.partition("not captured: ")[2]
            for f in found
            if f.state == "warning" and f.table and "source.exclude" in (f.fix or "")
        }

    below = {"public.own": "internal.below"}
    assert warned(["public.*"]) == {
        "public.t": "internal.aside, internal.chunk_1, internal.chunk_2, 2 more",
        **below,
    }
    assert warned(["public.*", "internal.chunk*"]) == {"public.t": "internal.aside", **below}
    assert warned(["public.*", "internal.chunk*", "internal.below"], "internal.aside") == {}
    only_chunks = "internal.chunk_1, internal.chunk_2, internal.chunk_3, 1 more"
    assert warned(["public.*"], "internal.aside", "internal.below") == {"public.t": only_chunks}


def test_a_key_column_that_is_masked_is_warned_of_before_anything_lands(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE TABLE u (id int PRIMARY KEY)")
    settings = {"public.t": {"mask": {"ID": "null"}}, "public.u": {"columns": ["id"]}}
    (found,) = [f for f in source_of(database, settings=settings).check() if f.table is not None]
    assert (found.state, found.fix) == ("warning", 'change [tables."public.t"] in the configuration')
    assert found.detail.startswith("merges will refuse it: column 'id' is in the key")


def test_row_security_is_refused_by_check_and_by_a_dump_instead_of_hiding_rows(database: Database) -> None:
    role = f"s_{database.name}"[:60]
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);"
        "CREATE TABLE o (id int PRIMARY KEY);"
        f'CREATE ROLE "{role}" LOGIN REPLICATION PASSWORD \'pw\'; GRANT SELECT ON t TO "{role}";'
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY a_few ON t USING (id = 1);"
        f'ALTER TABLE o OWNER TO "{role}"; ALTER TABLE o ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;'
        "CREATE PUBLICATION it FOR TABLE t, o"
    )
    url = database.server.url(user=role, password="pw", database=database.name)
    try:
        found = bad(source_of(database, url=url))
        assert only(found, "public.t: row security").fix == f'ALTER ROLE "{role}" BYPASSRLS;'
        assert "NO FORCE ROW LEVEL SECURITY" in (only(found, "public.o: row security").fix or "")
        source = source_of(database, url=url)
        with following(source), pytest.raises(TableError, match="row-level security") as refused:
            chunk_rows(source.open_tables(), "public.t")
        assert f'ALTER ROLE "{role}" BYPASSRLS;' in (refused.value.hint or "")
        database.execute(f'ALTER ROLE "{role}" BYPASSRLS')
        assert bad(source_of(database, url=url)) == {}
        with opened(source, source.begin_log(fresh=True)):
            assert [row["id"] for row in chunk_rows(source.open_tables(), "public.t")] == [1, 2]
    finally:
        database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_role_without_rights_is_shown_each_grant(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)"
    )
    role = f"r_{database.name}"[:60]
    database.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'pw'")
    url = database.server.url(user=role, password="pw", database=database.name)
    try:
        found = bad(source_of(database, ["public.t", "s.t"], url=url))
        assert only(found, "no REPLICATION").fix == f'ALTER ROLE "{role}" REPLICATION;'
        assert only(found, "table public.t").fix == f'GRANT SELECT ON "public"."t" TO "{role}";'
        assert (only(found, "table s.t").fix or "").startswith('GRANT USAGE ON SCHEMA "s"')
        assert (only(found, "may not create it").fix or "").startswith('CREATE PUBLICATION "it" FOR TABLE')
        with pytest.raises(PreconditionError, match=r"(?i)superuser|permission denied|replication"):
            connect(url, "test", replication=True)
        for finding in found.values():
            database.execute(finding.fix or "")
        source = source_of(database, ["public.t", "s.t"], url=url)
        assert bad(source) == {}
        with following(source) as log:
            database.execute("INSERT INTO s.t VALUES (1)")
            assert ops(events_of(read_rows(log, 1)), "id") == [("insert", 1)]
    finally:
        database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_server_that_may_take_the_agent_for_a_synchronous_standby_is_warned_of(database: Database) -> None:
    with contextlib.closing(source_of(database)) as source:

        def warned() -> bool:
            return any(f.name == "synchronous_standby_names" for f in source.check())

        assert not warned()
        database.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        try:
            database.execute("SELECT pg_reload_conf()")
            wait_until(warned, "the setting is seen")
        finally:
            database.execute("ALTER SYSTEM RESET synchronous_standby_names")
            database.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("create", "why"),
    [
        ("pg_create_physical_replication_slot(%s)", "physical"),
        ("pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", "two_phase"),
    ],
)
def test_a_slot_of_another_kind_is_refused(database: Database, create: str, why: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"SELECT {create}", (database.name,))
    try:
        assert why in only(bad(source_of(database)), "slot").detail
        with pytest.raises(PreconditionError, match=why):
            source_of(database).begin_log(fresh=True)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))


def test_a_server_without_logical_log_and_without_room_is_found(servers_folder: Path) -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"}
    folder = servers_folder / "unfit"
    with PostgresServer.start(folder, bin_dir=find_bin_dirs()[15], settings=settings) as server:
        found = bad(source_of(Database(server, "postgres")))
    assert only(found, "wal_level").fix == "ALTER SYSTEM SET wal_level = logical; then restart the server"
    assert "max_replication_slots = 4" in (only(found, "max_replication_slots: 0 of 0").fix or "")
    assert "max_wal_senders = 4" in (only(found, "max_wal_senders: 0 of 0").fix or "")
    assert "no table matches" in only(found, "tables public.*").detail


@both_ways
def test_what_psycopg2_alone_needs_besides_is_asked_for_only_then(
    database: Database, servers_folder: Path, way: str
) -> None:
    folder, role = servers_folder / "one_slot", "reader"
    settings = {"max_replication_slots": "1"}
    with PostgresServer.start(folder, bin_dir=find_bin_dirs()[15], settings=settings) as server:
        own = Database(server, "postgres")
        own.execute(
            "CREATE TABLE t (id int PRIMARY KEY); REVOKE USAGE ON LANGUAGE plpgsql FROM public;"
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'pw'; GRANT SELECT ON t TO {role};"
            "CREATE PUBLICATION it FOR TABLE t"
        )
        url = server.url(user=role, password="pw", database=own.name)
        found = [bad(source_of(own, url=url))]
        own.execute("DROP EXTENSION plpgsql")
        found.append(bad(source_of(own, url=url)))
    shutil.rmtree(folder)
    needed = {
        'GRANT USAGE ON LANGUAGE plpgsql TO "reader";',
        "CREATE EXTENSION plpgsql;",
        "ALTER SYSTEM SET max_replication_slots = 5; then restart the server",
    }
    assert {f.fix for some in found for f in some.values()} == (needed if way == "psycopg2" else set())


@both_ways
def test_a_running_agents_own_slots_are_not_those_of_others(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(database)
    with following(source):
        (found,) = [f for f in source.check() if f.name == "max_replication_slots"]
        ((others,),) = database.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database <> current_database()"
        )
        assert found.detail.startswith(f"{others} of ")


def failure(url: str) -> DeltatideError:
    """The error of connecting."""
    with pytest.raises(DeltatideError) as raised:
        connect(url, "test")
    assert "\n" not in str(raised.value)
    return raised.value


def test_failures_to_connect_say_what_to_do_and_never_the_password(postgres: PostgresServer) -> None:
    secret = quote("s3cret-of-mine", safe="")
    wrong = failure(postgres.url(password="s3cret-of-mine"))
    assert isinstance(wrong, PreconditionError)
    assert "password authentication failed" in str(wrong)
    assert wrong.hint == "check user and password in source.url"
    unknown = failure(postgres.url(database="nowhere"))
    assert isinstance(unknown, PreconditionError)
    assert 'database "nowhere" does not exist' in str(unknown)
    refused = failure(f"postgresql://u:{secret}@127.0.0.1:1/db")
    assert isinstance(refused, TransientError)
    assert "can't reach postgres at 127.0.0.1:1/db as u" in str(refused)
    nowhere = failure(f"postgresql://u:{secret}@no-such-host.invalid/db")
    assert isinstance(nowhere, TransientError)
    assert "no-such-host.invalid" in str(nowhere)
    malformed = failure(f"postgresql://u:{secret}@[::1/db")
    assert isinstance(malformed, ConfigurationError)
    for error in (wrong, refused, nowhere, malformed):
        assert "s3cret" not in f"{error} {error.hint}"


def test_tables_are_found_by_patterns_and_unfit_without_a_key(database: Database) -> None:
    database.execute(
        "CREATE SCHEMA s; CREATE TABLE s.orders (id int PRIMARY KEY);"
        "CREATE TABLE s.order_items (id int PRIMARY KEY);"
        'CREATE TABLE "s"."Odd.name" (id int PRIMARY KEY); CREATE TABLE t (id int)'
    )
    source = source_of(database, ["s.order*"])
    assert [str(schema.table) for schema in source.tables().schemas] == ["s.order_items", "s.orders"]
    source.close()
    source = source_of(database, ["s.*"])
    assert 's."Odd.name"' in [str(schema.table) for schema in source.tables().schemas]
    source.close()
    source = source_of(database)
    (unfit,) = source.tables().unfit
    assert str(unfit) == "public.t: it has no primary key"
    assert unfit.hint == (
        'add a primary key, or set key in [tables."public.t"]; or, to capture only its changes from now on,'
        ' set shapes = ["changes"] there, and run: ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
    )
    source.close()
