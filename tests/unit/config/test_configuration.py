"""The configuration: what is accepted, and how its problems are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from connector.config import Config, LakeConfig, TableConfig, load
from connector.config.section import Section
from connector.errors import ConfigurationError
from connector.landing.manifest import DumpSettings
from connector.landing.requests import WantedSettings
from connector.schema import TableName

CONF = Path(__file__).parents[3] / "conf"

SOURCE = """
[source]
name = "shop"
kind = "postgres"
url = "postgresql://deltatide@db:5432/shop"
tables = ["public.*"]
"""
GOOD = SOURCE + '[landing]\nurl = "s3://bucket/landing"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.toml"


def loaded(file: Path, text: str, **environ: str) -> Config:
    file.write_text(text)
    return load(file, environ)


def problems(file: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(file, text, **environ)
    assert caught.value.exit_code == 2
    return [line.removeprefix(f"{file}: ") for line in str(caught.value).splitlines()]


def test_the_smallest_file_has_all_defaults(file: Path) -> None:
    config = loaded(file, GOOD)
    assert (config.source.slot, config.source.publication) == ("deltatide_shop", "deltatide_shop")
    assert (config.source.on_gap, config.lake, config.tables) == ("repair", None, {})
    assert (config.landing.flush_seconds, config.landing.flush_bytes) == (5.0, 32 << 20)
    assert (config.dump.chunk_rows, config.dump.workers, config.dump.delay_seconds) == (50_000, 2, 0.0)
    assert config.table(TableName("public", "orders")).deletes == "hard"


def test_changes_alone_need_no_key(file: Path) -> None:
    table = '[tables."public.orders"]\nshapes = ["changes"]\n'
    assert loaded(file, GOOD + table).table(TableName("public", "orders")).only_changes
    assert not loaded(file, GOOD).table(TableName("public", "orders")).only_changes
    (problem,) = problems(file, GOOD + table + 'key = ["id"]\n')
    assert problem.startswith('tables."public.orders": key has no use with shapes = ["changes"]')


def test_a_views_query_is_a_text_or_a_file_beside_the_configuration(file: Path) -> None:
    config = loaded(file, GOOD + '[views.a]\nsql = "SELECT 1"\n[views.b]\nfile = "sql/b.sql"\n')
    assert config.views["a"].query() == "SELECT 1"
    with pytest.raises(ConfigurationError, match=r"sql/b\.sql: no such file") as missing:
        config.views["b"].query()
    assert "one SELECT" in (missing.value.hint or "")
    (file.parent / "sql").mkdir()
    for content, said in [(b" \n", "is empty"), (b"\xff", "not utf-8")]:
        (file.parent / "sql/b.sql").write_bytes(content)
        with pytest.raises(ConfigurationError, match=said):
            config.views["b"].query()
    (file.parent / "sql/b.sql").write_text("SELECT 2 -- é", encoding="utf-8")
    assert config.views["b"].query() == "SELECT 2 -- é"


def test_every_problem_of_views_is_reported(file: Path) -> None:
    text = '[views."a b"]\nsql = "SELECT 1"\n[views._c]\nsqll = "x"\n[views.d]\n[views.e]\nsql = " "\n'
    both = '[views.f]\nsql = "SELECT 1"\nfile = "x"\n'
    name = "a view's name has up to 100 ASCII letters, digits and _, a letter first"
    assert problems(file, GOOD + text + both) == [
        f"views.a b: {name}",
        f"views._c: {name}",
        "views._c.sqll: unknown setting; did you mean sql?",
        "views.d: set either sql or file",
        "views.e: sql must not be empty",
        "views.f: set either sql or file",
    ]
    alike = '[views.a]\nsql = "SELECT 1"\n[views.A]\nsql = "SELECT 1"\n'
    assert problems(file, GOOD + alike) == ["views: A and a differ only by case"]


def test_shapes_lie_beside_the_current_rows(file: Path) -> None:
    table = '[tables."public.orders"]\nshapes = {}\n'
    config = loaded(file, GOOD + table.format('["changes", "current", "changes"]'))
    assert config.table(TableName("public", "orders")).shapes == ["changes", "current"]
    assert config.table(TableName("public", "items")).shapes == ["current"]
    setting = 'tables."public.orders".shapes'
    assert problems(file, GOOD + table.format('["changes", "history"]')) == [
        f'{setting}: must contain "current", or be ["changes"] alone'
    ]
    assert problems(file, GOOD + table.format('["current", "scd2"]')) == [
        f"{setting}[1]: 'scd2' is not supported; use 'current', 'history' or 'changes'"
    ]
    elsewhere = '[tables."sales.orders"]\nshapes = ["current", "changes"]\n'
    assert problems(file, GOOD + elsewhere) == [
        'tables."sales.orders": is not in source.tables, or is in source.exclude'
    ]


@pytest.mark.parametrize("example", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_complete(example: Path) -> None:
    environ = {"PGPASSWORD": "secret", "MYSQL_PWD": "secret"}
    config = load(example, environ)
    named = {word for line in example.read_text().splitlines() for word in line.lstrip("# ").split()[:1]}
    sections = (config.source, config.landing, config.dump, LakeConfig(url="x"), TableConfig())
    settings = {
        field.alias or name for section in sections for name, field in type(section).model_fields.items()
    }
    elsewhere = {"allow_partial_row_images"} if config.source.kind == "postgres" else set()
    assert settings - named == elsewhere


def test_every_problem_is_reported_at_once(file: Path) -> None:
    text = """
[source]
name = "Shop"
kind = "oracle"
url = "mysql://root@db/shop"
tables = ["public.*", "orders"]
[landing]
url = "ftp://bucket"
flush_seconds = "often"
flush_mib = 0
[dump]
workers = 2.5
[tables."public.orders"]
deletes = "never"
"""
    found = problems(file, text)
    settings = [line.partition(": ")[0] for line in found]
    assert settings == [
        "source.name",
        "source.kind",
        "source.url",
        "source.tables[1]",
        "landing.url",
        "landing.flush_seconds",
        "landing.flush_mib",
        "dump.workers",
        'tables."public.orders".deletes',
    ]
    assert "source.kind: 'oracle' is not supported; use 'postgres', 'mysql' or 'mariadb'" in found
    assert "dump.workers: must be a whole number" in found


def test_missing_settings_are_named(file: Path) -> None:
    assert problems(file, "[source]\n") == [
        "source.name: is missing",
        "source.kind: is missing",
        "source.url: is missing",
        "source.tables: is missing",
        "landing: is missing",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "flush_secnds = 3", "landing.flush_secnds: unknown setting; did you mean flush_seconds?"),
        (GOOD + "chunk_rows = 3", "landing.chunk_rows: unknown setting; it belongs in [dump]"),
        (GOOD + "[dmup]\nworkers = 1", "dmup: unknown section; did you mean dump?"),
        (
            GOOD + "[http]\nlisten = 'x'",
            "http: unknown section; known: source, landing, dump, limits, control, lake, merge, maintain,"
            " verify, tables, views",
        ),
        (
            GOOD + "[tables.'public.a']\nkeys = ['x']",
            'tables."public.a".keys: unknown setting; did you mean key?',
        ),
        (
            GOOD + "[lake]\ncatalog = 'x'\nschem = 'y'",
            "lake.schem: unknown setting; did you mean schema?",
        ),
    ],
)
def test_an_unknown_setting_is_reported_with_the_nearest(file: Path, text: str, problem: str) -> None:
    assert problem in problems(file, text)


SECTIONS = [section for section in Section.__subclasses__() if section is not Config]


@pytest.mark.parametrize("model", [*SECTIONS, DumpSettings, WantedSettings])
def test_every_number_has_bounds(model: type[BaseModel]) -> None:
    """A number of 400 digits is valid TOML and JSON, but no float."""
    settings = model.model_json_schema()["properties"].items()
    kinds = [(name, kind) for name, each in settings for kind in each.get("anyOf", [each])]
    numbers = [(name, kind) for name, kind in kinds if kind.get("type") in ("number", "integer")]
    assert [name for name, kind in numbers if not {"minimum", "maximum"} <= kind.keys()] == []


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("[source]\nname = shop\n", "line 2, column 8"),
        ("[source\n", "line 1, column 8"),
        ('[source]\nname = """shop\n', "line 2, column"),
    ],
)
def test_malformed_toml_is_reported_with_its_position(file: Path, text: str, position: str) -> None:
    (found,) = problems(file, text)
    assert found.startswith("malformed TOML: ")
    assert position in found


def test_a_secret_in_a_file_that_no_file_can_be_is_a_problem(file: Path) -> None:
    found = problems(file, GOOD.replace("deltatide@", "deltatide:${file:/a\\u0000b}@"))
    assert [line.partition(": ")[0] for line in found] == ["source.url"]


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000], ids=["nested", "digits"])
def test_what_the_parser_gives_up_on_is_a_problem_of_the_file(file: Path, value: str) -> None:
    """A running agent that reloads it goes on."""
    (found,) = problems(file, f"[dump]\nworkers = {value}\n")
    assert found.startswith("can't be read: ")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: no such file") as caught:
        load(tmp_path / "none.toml")
    assert "conf/" in str(caught.value.hint)


def test_a_file_that_is_no_text_is_reported(file: Path) -> None:
    file.write_bytes(b"[source]\n\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8 at byte 9"):
        load(file)


def test_variables_are_put_into_every_string(file: Path) -> None:
    text = GOOD.replace("bucket", "${BUCKET}").replace('"public.*"', '"${SCHEMA}.*"')
    config = loaded(file, text, BUCKET="b1", SCHEMA="sales")
    assert config.landing.bucket == ("b1", "landing")
    assert config.source.tables == ["sales.*"]
    assert loaded(file, GOOD + 'region = "$${X}"').landing.region == "${X}"


def test_a_missing_variable_is_reported_beside_the_other_problems(file: Path) -> None:
    text = GOOD.replace("deltatide@", "deltatide:${PGPASSWORD}@") + "flush_mib = 0"
    found = problems(file, text)
    assert found[0] == "source.url: environment variable PGPASSWORD is not set"
    assert found[1].startswith("landing.flush_mib")


def test_a_password_is_written_as_it_is(file: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/w:rd%41\n")
    url = f"postgresql://${{USER}}:${{file:{tmp_path}/password}}@db/shop"
    config = loaded(file, GOOD.replace("postgresql://deltatide@db:5432/shop", url), USER="me")
    assert config.source.url.get_secret_value() == "postgresql://me:p%40ss%2Fw%3Ard%2541@db/shop"
    whole = GOOD.replace("postgresql://deltatide@db:5432/shop", "${URL}")
    config = loaded(file, whole, URL="postgresql://me:p%40ss@db/shop")
    assert config.source.url.get_secret_value() == "postgresql://me:p%40ss@db/shop"


MYSQL = GOOD.replace('"postgres"', '"mysql"').replace(
    "postgresql://deltatide@db:5432/shop", "mysql://deltatide@db"
)


def test_replicas_have_passwords_as_the_source_has_and_are_taken_over_by_a_restart(file: Path) -> None:
    replicas = '[limits]\nthreads_running = 7\nreplicas = ["mysql://me:${PASSWORD}@db-2", "mysql://me:hunter2@db-3"]\n'
    config = loaded(file, MYSQL + replicas, PASSWORD="p@ss")
    urls = [url.get_secret_value() for url in config.limits.replicas]
    assert urls == ["mysql://me:p%40ss@db-2", "mysql://me:hunter2@db-3"]
    assert "hunter2" not in repr(config) + config.model_dump_json()
    before = loaded(file, MYSQL)
    reloaded, differ = before.reloaded(config)
    assert (reloaded.limits.threads_running, reloaded.limits.replicas, differ) == (7, [], ["limits.replicas"])


def test_replicas_that_cannot_be_watched_are_refused(file: Path) -> None:
    (found,) = problems(file, MYSQL + '[limits]\nreplicas = ["postgresql://u:hunter2@db/x"]\n')
    assert found == "limits.replicas[0]: must begin with mysql://, as in mysql://user@host:3306"
    (found,) = problems(file, GOOD + '[limits]\nreplicas = "mysql://u:hunter2@db"\n')
    assert found.startswith("limits.replicas: is for MySQL and MariaDB")


def test_partial_row_images_are_for_those_who_have_them(file: Path) -> None:
    allowed = "allow_partial_row_images = true\n[landing]"
    assert loaded(file, MYSQL.replace("[landing]", allowed)).source.allow_partial_row_images
    (found,) = problems(file, GOOD.replace("[landing]", allowed))
    assert found == "source.allow_partial_row_images: is for MySQL and MariaDB"


@pytest.mark.parametrize("password", ["a/b", "a#b", "a/b#c"])
def test_a_password_that_is_not_encoded_is_reported(file: Path, password: str) -> None:
    text = GOOD.replace("deltatide@", f"deltatide:{password}@")
    (found,) = problems(file, text)
    assert found == "source.url: user and password must be percent-encoded, or written through ${...}"


def test_a_missing_secret_file_is_reported(file: Path) -> None:
    text = GOOD.replace("deltatide@", "deltatide:${file:/nowhere/password}@")
    assert problems(file, text) == ["source.url: ${file:/nowhere/password}: no such file or directory"]


def test_a_secret_never_shows(file: Path) -> None:
    config = loaded(file, GOOD.replace("deltatide@", "deltatide:hunter2@"))
    assert "hunter2" not in repr(config) + str(config) + config.model_dump_json()
    for url in ("mysql://u:hunter2@db/x", "postgresql://u:hunter2@db", "hunter2"):
        text = GOOD.replace("postgresql://deltatide@db:5432/shop", url)
        assert "hunter2" not in "".join(problems(file, text))
    misplaced = GOOD.replace("public.*", "${PGPASSWORD}").replace("s3://bucket", "ftp://u:hunter2@x")
    found = "".join(problems(file, misplaced, PGPASSWORD="swordfish"))
    assert "swordfish" not in found
    assert "hunter2" not in found
    assert "${PGPASSWORD}" in found


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("file:///var/landing", "file:///var/landing"),
        ("landing", os.path.abspath("landing")),
        ("~/landing", os.path.expanduser("~/landing")),
    ],
)
def test_landing_urls(file: Path, url: str, stored: str) -> None:
    landing = loaded(file, GOOD.replace("s3://bucket/landing", url)).landing
    assert landing.url == stored
    assert (landing.folder is None) == stored.startswith("s3:")
    assert landing.folder is None or landing.folder.is_absolute()


@pytest.mark.parametrize("url", ["s3a://bucket/x", "s3:///x", "file://host/x", "https://x/y", "", " "])
def test_other_landing_urls_are_refused(file: Path, url: str) -> None:
    (found,) = problems(file, GOOD.replace("s3://bucket/landing", url))
    assert "is not a landing zone; use s3://bucket/folder" in found


@pytest.mark.parametrize("lake", ['url = "s3a://b/lake"', 'url = "lake"', 'catalog = "c"\nschema = "s"'])
def test_a_lake_is_a_url_or_a_schema_of_a_catalog(file: Path, lake: str) -> None:
    assert loaded(file, GOOD + "[lake]\n" + lake).lake is not None


def test_a_location_is_for_tables_of_a_catalog(file: Path) -> None:
    schema = GOOD + '[lake]\ncatalog = "c"\nschema = "s"\nlocation = "s3a://b/lake"'
    assert loaded(file, schema).lake.location == "s3a://b/lake"
    assert problems(file, GOOD + '[lake]\nurl = "lake"\nlocation = "s3a://b/lake"') == [
        "lake: location is for tables of a catalog: set url alone, or catalog and schema"
    ]


@pytest.mark.parametrize("lake", ["", 'catalog = "c"', 'url = "x"\nschema = "s"'])
def test_half_a_lake_is_refused(file: Path, lake: str) -> None:
    assert problems(file, GOOD + "[lake]\n" + lake) == ["lake: set either url, or both catalog and schema"]


@pytest.mark.parametrize(
    ("pattern", "table", "captured"),
    [
        ("public.*", ("public", "orders"), True),
        ("public.*", ("publicity", "orders"), False),
        ("public.order*s", ("public", "order_items"), True),
        ("public.order", ("public", "orders"), False),
        ("*.*", ("public", "a.b"), True),
        ('public."a.b"', ("public", "a.b"), True),
        ("public.a[b]", ("public", "ab"), False),
        ("public.secret_*", ("public", "secret_keys"), False),
    ],
)
def test_patterns_choose_tables(file: Path, pattern: str, table: tuple[str, str], captured: bool) -> None:
    text = SOURCE.replace('"public.*"', f"'{pattern}'") + 'exclude = "public.secret_*"\n[landing]\nurl = "x"'
    assert loaded(file, text).source.captures(TableName(*table)) is captured


def test_settings_of_a_table_are_found_however_it_is_formatted(file: Path) -> None:
    config = loaded(file, GOOD + "[tables.'\"public\".\"orders\"']\nkey = ['id', 'at']\ndeletes = 'soft'")
    assert config.table(TableName("public", "orders")).key == ["id", "at"]
    assert config.table(TableName("public", "orders")).deletes == "soft"


def test_settings_of_a_table_that_is_not_captured_are_a_problem(file: Path) -> None:
    assert problems(file, GOOD + "[tables.'sales.x']\n[tables.y]\n") == [
        'tables."sales.x": is not in source.tables, or is in source.exclude',
        "tables.\"y\": 'y' is not a table name; write namespace.table",
    ]


def test_reading_a_configuration_imports_no_driver_and_no_arrow() -> None:
    code = (
        "import sys, connector.config;"
        "print([m for m in ('psycopg2', 'boto3', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("control", "problem"),
    [
        ("listen = '8642'", "control.listen: '8642' is not host:port"),
        ("listen = 'a:70000'", "control.listen: 'a:70000' is not host:port"),
        ("listen = '0.0.0.0:8642'", "can be reached by other machines: set read_token, control_token"),
        ("listen = 'agent:8642'", "can be reached by other machines: set read_token, control_token"),
        ("listen = '[::]:8642'", "can be reached by other machines: set read_token, control_token"),
        ("control_token = 'short'", "control.control_token: must be 16 to 200 ASCII characters"),
        ("read_token = ''", "control.read_token: must be 16 to 200 ASCII characters"),
        ("certificate = 'a.crt'", "control: set both certificate and key, or neither"),
    ],
)  # fmt: skip
def test_a_control_section_that_is_not_safe_is_refused(file: Path, control: str, problem: str) -> None:
    assert any(problem in line for line in problems(file, f"{GOOD}[control]\n{control}"))


def test_a_token_shows_nowhere(file: Path) -> None:
    file.write_text(f"{GOOD}[control]\nlisten = '0.0.0.0:1'\nread_token = '${{T}}'\ncertificate = '${{T}}'")
    with pytest.raises(ConfigurationError) as caught:
        load(file, {"T": TOKEN})
    assert TOKEN not in str(caught.value)
    file.write_text(f"{GOOD}[control]\nlisten = '0.0.0.0:1'\nread_token = '${{T}}'")
    config = load(file, {"T": TOKEN})
    assert TOKEN not in repr(config) + str(config)
    assert config.control.address == ("0.0.0.0", 1)


@pytest.mark.parametrize("off", ["false", "''"])
def test_the_status_page_can_be_turned_off(file: Path, off: str) -> None:
    file.write_text(f"{GOOD}[control]\nlisten = {off}")
    assert not load(file, {}).control.listen


def test_what_a_target_has_of_its_table_is_checked_as_far_as_the_file_tells(file: Path) -> None:
    lake = '[lake]\nurl = "./lake"\nsalt = "${SALT}"\n'
    table = '[tables."public.orders"]\n'
    good = (
        'exclude_columns = ["note"]\nrename = { mail = "email" }\nwhere = "region = \'EU\'"\n'
        'mask = { mail = "sha256", card = "keep last 4", born = "null" }\n'
    )
    config = loaded(file, GOOD + lake + table + good, SALT="0123456789abcdef")
    assert config.lake is not None
    assert config.lake.salt == "0123456789abcdef"
    assert "0123456789abcdef" not in repr(config)
    assert config.table(TableName("public", "orders")).narrows
    setting = 'tables."public.orders"'
    fine = "a = 'know' AND (`table` = 1 OR user = 'x') AND extract(year FROM b) = 2026 AND c <> 'version (1)'"
    fine += " AND d > TIMESTAMP 'epoch' AND d < DATE'2026-01-01'"
    assert loaded(file, GOOD + table + f'where = "{fine}"\n').table(TableName("public", "orders")).where
    hashed = table + 'mask = { mail = "sha256" }\n'
    assert problems(file, GOOD + '[lake]\nurl = "./lake"\n' + hashed) == [
        f"lake.salt: is missing: {setting}.mask has sha256"
    ]
    assert problems(file, GOOD + lake + hashed, SALT="short") == [
        "lake.salt: must have 16 characters or more"
    ]
    assert problems(file, GOOD + lake + hashed) == ["lake.salt: environment variable SALT is not set"]
    for settings, problem in (
        (
            'mask = { mail = "md5" }',
            '.mask.mail: \'md5\' is not a mask; use "sha256", "null" or "keep last 4"',
        ),
        ('mask = { mail = "keep last 0" }', ".mask.mail: 'keep last 0' is not a mask"),
        ('mask = { a = "null", A = "null" }', ".mask: masks column a twice"),
        ('rename = { a = "c", b = "C" }', ".rename: makes column c twice"),
        ('rename = { a = "_CDC" }', ".rename: '_CDC' can't be a column's name"),
        ('columns = ["a"]\nexclude_columns = ["b"]', ": set either columns or exclude_columns"),
        ('columns = ["a"]\nmask = { b = "null" }', ": mask names column b, which is left out"),
        ('exclude_columns = ["b"]\nrename = { B = "c" }', ": rename names column B, which is left out"),
        ('mask = { b = "null" }\nunmasked = ["B"]', ": unmasked names column B, which is masked or left out"),
        ('key = ["a"]\nmask = { A = "null" }', ": column 'a' is in the key, by which rows are matched"),
        ('key = ["a"]\ncolumns = ["b"]', ": column 'a' is in the key, by which rows are matched"),
        ('where = "a = 1"\ndeletes = "soft"', ': where needs deletes = "hard"'),
        (
            'where = "at > current_date()"',
            ".where: must give the same answer for a row at every merge: current_date",
        ),
        *(
            (f'where = "{unstable}"', ".where: must give the same answer for a row at every merge: ")
            for unstable in (
                "a < date'today'",
                "a < 'NOW UTC'",
                "a < r' yesterday '",
                "a < TIMESTAMP '12:30'",
                "a < timestamp_ltz r'8:00:00'",
                "`rand`() < 1",
                "a = user()",
                "reflect('a', 'b') = a",
                "uniform(1, 9) < a",
            )
        ),
        ('where = "a IN (SELECT 1)"', ".where: must not contain a query"),
        ('where = "a IN (FROM b)"', ".where: must not contain a query"),
        ('where = "EXISTS(TABLE b)"', ".where: must not contain a query"),
        ('partition_by = ["a"]\ncluster_by = ["b"]', ": set either partition_by or cluster_by"),
        ('where = "_cdc.op = 1"', ".where: may not use _cdc"),
        ('where = "a = 1 -- x"', ".where: must not contain a comment"),
        ('where = " "', ".where: is empty"),
    ):
        (found,) = problems(file, GOOD + table + settings + "\n")
        assert found.startswith(setting + problem), found
