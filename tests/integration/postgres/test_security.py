"""The least-privilege role of conf/security/postgres.sql, and verified TLS, on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from connector.demo.servers.postgres import PostgresServer, find_bin_dirs
from connector.demo.servers.server_user import ServerUser
from connector.errors import DeltatideError, OperatorError, PreconditionError, RequestError
from connector.postgres.connection import connect
from connector.postgres.load_gauge import PostgresGauge
from connector.postgres.source import PostgresSource
from connector.schema import TableName
from connector.source import Finding, KeyRange
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.servers.certificates import Authority
from tests.support.servers.postgres import Database, fresh_database
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import chunk_rows, events, following, ops, read_rows
from tests.support.source.security import script

ROLE = "agent"
T = TableName("public", "t")


@dataclass(frozen=True)
class Secured:
    """A server whose certificate for localhost `authority` has signed."""

    server: PostgresServer
    authority: Authority


@pytest.fixture(scope="module")
def secured(servers_folder: Path) -> Iterator[Secured]:
    folder = servers_folder / "secured-postgres"
    folder.mkdir()
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("localhost")
    key.chmod(0o600)
    ServerUser.choose("postgres").own(key)
    settings = {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
    for version, bin_dir in find_bin_dirs().items():
        try:
            server = PostgresServer.start(folder / str(version), bin_dir=bin_dir, settings=settings)
        except OperatorError:
            continue
        with server:
            yield Secured(server, authority)
        return
    pytest.skip("no PostgreSQL here was built with TLS")


@pytest.fixture
def shop(secured: Secured) -> Iterator[Database]:
    """A database from which all rights that everybody has are taken, with the agent's role."""
    with fresh_database(secured.server, "shop") as database:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); INSERT INTO orders VALUES (1, 'a'), (2, 'b');"
            "CREATE TABLE days (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);"
            "CREATE TABLE day1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');"
            "INSERT INTO days VALUES ('2026-01-01', 1); CREATE TABLE keyless (v text);"
            "REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE ALL ON DATABASE shop FROM PUBLIC"
        )
        for statement in script("postgres.sql", {"deltatide": ROLE}):
            database.execute(statement)
        database.execute(f"ALTER ROLE {ROLE} PASSWORD 'secret'")
        try:
            yield database
        finally:
            database.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


def url_of(secured: Secured, host: str = "localhost", **tls: str) -> str:
    settings = {"sslmode": "verify-full", "sslrootcert": str(secured.authority.certificate), **tls}
    plain = secured.server.url(user=ROLE, password="secret", database="shop")
    return f"{plain.replace('127.0.0.1', host)}?{urlencode(settings)}"


def source_at(database: Database, url: str) -> PostgresSource:
    return source_of(database, exclude=["public.keyless"], url=url, publication="deltatide_shop")


def problems(database: Database, url: str) -> list[Finding]:
    """What `check` finds that is not in order."""
    with closing(source_at(database, url)) as source:
        return [finding for finding in source.check() if finding.state != "ok"]


def test_the_role_captures_dumps_and_watches_and_owns_nothing(
    shop: Database, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(secured)
    assert problems(shop, url) == []
    captured = CapturedDatabase(
        shop, tmp_path, monkeypatch, url=url, tables=["public.*"], exclude=["public.keyless"]
    )
    with captured.running():
        captured.wait_settled()
        shop.execute("UPDATE orders SET v = 'c' WHERE id = 2; INSERT INTO days VALUES ('2026-01-01', 2)")
        shop.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (7)")
        late = captured.wait_settled().tables[TableName("public", "late")]
        assert late.state == "quarantined"
        fix = (late.hint or "").partition(";")[0]
        assert fix == 'ALTER PUBLICATION "deltatide_shop" ADD TABLE ONLY "public"."late"'
        shop.execute(fix)
        captured.dump([TableName("public", "late")])
    landed = landed_tables(captured.store)
    assert {table.name: len(landed[table].events) for table in landed} == {"orders": 2, "days": 2, "late": 1}
    with closing(PostgresGauge(captured.config.source)) as gauge:
        assert {"active_sessions", "slot_lag_mib"} <= gauge.measure().keys()
    owned = f"SELECT 1 FROM pg_shdepend WHERE deptype = 'o' AND refobjid = '{ROLE}'::regrole"
    assert shop.execute(owned) == []
    assert problems(shop, url) == []


LOST: Mapping[str, str] = {
    f"ALTER ROLE {ROLE} NOREPLICATION": "replication",
    f"REVOKE USAGE ON SCHEMA public FROM {ROLE}": "table public.orders",
    f"REVOKE SELECT ON orders FROM {ROLE}": "table public.orders",
    f"REVOKE pg_read_all_stats FROM {ROLE}": "load",
    "ALTER PUBLICATION deltatide_shop DROP TABLE orders": "publication",
    "DROP PUBLICATION deltatide_shop": "publication",
}


def test_check_names_a_right_that_is_missing_and_the_statement_that_grants_it(
    shop: Database, secured: Secured
) -> None:
    url = url_of(secured)
    for statement, name in LOST.items():
        shop.execute(statement)
        found = problems(shop, url)
        assert name in {finding.name for finding in found}, statement
        shop.execute("; ".join({finding.fix or "" for finding in found}))
        assert problems(shop, url) == [], statement
    shop.execute(f"REVOKE CONNECT ON DATABASE shop FROM {ROLE}")
    with pytest.raises(PreconditionError, match="permission denied for database") as refused:
        connect(url, "test")
    shop.execute(refused.value.hint or "")
    connect(url, "test").close()


REFUSING = """
    CREATE TABLE nothing (id int PRIMARY KEY, v int); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
    CREATE TABLE indexed (id int PRIMARY KEY, v int NOT NULL UNIQUE);
    ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_v_key;
    ALTER TABLE indexed DROP CONSTRAINT indexed_v_key;
    CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
    CREATE TABLE part PARTITION OF parted DEFAULT; ALTER TABLE part REPLICA IDENTITY NOTHING;
    CREATE TABLE whole (id int PRIMARY KEY, v int); ALTER TABLE whole REPLICA IDENTITY FULL"""


def test_the_script_publishes_no_table_that_would_refuse_its_updates(database: Database) -> None:
    database.execute(REFUSING)
    names = ("nothing", "indexed", "parted", "whole")
    database.execute("".join(f"INSERT INTO {name} VALUES (1, 1);" for name in names))
    *_, publishing = script("postgres.sql", {})
    database.execute(publishing)
    database.execute("".join(f"UPDATE {name} SET v = 2;" for name in names))
    published = "SELECT relname::text FROM pg_publication_rel JOIN pg_class c ON c.oid = prrelid"
    assert database.execute(published) == [("whole",)]


def test_log_and_dump_are_read_over_verified_tls(shop: Database, secured: Secured) -> None:
    source = source_at(shop, url_of(secured))
    with following(source) as log:
        with closing(source.open_tables()) as tables:
            assert len(chunk_rows(tables, "public.orders")) == 2
            for secret in ("pg_authid", "pg_statistic"):
                with pytest.raises(RequestError, match="permission denied"):
                    chunk_rows(tables, "public.orders", where=f"(SELECT count(*) FROM {secret}) > 0")
            for others in ("pg_stat_activity", "days"):  # what the role may read is not for those who ask
                with pytest.raises(RequestError, match="subquery"):
                    chunk_rows(tables, "public.orders", where=f"(SELECT count(*) FROM {others}) > 0")
            shop.execute("INSERT INTO orders VALUES (3, 'c')")
            assert ops(events(read_rows(log, 1)), "id") == [("insert", 3)]
            sessions = shop.execute(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = %s", (ROLE,)
            )
    assert len(sessions) >= 3
    assert set(sessions) == {(True,)}


@pytest.mark.parametrize(
    ("change", "problem", "hint"),
    [
        ({"sslrootcert": "other.crt"}, "certificate verify failed", "sslrootcert"),
        ({"sslrootcert": "nowhere.crt"}, "nowhere.crt", "sslrootcert"),
        ({"host": "127.0.0.1"}, 'does not match host name "127.0.0.1"', "host name of the server"),
    ],
)
def test_a_server_that_is_not_the_one_meant_is_refused(
    change: Mapping[str, str], problem: str, hint: str, shop: Database, secured: Secured, tmp_path: Path
) -> None:
    Authority(tmp_path, "other")
    given = {
        name: str(tmp_path / value) if name == "sslrootcert" else value for name, value in change.items()
    }
    with pytest.raises(DeltatideError) as refused:
        connect(url_of(secured, **given), "test")
    assert isinstance(refused.value, PreconditionError), "no retry would help"
    assert problem in str(refused.value)
    assert hint in (refused.value.hint or "")
    assert "secret" not in str(refused.value)


def test_nobody_who_may_create_in_public_has_operators_run_as_the_agent(database: Database) -> None:
    """PostgreSQL's own need a cast where such an operator fits exactly, and would win."""
    database.execute("""
        CREATE FUNCTION planted(oid, regclass) RETURNS bool LANGUAGE plpgsql
            AS $$ BEGIN RAISE 'planted code runs'; END $$;
        CREATE OPERATOR = (leftarg = oid, rightarg = regclass, function = planted);
        CREATE FUNCTION planted(varchar, varchar) RETURNS bool LANGUAGE plpgsql
            AS $$ BEGIN RAISE 'planted code runs'; END $$;
        CREATE OPERATOR = (leftarg = varchar, rightarg = varchar, function = planted);
        CREATE OPERATOR > (leftarg = varchar, rightarg = varchar, function = planted);
        CREATE OPERATOR <= (leftarg = varchar, rightarg = varchar, function = planted);
        CREATE TABLE t (id varchar PRIMARY KEY, v int); INSERT INTO t VALUES ('1', 1), ('2', 2)""")
    source = source_of(database)
    with following(source) as log:
        with closing(source.open_tables()) as tables:
            for where in (None, "v IS NOT NULL"):
                assert tables.next_boundary(T, ["id"], ("0",), 1, where) == ("1",)
                assert [
                    row["v"] for row in chunk_rows(tables, "public.t", KeyRange(("0",), ("1",)), where)
                ] == [1]
            with tables.open_keys(T, [["2"]]) as chunk:
                assert [some.columns[1].to_pylist() for some in chunk.rows()] == [[2]]
            with pytest.raises(RequestError, match="raise exception"):  # as any condition may
                chunk_rows(tables, "public.t", where="id = v::varchar")
        database.execute("INSERT INTO t VALUES ('3')")
        assert ops(events(read_rows(log, 1)), "id") == [("insert", "3")]
    database.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert not _schemas_of(source)
    database.execute("""
        CREATE SCHEMA ext; GRANT CREATE ON SCHEMA public, ext TO PUBLIC; CREATE TYPE mood AS ENUM ('ok');
        CREATE OPERATOR CLASS ext.moods DEFAULT FOR TYPE mood USING btree
            AS FUNCTION 1 (mood, mood) enum_cmp(anyenum, anyenum)""")
    found = _schemas_of(source)
    assert [(one.state, one.fix) for one in found] == [
        ("warning", f'REVOKE CREATE ON SCHEMA "{name}" FROM PUBLIC;') for name in ("ext", "public")
    ]
    database.execute("".join(one.fix or "" for one in found))
    assert not _schemas_of(source)


def _schemas_of(source: PostgresSource) -> list[Finding]:
    return [found for found in source.check() if found.name.startswith("schema ")]
