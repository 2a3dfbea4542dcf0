"""Where others bring Spark: real installations, each in an environment of its own, and a real cluster.

What each extra installs is enough for its commands. A managed platform brings Spark, and starts drivers by
spark-submit: here the test environment's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from connector.cli.agent import PACKAGES
from connector.config import load
from connector.landing.manifest import Manifest
from connector.schema import TableName
from connector.store.factory import open_store
from connector.store.protocol import Store
from merge.spark.log_store_jar import JAR
from merge.spark.session import SETTINGS, S3Settings, jar_settings, s3_settings
from tests.bench.lake.landing import MeasuredZone
from tests.support.agent.finished_demo import DEMO_SECONDS_LIMIT
from tests.support.landing.cuts import Table, add_manifest
from tests.support.landing.landed import Landed
from tests.support.servers.s3_server import S3
from tests.support.servers.spark_cluster import SPARK_HOME, SPARK_SUBMIT, Job, SparkCluster
from tests.support.spark.spark_sessions import require_conditional_writes
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "conf" / "spark-submit" / "deltatide_command.py"
JOB = REPOSITORY / "tests" / "support" / "spark" / "cluster_job.py"
DRIVERS = ("psycopg2-binary", "PyMySQL", "fastapi", "uvicorn", "prometheus-client")

pytestmark = pytest.mark.only_postgres

SHIPPED = "deltatide_env"
"""The folder in which executors, and the driver's Python workers, find the package that came with the job."""

BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
"""Has no packages."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with `pip install deltatide`, without extras."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install(folder, ".")
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose landing zone holds one table."""
    folder = tmp_path_factory.mktemp("shop")
    MeasuredZone.create(folder / "landing", ["public.items"]).dump(100)
    path = folder / "shop.toml"
    path.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@127.0.0.1:1/shop"\n'
        f'tables = ["public.*"]\n[landing]\nurl = "{folder}/landing"\n[lake]\nurl = "{folder}/lake"\n'
    )
    return path


def install(environment: Path, what: str) -> None:
    """Install from the checkout the way a user does, with the versions of the lock file."""
    variables = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--constraint", ".ci/requirements-dev.lock", what],
        check=True, cwd=REPOSITORY, env=variables,
    )  # fmt: skip


def run(environment: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return run_alone([environment / "bin" / "deltatide", *arguments], environment)


def submit(environment: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command by spark-submit, in a driver of that environment."""
    settings = {**SETTINGS, **jar_settings(with_s3=False)}
    conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    return run_alone([SPARK_SUBMIT, "--master", "local[2]", *conf, SCRIPT, *arguments], environment)


def run_alone(
    command: list[str | Path], environment: Path, spark: Path | None = SPARK_HOME, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program that finds nothing of the checkout; `spark`: the installation that it finds, if any."""
    python = str(environment / "bin" / "python")
    variables = os.environ | {"PYTHONPATH": "", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    variables.pop("SPARK_HOME", None)
    if spark is not None:
        variables["SPARK_HOME"] = str(spark)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd=environment, env=variables
    )


def test_without_extras_a_merge_runs_where_the_platform_brings_spark(environment: Path, config: Path) -> None:
    listed = subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "list", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "deltatide" in listed
    assert not [driver for driver in DRIVERS if f"{driver} " in listed]
    (package,) = environment.glob("lib/python3*/site-packages/merge")
    assert (package / "java" / JAR.name).stat().st_size > 1000, "a lake on S3 needs it"
    status = run(environment, "status", "-c", config)
    assert status.returncode == 0, status.stderr
    refused = run(environment, "merge", "-c", config)
    assert refused.returncode == 1
    assert 'pip install "deltatide[spark]"' in refused.stderr
    merged = submit(environment, "merge", "--json", "-c", config)
    assert merged.returncode == 0, merged.stderr
    assert '"exact": true' in merged.stdout


def test_the_agent_s_commands_say_which_extra_they_need(environment: Path, config: Path) -> None:
    for command in ("check", "run"):
        refused = run(environment, command, "-c", config)
        assert refused.returncode == 1
        assert all(name in refused.stderr for name in PACKAGES), refused.stderr
        assert "pip install 'deltatide[agent]'" in refused.stderr
        assert "Traceback" not in refused.stderr
    install(environment, ".[agent]")
    checked = run(environment, "check", "-c", config)
    assert "can't reach" in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.soak
def test_the_extras_for_spark_and_the_demo_are_all_that_these_need(tmp_path: Path, config: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    command = environment / "bin" / "deltatide"
    install(environment, ".[spark]")
    of_its_own = tmp_path / "shop.toml"
    of_its_own.write_text(config.read_text().replace('/lake"', '/another lake"'))
    merged = run_alone([command, "merge", "--json", "-c", of_its_own], environment, spark=None)
    assert merged.returncode == 0, merged.stderr
    assert '"exact": true' in merged.stdout
    install(environment, ".[demo]")
    demo = [command, "demo", "--folder", tmp_path / "demo", "--rows", "1000", "--seconds", "5"]
    shown = run_alone(demo, environment, spark=None, seconds=DEMO_SECONDS_LIMIT)
    assert shown.returncode == 0, shown.stdout + shown.stderr


@pytest.fixture(scope="module")
def shipped(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install deltatide` installed, as an archive that can be shipped with a job; with pandas.

    Managed platforms have pandas. Here, live views need it shipped.
    """
    install(environment, "pandas")
    (packages,) = environment.glob("lib/python3*/site-packages")
    archive = tmp_path_factory.mktemp("shipped") / f"{SHIPPED}.zip"
    with zipfile.ZipFile(archive, "w") as written:  # not compressed: it stays on this machine
        for file in packages.rglob("*"):
            name = file.relative_to(packages)
            if name.parts[0] != "pip" and file.suffix != ".pyc":
                written.write(file, name)
    return archive


@pytest.fixture
def cluster(s3: S3, tmp_path: Path) -> Iterator[SparkCluster]:
    """Two workers, on which Python has no packages."""
    with SparkCluster(tmp_path, 2, {**s3.environment, "PYSPARK_PYTHON": BARE_PYTHON}) as cluster:
        yield cluster


@pytest.mark.soak
def test_on_a_cluster_that_loses_a_worker_a_lake_on_s3_is_merged_and_read(
    environment: Path,
    shipped: Path,
    cluster: SparkCluster,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_conditional_writes()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    zone = MeasuredZone.create(Landed.on_s3(s3), ["public.items"])
    zone.dump(60_000)
    zone.change(np.arange(0, 60_000, 7))
    config = tmp_path / "shop.toml"
    config.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@127.0.0.1:1/shop"\n'
        f'tables = ["public.*"]\n[landing]\nurl = "{zone.landed.url}"\nendpoint = "{s3.endpoint}"\n'
        f'region = "{s3.region}"\n[lake]\nurl = "s3a://{s3.bucket}/lake"\n'
        '[views.total]\nsql = "SELECT count(*) AS items, sum(amount) AS amount FROM items"\n'
    )
    settings = {
        **SETTINGS,
        **jar_settings(with_s3=True),
        **s3_settings(S3Settings(s3.endpoint, s3.region, s3.access_key, s3.secret_key)),
        "spark.executor.memory": "600m",
        "spark.archives": f"{shipped}#{SHIPPED}",
        "spark.executorEnv.PYTHONPATH": SHIPPED,
    }
    python = str(environment / "bin" / "python")
    variables = {
        **s3.environment, "PYTHONPATH": "", "PYSPARK_PYTHON": BARE_PYTHON, "PYSPARK_DRIVER_PYTHON": python,
    }  # fmt: skip
    (packages,) = environment.glob("lib/python3*/site-packages")
    (cluster.folder / SHIPPED).symlink_to(packages)

    def submit(script: Path, *arguments: str | Path) -> Job:
        return cluster.submit(settings, script, *arguments, environment=variables)

    merging = submit(SCRIPT, "merge", "--json", "-c", config)
    wait_until(lambda: _written(s3) or merging.ended, "rows are being written", seconds=180)
    assert cluster.tasks_begun(0), "it has no part in the merge"
    cluster.lose(0)
    merged = merging.result(420)
    assert (merged["exact"], [table["error"] for table in merged["tables"]]) == (True, [None]), merged
    zone.change(np.arange(0, 60_000, 11))
    checkpoint, streamed = f"s3a://{s3.bucket}/checkpoint", f"s3a://{s3.bucket}/streamed"
    found = submit(JOB, config, "public.items", "amount", streamed, checkpoint).result(420)
    store = open_store(load(config).landing, "shop")
    assert found["merged"] == amounts(store, zone.landed.manifests[:-1])
    assert found["live"] == amounts(store, zone.landed.manifests)
    assert found["live view"] == found["live"]
    total = sum(Decimal(amount) for _, amount in found["merged"])
    assert found["views"] == {"views.total": [[60_000, str(total)]]}
    assert len(found["streamed"]) == len(range(0, 60_000, 7)) + len(range(0, 60_000, 11))


def _written(s3: S3) -> bool:
    """Return whether the merge has written a file of rows."""
    listed = s3.client().list_objects_v2(Bucket=s3.bucket, Prefix="lake/public/items/")
    return any(entry["Key"].endswith(".parquet") for entry in listed.get("Contents", []))


def amounts(store: Store, manifests: Sequence[Manifest]) -> list[list[str]]:
    """Return each key of `public.items` with its amount, resolved in plain Python from what has landed."""
    tables: dict[TableName, Table] = defaultdict(Table)
    for manifest in manifests:
        add_manifest(store, manifest, tables)
    ((_, items),) = tables.items()
    rows = ((key, items.row(key)[0]) for key in items.events)
    return sorted([str(key[0]), str(row["amount"])] for key, row in rows if row is not None)
