"""What `check` finds on a server and a role that are not fit, and how failures to connect are told."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from connector.demo.postgres_server import PostgresServer, find_bin_dirs
from connector.errors import ConfigurationError, DeltatideError, PreconditionError, TransientError
from connector.postgres.connection import connect
from connector.postgres.source import PostgresSource
from connector.source import Finding
from tests.databases import Database, postgres_versions
from tests.integration.postgres_source import events as events_of
from tests.integration.postgres_source import following, ops, read_rows, source_of


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
    source = source_of(database)
    assert all(finding.state == "ok" for finding in source.check())
    source.prepare()
    source.begin_history(fresh=False)
    assert all(finding.state == "ok" for finding in source.check())
    assert [schema.key for schema in source.tables()] == [("id",), ("id",)]
    source.close()


def test_every_table_that_is_not_fit_is_found_at_once_with_what_mends_it(database: Database) -> None:
    database.execute(
        "CREATE TABLE nokey (a int); CREATE TABLE hidden (id int PRIMARY KEY);"
        "ALTER TABLE hidden REPLICA IDENTITY NOTHING; CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);"
        "CREATE TABLE configured (a int, b int); ALTER TABLE configured REPLICA IDENTITY FULL;"
        "CREATE TABLE good (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1"
    )
    found = bad(source_of(database, ["public.*", "public.missing"], {"public.configured": ["a"]}))
    assert 'key in [tables."public.nokey"]' in (only(found, "public.nokey").mend or "")
    assert only(found, "replica identity of public.hidden").mend == (
        'ALTER TABLE "public"."hidden" REPLICA IDENTITY DEFAULT;'
    )
    assert (
        only(found, "public.unlogged").mend
        == 'ALTER TABLE "public"."unlogged" SET LOGGED; or add it to source.exclude'
    )
    assert (
        only(found, "public.configured").mend == 'ALTER TABLE "public"."configured" ALTER "a" SET NOT NULL;'
    )
    assert "no table matches" in only(found, "tables public.missing").detail
    assert not [text for text in found if "public.good" in text]
    database.execute(only(found, "public.configured").mend or "")
    again = only(bad(source_of(database, keys={"public.configured": ["a"]})), "public.configured")
    database.execute(again.mend or "")
    assert not [t for t in bad(source_of(database, keys={"public.configured": ["a"]})) if "configured" in t]


def test_a_publication_that_carries_less_is_found_and_mended_by_the_sql_given(database: Database) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE PUBLICATION it FOR TABLE t (id), p WITH (publish = 'insert')"
    )
    found = bad(source_of(database))
    assert len(found) == 3
    for finding in found.values():
        database.execute(finding.mend or "")
    assert bad(source_of(database)) == {}
    source = source_of(database)
    with following(source) as log:
        database.execute("INSERT INTO p VALUES (1); INSERT INTO t VALUES (1, 2)")
        assert len(ops(events_of(read_rows(log, 2)), "id")) == 2


def test_a_role_without_rights_is_told_each_grant(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)"
    )
    role = f"r_{database.name}"[:60]
    database.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'pw'")
    url = database.server.url(user=role, password="pw", database=database.name)
    try:
        found = bad(source_of(database, ["public.t", "s.t"], url=url))
        assert only(found, "no REPLICATION").mend == f'ALTER ROLE "{role}" REPLICATION;'
        assert only(found, "table public.t").mend == f'GRANT SELECT ON "public"."t" TO "{role}";'
        assert (only(found, "table s.t").mend or "").startswith('GRANT USAGE ON SCHEMA "s"')
        assert (only(found, "may not create it").mend or "").startswith('CREATE PUBLICATION "it" FOR TABLE')
        with pytest.raises(PreconditionError, match=r"(?i)superuser|permission denied|replication"):
            connect(url, "test", replication=True)
        for finding in found.values():
            database.execute(finding.mend or "")
        source = source_of(database, ["public.t", "s.t"], url=url)
        assert bad(source) == {}
        with following(source) as log:
            database.execute("INSERT INTO s.t VALUES (1)")
            assert ops(events_of(read_rows(log, 1)), "id") == [("insert", 1)]
    finally:
        database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_slot_that_is_somebody_elses_is_refused(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("SELECT pg_create_physical_replication_slot(%s)", (database.name,))
    try:
        assert "physical" in only(bad(source_of(database)), "slot").detail
        with pytest.raises(PreconditionError, match="physical"):
            source_of(database).begin_history(fresh=True)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))


def test_a_server_without_logical_log_and_without_room_is_found(servers_folder: Path) -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"}
    folder = servers_folder / "unfit"
    with PostgresServer.start(folder, bin_dir=find_bin_dirs()[15], settings=settings) as server:
        found = bad(source_of(Database(server, "postgres")))
    assert only(found, "wal_level").mend == "ALTER SYSTEM SET wal_level = logical; then restart the server"
    assert "max_replication_slots = 4" in (only(found, "max_replication_slots: 0 of 0").mend or "")
    assert "max_wal_senders = 4" in (only(found, "max_wal_senders: 0 of 0").mend or "")
    assert "no table matches" in only(found, "tables public.*").detail


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


def test_tables_are_found_by_patterns_and_refused_without_a_key(database: Database) -> None:
    database.execute(
        "CREATE SCHEMA s; CREATE TABLE s.orders (id int PRIMARY KEY);"
        "CREATE TABLE s.order_items (id int PRIMARY KEY);"
        'CREATE TABLE "s"."Odd.name" (id int PRIMARY KEY); CREATE TABLE t (id int)'
    )
    source = source_of(database, ["s.order*"])
    assert [str(schema.table) for schema in source.tables()] == ["s.order_items", "s.orders"]
    source.close()
    source = source_of(database, ["s.*"])
    assert 's."Odd.name"' in [str(schema.table) for schema in source.tables()]
    source.close()
    source = source_of(database)
    with pytest.raises(PreconditionError, match=r"public\.t: it has no primary key"):
        source.tables()
    source.close()
