"""The configuration: what is accepted, and how its problems are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from connector.config import Config, LakeConfig, TableConfig, _Section, load
from connector.errors import ConfigurationError
from connector.landing.manifest import DumpSettings
from connector.landing.requests import WantedSettings
from connector.schema import TableName

CONF = Path(__file__).parents[2] / "conf"

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


@pytest.mark.parametrize("example", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_complete(example: Path) -> None:
    environ = {"PGPASSWORD": "secret", "MYSQL_PWD": "secret"}
    config = load(example, environ)
    named = {word for line in example.read_text().splitlines() for word in line.lstrip("# ").split()[:1]}
    sections = (config.source, config.landing, config.dump, LakeConfig(url="x"), TableConfig())
    settings = {
        field.alias or name for section in sections for name, field in type(section).model_fields.items()
    }
    assert settings - named == set()


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
            " tables",
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


SECTIONS = [section for section in _Section.__subclasses__() if section is not Config]


@pytest.mark.parametrize("model", [*SECTIONS, DumpSettings, WantedSettings])
def test_every_number_has_bounds(model: type[BaseModel]) -> None:
    """A number of 400 digits is valid TOML and JSON, but no float."""
    settings = model.model_json_schema()["properties"].items()
    kinds = [(name, kind) for name, each in settings for kind in each.get("anyOf", [each])]
    numbers = [(name, kind) for name, kind in kinds if kind.get("type") in ("number", "integer")]
    assert [name for name, kind in numbers if not {"minimum", "maximum"} <= kind.keys()] == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[source]\nname = shop\n", "line 2, column 8"),
        ("[source\n", "line 1, column 8"),
        ('[source]\nname = """shop\n', "line 2, column"),
    ],
)
def test_malformed_toml_is_reported_with_its_place(file: Path, text: str, place: str) -> None:
    (found,) = problems(file, text)
    assert found.startswith("malformed TOML: ")
    assert place in found


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
        ("listen = '0.0.0.0:8642'", "is reached by other machines: set read_token, control_token"),
        ("listen = 'agent:8642'", "is reached by other machines: set read_token, control_token"),
        ("listen = '[::]:8642'", "is reached by other machines: set read_token, control_token"),
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
