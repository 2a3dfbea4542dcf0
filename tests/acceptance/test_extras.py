"""What each extra installs is enough for its commands: real installations, in environments of their own.

A managed platform brings Spark, and starts drivers by spark-submit: here the test environment's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from connector.cli.agent import PACKAGES
from merge.spark.log_store_jar import JAR
from merge.spark.session import SETTINGS, jar_settings
from tests.bench.lake.landing import MeasuredZone

REPOSITORY = Path(__file__).parents[2]
DRIVERS = ("psycopg2-binary", "PyMySQL", "fastapi", "uvicorn", "prometheus-client")

pytestmark = pytest.mark.only_postgres


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
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {**SETTINGS, **jar_settings(with_s3=False)}
    conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    script = REPOSITORY / "conf" / "spark-submit" / "deltatide_command.py"
    return run_alone([program, "--master", "local[2]", *conf, script, *arguments], environment)


def run_alone(command: list[str | Path], environment: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds nothing of the checkout."""
    python = str(environment / "bin" / "python")
    variables = {"PYTHONPATH": "", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    variables["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=environment, env={**os.environ, **variables}
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
