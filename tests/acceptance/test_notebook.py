"""The notebooks: run to the end on what a small demonstration leaves, and committed without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_demo import Demo, finished_demo

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def demo(servers_folder: Path) -> Demo:
    pytest.importorskip("pyspark")
    return finished_demo(servers_folder / "demo")


def outputs_of(notebook: Any, kind: str) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        output["data"][kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})
    ]


def test_the_first_look_runs_from_beginning_to_end(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    assert demo.status == 0, demo.output
    monkeypatch.setenv("DELTATIDE_DEMO", str(demo.folder))
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    notebook = nbformat.read(NOTEBOOKS / "01_first_look.ipynb", as_version=4)
    client.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    assert outputs_of(notebook, "image/png"), "no plot"
    tables = "".join(outputs_of(notebook, "text/html"))
    for name in ("public.orders", "public.documents", "committed_at", "returned"):
        assert name in tables


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
