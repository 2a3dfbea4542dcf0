"""The demonstration by its command: equal in the end, able to find a difference, gone when interrupted.

And the notebooks: run to the end on what it leaves, and committed without outputs.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from connector.demo.servers.mariadb import INSTALL_HINT, find_programs
from connector.demo.servers.mysql import find_mysqld
from connector.demo.shop import TABLES
from connector.landing.manifest_store import newest_manifest
from connector.store.local import LocalStore
from tests.support.agent.finished_demo import DEMO_SECONDS_LIMIT, Demo, demo_command, finished_demo
from tests.support.waiting import wait_until

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def demo(servers_folder: Path) -> Demo:
    pytest.importorskip("pyspark")
    return finished_demo(servers_folder / "demo")


def row_of(demo: Demo, table: str, namespace: str = "public") -> list[int]:
    """The figures that the demonstration printed for a table."""
    start = f"{namespace}.{table} "
    line = next(line for line in demo.output.splitlines() if line.strip().startswith(start))
    return [int(figure.replace(",", "")) for figure in line.split()[1:]]


def test_the_demo_ends_with_every_value_equal(demo: Demo) -> None:
    assert_all_equal(demo, "public")


def assert_all_equal(demo: Demo, namespace: str) -> None:
    assert demo.status == 0, demo.output
    for table in TABLES:
        source, target, differences, dumped, captured = row_of(demo, table, namespace)
        assert source == target
        assert differences == 0
        assert dumped > 0 or table == "carts"  # which the writer truncates, perhaps before its dump
        assert captured > 0
    assert "Traceback" not in demo.output


def test_the_demo_has_captured_what_is_hard(demo: Demo) -> None:
    assert_hard(demo)
    assert any(b'"partial": true' in manifest for manifest in landed_manifests(demo))


def landed_manifests(demo: Demo) -> list[bytes]:
    store = LocalStore(demo.folder / "landing" / "shop")
    return [store.read(path) or b"" for path in store.list("manifest/")]


def assert_hard(demo: Demo) -> None:
    # Else its equality would say little.
    newest = newest_manifest(LocalStore(demo.folder / "landing" / "shop"))
    assert newest is not None
    assert newest.exact
    landed = landed_manifests(demo)
    assert any(b'"truncates": true' in manifest for manifest in landed)
    assert any(b'"chunk"' in manifest for manifest in landed)


def outputs_of(notebook: Any, kind: str) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        output["data"][kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})
    ]


def executed(path: Path, demo: Demo, monkeypatch: pytest.MonkeyPatch) -> Any:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    assert demo.status == 0, demo.output
    monkeypatch.setenv("DELTATIDE_DEMO", str(demo.folder))
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    assert outputs_of(notebook, "image/png"), "no plot"
    return notebook


@pytest.mark.soak
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("0[2-9]*.ipynb")), ids=lambda path: path.name)
def test_the_other_notebooks_run_and_the_differences_that_they_look_for_are_empty(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    notebook = executed(path, demo, monkeypatch)
    texts = outputs_of(notebook, "text/plain")
    differences = [text for text in texts if text.startswith("{'only in ")]
    counts = [text for text in texts if text.startswith("{'changes in ")]
    assert differences or counts or path.name == "06_operating.ipynb"  # which compares nothing
    for text in differences:
        assert set(re.findall(r": (\d+)", text)) == {"0"}, text
    for text in counts:
        assert len(set(re.findall(r": (\d+)", text))) == 1, text
    if path.name == "02_merge_and_live.ipynb":
        assert [text for text in differences if "only in the view" in text]
        assert "age_seconds" in "".join(outputs_of(notebook, "text/html"))


def test_the_first_look_runs_from_beginning_to_end(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = executed(NOTEBOOKS / "01_first_look.ipynb", demo, monkeypatch)
    tables = "".join(outputs_of(notebook, "text/html"))
    for name in ("public.orders", "public.documents", "committed_at", "returned"):
        assert name in tables


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.soak
@pytest.mark.parametrize("source", ["mariadb", "mysql"])
def test_the_demo_of_another_database_is_as_hard_ends_equal_and_is_kept_open_until_ctrl_c(
    servers_folder: Path, source: str
) -> None:
    pytest.importorskip("pyspark")
    if source == "mariadb" and find_programs() is None:
        pytest.skip(f"MariaDB is not installed: {INSTALL_HINT}")
    if source == "mysql" and find_mysqld() is None:
        pytest.skip("MySQL is not installed: .ci/fetch-servers makes .cache/mysql-8.0")
    folder = servers_folder / f"demo-{source}"
    log = servers_folder / f"demo-{source}.log"
    with log.open("w") as output:
        command = [*demo_command(folder, source, rows=1000), "--keep"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: process.poll() is not None or "keep running until Ctrl-C" in log.read_text(),
            "it has compared, and goes on",
            seconds=DEMO_SECONDS_LIMIT,
        )
        pages = re.findall(r"(http://\S+)", log.read_text())
        assert len(pages) == 2, log.read_text()  # while it runs, and in the end
        assert pages[0] == pages[1]
        agent = f"{pages[0]}/api/agent"
        rows = httpx.get(agent, trust_env=False).json()["figures"]["changes"]
        wait_until(
            lambda: httpx.get(agent, trust_env=False).json()["figures"]["changes"] > rows, "it writes on"
        )
    finally:
        process.send_signal(signal.SIGINT)
    demo = Demo(folder, process.wait(120), log.read_text())
    assert started_in(folder) == []
    assert_all_equal(demo, "shop")
    assert_hard(demo)


# Runs the demonstration, but changes one value in PostgreSQL when nobody captures any more.
TAMPERED = """
import sys
from pathlib import Path
import psycopg2
from connector.demo import run

honest = run.last_cut

def last_cut(spark, config):
    connection = psycopg2.connect(config.source.url.get_secret_value())
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE customers SET points = points + 1 WHERE id = (SELECT max(id) FROM customers)")
        assert cursor.rowcount == 1
    connection.close()
    return honest(spark, config)

run.last_cut = last_cut
sys.exit(run.demo(Path(sys.argv[1]), rows=1000, seconds=5))
"""


@pytest.mark.soak
def test_a_single_value_that_differs_is_shown_and_is_exit_status_1(servers_folder: Path) -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-c", TAMPERED, str(servers_folder / "demo-tampered")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEMO_SECONDS_LIMIT,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    differences = re.findall(r"^difference: (.*)", done.stdout, re.MULTILINE)
    assert len(differences) == 1
    assert re.fullmatch(
        r"public.customers \(\d+\) points: (\d+) in PostgreSQL, (\d+) in Delta", differences[0]
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_interruption_ends_everything_that_the_demo_started(
    servers_folder: Path, number: signal.Signals
) -> None:
    pytest.importorskip("pyspark")
    folder = servers_folder / f"demo-{number.name.lower()}"
    command = [sys.executable, "-m", "connector.cli", "demo", "--folder", str(folder), "--rows", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_until(
            lambda: process.poll() is not None or len(started_in(folder)) >= 3,
            "agent, merge and demo run",
            seconds=120,
        )
        wait_until(
            lambda: any((folder / "landing").glob("shop/manifest/*/*.json")), "a manifest", seconds=120
        )
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in output
    wait_until(lambda: not started_in(folder), "all its processes have ended", seconds=30)


def started_in(folder: Path) -> list[int]:
    """Ids of the processes whose command names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() + b"\0" in command or str(folder).encode() + b"/" in command:
                found.append(int(entry.name))
    return found
