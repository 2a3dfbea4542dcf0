"""Settings of role, database and environment: none of them changes what lands."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from connector.demo.servers.postgres import PostgresServer
from connector.postgres.connection import IGNORED_VARIABLES, all_rows, close, connect
from connector.postgres.log.reader import BULK_BYTES
from connector.schema import TableName
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.source.postgres_source import source_of
from tests.support.source.reading import chunk_rows, events, opened, read_rows

ROLE_SETTINGS = {
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Asia/Kathmandu'",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "escape_string_warning": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "gin_fuzzy_search_limit": "1",
    "client_encoding": "LATIN1",
    "client_min_messages": "debug5",
    "xmloption": "document",
    "xmlbinary": "hex",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "idle_session_timeout": "1",
}
DATABASE_SETTINGS = {
    "search_path": "nowhere",
    "exit_on_error": "on",
    "default_transaction_read_only": "on",
}
ENVIRONMENT = {
    "PGCLIENTENCODING": "LATIN1",
    "PGOPTIONS": "-c bytea_output=escape -c search_path=nowhere -c IntervalStyle=iso_8601",
    "PGDATESTYLE": "German",
    "PGTZ": "Asia/Tokyo",
    "PGGEQO": "off",
    "PGAPPNAME": "somebody else",
    "PGSERVICE": "nowhere",
    "PGHOST": "192.0.2.1",
    "PGHOSTADDR": "192.0.2.1",
    "PGPORT": "1",
    "PGUSER": "nobody",
    "PGDATABASE": "nowhere",
    "PGTARGETSESSIONATTRS": "standby",
}
WRITABLE = "BEGIN READ WRITE; SET LOCAL search_path = public; {}; COMMIT"
# Column: its type, the value's literal, the text or value that lands.
VALUES: dict[str, tuple[str, str, Any]] = {
    "day": ("date[]", "'{2026-01-02,infinity}'", "{2026-01-02,infinity}"),
    "span": ("interval", "'-1 year 2 days 03:04:05.6'", "-1 years +2 days 03:04:05.6"),
    "moments": ("tstzrange", "'[2026-01-02 03:04:05+00,)'", '["2026-01-02 03:04:05+00",)'),
    "at": ("timestamptz", "'2026-01-02 03:04:05.678901+05:45'", ...),
    "single": ("real", "0.1", ...),
    "double": ("double precision", "0.1::float8 + 0.2::float8", 0.30000000000000004),
    "point": ("point", "'(0.1,1e300)'", "(0.1,1e+300)"),
    "bytes": ("bytea", r"E'\\x005cff'", b"\x00\\\xff"),
    "byte_list": ("bytea[]", r"ARRAY[E'\\x00ff'::bytea, NULL]", r'{"\\x00ff",NULL}'),
    "cash": ("money", "12345.67", "$12,345.67"),
    "relation": ("regclass", """'other."Odd one"'""", 'other."Odd one"'),
    "near": ("regclass", "'public.t'", "public.t"),
    "type": ("regtype", "'integer'", "integer"),
    "word": ("text", "E'\\u00e9\\u20ac\\\\'", "é€\\"),
}


@pytest.fixture
def hostile(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The url, without its password, of a role of which everything that can be set is set."""
    role = f"hostile_{database.name}"[:60]
    database.execute(f"CREATE ROLE \"{role}\" SUPERUSER LOGIN PASSWORD 'secret word'")
    for name, value in ROLE_SETTINGS.items():
        database.execute(f'ALTER ROLE "{role}" SET {name} = {value}')
    for name, value in DATABASE_SETTINGS.items():
        database.execute(f'ALTER DATABASE "{database.name}" SET {name} = {value}')
    monkeypatch.setenv("PGPASSWORD", "secret word")
    yield f"postgresql://{quote(role)}@127.0.0.1:{database.port}/{database.name}"
    statements = f'REASSIGN OWNED BY "{role}" TO CURRENT_USER; DROP ROLE "{role}"'
    database.execute(WRITABLE.format(statements))


@contextlib.contextmanager
def hostile_environment() -> Iterator[None]:
    """What the agent finds in its environment; the test's own sessions must not."""
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name in ENVIRONMENT:
            os.environ.pop(name, None)


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_hostile_settings_of_role_database_and_environment_change_nothing(
    database: Database, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1)
    columns = ", ".join(f'"{name}" {type_}' for name, (type_, _, _) in VALUES.items())
    literals = ", ".join(literal for _, literal, _ in VALUES.values())
    tables = 'CREATE SCHEMA other; CREATE TABLE other."Odd one" ()'
    database.execute(WRITABLE.format(f"{tables}; CREATE TABLE public.t (id int PRIMARY KEY, {columns})"))
    assert ENVIRONMENT.keys() <= set(IGNORED_VARIABLES)
    found = []
    for number, bulk_bytes in enumerate((BULK_BYTES, 0)):
        source = source_of(database, ["public.t"], bulk_bytes=bulk_bytes, url=hostile)
        with hostile_environment():
            source.prepare()
            history = source.begin_log(fresh=True)
        database.execute(WRITABLE.format(f"INSERT INTO public.t VALUES ({number}, {literals})"))
        with hostile_environment(), opened(source, history) as log:
            (logged,) = events(read_rows(log, 1))
            chunks = source.open_tables()
            assert chunks.next_boundary(TableName("public", "t"), ["id"], None, 1, None) == ("0",)
            dumped = chunk_rows(chunks, "public.t")
            chunks.close()
        found += [logged, *dumped]
    rows = [{name: row[name] for name in VALUES} for row in found]
    assert rows == [rows[0]] * len(found)
    expected = {name: value for name, (_, _, value) in VALUES.items() if value is not ...}
    assert {name: rows[0][name] for name in expected} == expected
    assert rows[0]["at"].isoformat() == "2026-01-01T21:19:05.678901+00:00"


LOCALES = Path("/usr/share/i18n/locales")
CAN_MAKE_LOCALES = shutil.which("localedef") is not None and (LOCALES / "ja_JP").exists()


@pytest.mark.parametrize("postgres", [15], indirect=True)  # with LLVM
def test_the_server_compiles_no_query_of_the_catalog_however_expensive_it_looks(database: Database) -> None:
    """The more tables, the more: from 10,000 on, each lookup of a key took 90 ms instead of 2."""
    assert database.execute("SELECT pg_jit_available()") == [(True,)]
    database.execute(f'ALTER DATABASE "{database.name}" SET jit_above_cost = 0')
    connection = connect(database.url, "test")
    plan = all_rows(connection, "EXPLAIN (ANALYZE) SELECT count(*) FROM pg_class")
    close(connection)
    assert [line for (line,) in plan if line.startswith("JIT")] == []


@pytest.mark.skipif(not CAN_MAKE_LOCALES, reason="no localedef, or no definitions of locales")
def test_money_is_formatted_as_in_c_unless_its_decimals_are_the_locales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server stores the number of smallest units: read with other decimals, it is another amount."""
    with tempfile.TemporaryDirectory(prefix="deltatide-test-") as name:
        os.chmod(name, 0o755)
        for locale in ("de_DE", "ja_JP"):
            to = f"{name}/{locale}.UTF-8"
            subprocess.run(["localedef", "--no-archive", "-i", locale, "-f", "UTF-8", to], check=True)
        monkeypatch.setenv("LOCPATH", name)
        monkeypatch.setattr("connector.postgres.log.reader.CAUGHT_UP_BYTES", 1)
        with PostgresServer.start(Path(name) / "server") as server:
            database = Database(server, "postgres")
            database.execute("CREATE TABLE t (id int PRIMARY KEY, m money)")
            found = {}
            for locale in ("C", "de_DE.UTF-8", "ja_JP.UTF-8"):
                database.execute(f"ALTER DATABASE postgres SET lc_monetary = '{locale}'")
                found[locale] = money_from_log_and_dump(database)
    assert found == {
        "C": {"$1,234,567.00"},
        "de_DE.UTF-8": {"$1,234,567.00"},
        "ja_JP.UTF-8": {"￥1,234,567"},
    }


def money_from_log_and_dump(database: Database) -> set[str]:
    """Write one and the same amount; return its texts in log, streamed and in bulk, and dump."""
    texts = set()
    for bulk_bytes in (BULK_BYTES, 0):
        source = source_of(database, ["public.t"], bulk_bytes=bulk_bytes)
        source.prepare()
        with opened(source, source.begin_log(fresh=True)) as log:
            database.execute("DELETE FROM t; INSERT INTO t VALUES (1, 1234567::int8::money)")
            *_, logged = events(read_rows(log, 1))
            chunks = source.open_tables()
            texts |= {logged["m"], *(row["m"] for row in chunk_rows(chunks, "public.t"))}
            chunks.close()
    return texts
