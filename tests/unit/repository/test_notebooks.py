"""The notebooks, without running them: their code fits the packages, on Databricks too.

`tests/acceptance/test_demo.py` runs them.
"""

from __future__ import annotations

import ast
import json
import re
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
SOURCES = REPOSITORY / "conf" / "databricks" / "notebooks"
SCRIPT = REPOSITORY / ".ci" / "databricks-notebooks"
TRIAL = "def trial("
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path, kind: str) -> list[str]:
    found = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def script() -> ModuleType:
    loader = SourceFileLoader("databricks_notebooks", str(SCRIPT))
    spec = spec_from_loader("databricks_notebooks", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@each_notebook
def test_what_a_notebook_imports_of_ours_exists(notebook: Path) -> None:
    pytest.importorskip("pyspark")
    imported = [
        node
        for cell in cells(notebook, "code")
        for node in ast.walk(ast.parse(cell))  # raises for a cell that is not Python
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("connector", "merge")
    ]
    assert imported
    for node in imported:
        module = import_module(node.module or "")
        for alias in node.names:
            there = hasattr(module, alias.name) or find_spec(f"{node.module}.{alias.name}")
            assert there, f"{node.module} has no {alias.name}"


@each_notebook
def test_a_databricks_source_is_what_its_notebook_says(notebook: Path) -> None:
    source = SOURCES / f"{notebook.stem}.py"
    assert source.exists(), "run make notebooks"
    assert source.read_text() == script().source_of(notebook), f"run make notebooks: {notebook.name} is newer"


def test_each_databricks_source_has_a_notebook() -> None:
    assert {path.stem for path in SOURCES.glob("*.py")} == {path.stem for path in NOTEBOOKS}


def test_texts_code_and_links_are_written_as_databricks_reads_them(tmp_path: Path) -> None:
    notebook = tmp_path / "one.ipynb"
    texts = [
        ("markdown", ["# One\n", "\n", "See [the text](../README.md), [Delta](https://delta.io)."]),
        ("code", ["a = 1\n", "a"]),
    ]
    notebook.write_text(json.dumps({"cells": [{"cell_type": kind, "source": text} for kind, text in texts]}))
    assert script().source_of(notebook) == (
        "# Databricks notebook source\n"
        "# MAGIC %md\n"
        "# MAGIC # One\n"
        "# MAGIC\n"
        "# MAGIC See the text, [Delta](https://delta.io).\n"
        "\n"
        "# COMMAND ----------\n"
        "\n"
        "a = 1\n"
        "a\n"
    )


@each_notebook
def test_links_lead_to_files(notebook: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", "\n".join(cells(notebook, "markdown"))):
        assert link.startswith("https://") or (notebook.parent / link).exists(), link


class Widgets:
    """Databricks' widgets, with a job's parameters."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    def text(self, name: str, default: str) -> None:
        self._given.setdefault(name, default)

    def get(self, name: str) -> str:
        return self._given[name]


class Session:
    """A Spark session that notes which statements it gets."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


def opened(notebook: Path, monkeypatch: pytest.MonkeyPatch, **widgets: str) -> dict[str, Any]:
    """Run a notebook's first cell, and the one that makes a lake of its own, if it does."""
    pytest.importorskip("pyspark")
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.setattr("merge.open_session", lambda _config: Session())
    first, *others = cells(notebook, "code")
    names: dict[str, Any] = {"dbutils": SimpleNamespace(widgets=Widgets(widgets))}
    exec(first, names)
    for cell in others:
        if TRIAL in cell:
            exec(cell.split("\n\n\nconfig = ")[0], names)
    return names


def configuration(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "demo.toml"
    file.write_text(f"""
[source]
name = "shop"
kind = "postgres"
url = "postgresql://me@host/shop"
tables = ["public.*"]
[landing]
url = "{folder}/landing"
[lake]
# of all
url = "{folder}/lake"

[dump]
workers = 3
""")
    return file


@each_notebook
def test_a_notebook_opens_the_demo_and_tries_things_in_a_lake_of_its_own(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = configuration(tmp_path / "a demo")
    monkeypatch.setenv("DELTATIDE_DEMO", str(file.parent))
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    names = opened(notebook, monkeypatch)
    assert names["config"].lake.url == f"{file.parent}/lake"
    if "trial" in names:
        config = names["trial"]('[tables."public.orders"]\nshapes = ["current", "history"]\n')
        assert config.lake.url == f"{file.parent}/lake_{names['run']}"
        assert config.landing == names["config"].landing
        assert config.dump.workers == 3
        assert len(config.tables) == 1


@each_notebook
def test_on_databricks_widgets_name_the_configuration_and_the_catalog(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = configuration(tmp_path / "volume")
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    names = opened(notebook, monkeypatch, config=str(file), catalog="trials")
    assert names["config"].lake.url == f"{file.parent}/lake"
    if "trial" in names:
        lake = names["trial"]().lake
        assert (lake.catalog, lake.schema_name) == ("trials", f"deltatide_{names['run']}")
        assert names["spark"].statements == [f"CREATE SCHEMA `trials`.{lake.schema_name}"]
