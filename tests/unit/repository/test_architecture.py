"""What ARCHITECTURE.md and the glossary say of the code, as far as it can be counted."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.unit.repository.test_boundaries import MERGE_MAY_IMPORT

REPOSITORY = Path(__file__).resolve().parents[3]
ARCHITECTURE = (REPOSITORY / "ARCHITECTURE.md").read_text()
MAP = ARCHITECTURE.partition("## Code map")[2].partition("\n## ")[0]
GLOSSARY = (REPOSITORY / "docs" / "glossary.md").read_text()
MODULES = [path for part in ("connector", "merge") for path in sorted((REPOSITORY / part).rglob("*.py"))]
LONGEST = 450


def test_files_named_in_the_code_map_exist() -> None:
    rows = re.findall(r"^\| (`(?:connector|merge|tests)/[^|]*) \| (.*) \|$", MAP, re.MULTILINE)
    assert len(rows) > 15
    for where, what in rows:
        names = re.findall(r"`([^`]+)`", where)
        folder = Path(names[0]).parent if names[0].endswith(".py") else Path(names[0])
        files = [name for name in re.findall(r"`([^` ]+)`", what) if name.endswith(".py")]
        for name in [*names, *files]:
            assert (REPOSITORY / (name if "/" in name else folder / name)).exists(), name


def test_the_code_map_names_every_folder() -> None:
    folders = {path.parent.relative_to(REPOSITORY).as_posix() for path in MODULES}
    assert not {folder for folder in folders - {"connector"} if f"`{folder}/" not in MAP}


def test_the_code_map_names_every_module_of_capture_and_landing() -> None:
    modules = [path for path in MODULES if {"capture", "landing"} & set(path.parts)]
    assert len(modules) > 15
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", MAP))
    assert not {path.name for path in modules if path.stem != "__init__"} - named


def test_the_boundaries_name_what_merge_may_import() -> None:
    boundaries = ARCHITECTURE.partition("## Boundaries")[2].partition("\n## ")[0]
    assert not {name for name in MERGE_MAY_IMPORT if f"`{name.removeprefix('connector.')}`" not in boundaries}


def test_no_module_is_too_long_to_read() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_no_folder_holds_too_many_modules() -> None:
    folders = {path.parent for path in [*MODULES, *(REPOSITORY / "tests").rglob("*.py")]}
    assert not {str(f): n for f in folders if (n := len([*f.glob("[!_]*.py")])) > 15}


def test_words_of_the_glossary_are_in_the_code() -> None:
    pytest.importorskip("pyspark")
    names = re.findall(r"`((?:connector|merge)\.[\w.]+)`", GLOSSARY)
    assert len(names) > 20
    for name in names:
        owner, _, attribute = name.rpartition(".")
        while True:
            try:
                found: object = importlib.import_module(owner)
                break
            except ModuleNotFoundError:
                owner, _, head = owner.rpartition(".")
                attribute = f"{head}.{attribute}"
        for part in attribute.split("."):
            assert hasattr(found, part), name
            found = getattr(found, part)
