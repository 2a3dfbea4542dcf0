"""What the README says holds: its commands, configuration, settings, links and Python names; conf/ too."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from connector.cli import app
from connector.config import Config, load
from connector.errors import ConfigurationError

REPOSITORY = Path(__file__).resolve().parents[3]
README = (REPOSITORY / "README.md").read_text()
CONFIGURATION = (REPOSITORY / "docs" / "configuration.md").read_text()
FOLDERS = (".", "connector", "docs", "merge", "notebooks", "tests")
PAGES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).glob("*.md"))
EXAMPLES = sorted((REPOSITORY / "conf").glob("*.toml"))
COMMANDS: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands_in(text: str) -> Iterator[list[str]]:
    """The deltatide commands of a text: at the beginning of a line, or as `deltatide ...`."""
    for found in re.findall(r"^(?:#\s+)?deltatide ([^#\n`]+)|`deltatide ([^`]+)`", text, re.MULTILINE):
        yield shlex.split("".join(found))


def problem_of(command: list[str]) -> str | None:
    """What is wrong with a command line; None when it can be typed like that."""
    if command[0] not in COMMANDS:
        return f"no command {command[0]}"
    options = {name for p in COMMANDS[command[0]].params for name in p.opts if name.startswith("-")}
    unknown = [word for word in command[1:] if word.startswith("-") and word not in options]
    return f"{command[0]} has no {unknown[0]}" if unknown else None


@pytest.mark.parametrize(
    "path", [*PAGES, *EXAMPLES], ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)
def test_every_command_exists_with_its_options(path: Path) -> None:
    commands = list(commands_in(path.read_text()))
    assert commands or path.name != "README.md" or path.parent != REPOSITORY
    assert not [problem for problem in map(problem_of, commands) if problem]


def test_a_command_that_does_not_exist_is_found() -> None:
    assert [problem_of(c) for c in commands_in("`deltatide fly`, `deltatide run --far`")] == [
        "no command fly",
        "run has no --far",
    ]


def test_every_command_is_in_the_table_of_commands() -> None:
    described = {command[0] for command in commands_in(README)}
    assert described == set(COMMANDS)


def test_options_named_in_the_table_of_commands_exist() -> None:
    rows = re.findall(r"^\| `deltatide (\w+)[^|]*\|(.*)\|$", README, re.MULTILINE)
    assert rows
    for name, text in rows:
        for option in re.findall(r"`(--[\w-]+)", text):
            assert problem_of([name, option]) is None


def test_the_configuration_of_the_quick_start_is_valid(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "shop.toml").write_text(block)
    config = load(tmp_path / "shop.toml", {"PGPASSWORD": "p@ss word"})
    assert config.source.name == "shop"
    assert config.lake is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_configurations_are_valid_with_and_without_their_comments(
    path: Path, tmp_path: Path
) -> None:
    environ = {"PGPASSWORD": "secret", "MYSQL_PWD": "secret"}
    load(path, environ)
    environ |= {"READ_TOKEN": "0123456789abcdef", "CONTROL_TOKEN": "fedcba9876543210"}
    environ["DELTATIDE_SALT"] = "0123456789abcdef"
    without_catalog = re.sub(r"^# (catalog|schema|location) = .*\n", "", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(
        re.sub(r"^# (?=[\[a-z_]+.* = |\[)", "", without_catalog, flags=re.MULTILINE)
    )
    load(tmp_path / "all.toml", environ)


def settings_of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    """Names of settings as the page writes them, with their defaults (None: none, or computed)."""
    for name, field in model.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield f"{prefix}{field.alias or name}", default or None


def sections() -> Iterator[tuple[str, Any]]:
    for name, field in Config.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
        named = {"tables": 'tables."namespace.table".', "views": "views.NAME."}
        yield from settings_of(model, named.get(name, f"{name}."))


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows: dict[str, str] = {}
    for names, default in re.findall(
        r"^\| (`[a-z]+\.[^|]*`|`tables[^|]*`) \| ([^|]*)\|", CONFIGURATION, re.MULTILINE
    ):
        rows |= dict.fromkeys(re.findall(r"`([^`]+)`", names), default.strip().strip("`"))
    settings = dict(sections())
    assert rows.keys() == settings.keys()
    for name, default in settings.items():
        if default is not None:
            written = json.dumps(default) if isinstance(default, str | list) else str(default)
            if isinstance(default, float):
                assert float(rows[name]) == default, name
            else:
                assert rows[name] == written, name


def test_every_property_of_ours_on_a_delta_table_is_in_the_table() -> None:
    defined = re.compile(r'^[A-Z_]+ = "(deltatide\.[a-z_]+)"$', re.MULTILINE)
    modules = (path.read_text() for path in (REPOSITORY / "merge").rglob("*.py"))
    ours = {name for text in modules for name in defined.findall(text)}
    page = (REPOSITORY / "merge" / "README.md").read_text()
    assert ours == set(re.findall(r"^\| `(deltatide\.\w+)` \|", page, re.MULTILINE))


def test_an_unknown_setting_would_be_refused(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "shop.toml").write_text(block.replace("[landing]", "[landing]\nflush_minutes = 1"))
    with pytest.raises(ConfigurationError, match="flush_minutes"):
        load(tmp_path / "shop.toml", {"PGPASSWORD": "x"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_files(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), link


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings as GitHub writes them, and those set by hand."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_sections(path: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*\.md|)#([^)]+)\)", path.read_text()):
        target = path.parent / link if link else path
        assert anchor in anchors(target.read_text()), f"{link}#{anchor}"


def test_pictures_are_there_for_light_and_dark() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert {Path(path).stem.rpartition("-")[2] for path in pictures} == {"light", "dark"}
    assert all((REPOSITORY / path).is_file() for path in pictures)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_python_examples_name_what_exists() -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="one is for Spark 4")
    assert blocks("python")
    for node in ast.walk(ast.parse("".join(blocks("python")))):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)
