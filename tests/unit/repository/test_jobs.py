"""The files in conf/ by which merges are scheduled: the schedulers' own models take them, and our command."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job

from connector import __version__
from tests.support.command_lines import assert_parsed

REPOSITORY = Path(__file__).resolve().parents[3]
CONF = REPOSITORY / "conf"
BUNDLE = CONF / "databricks"
CONFIG = "/etc/deltatide/shop.toml"
AIRFLOW = REPOSITORY / ".cache" / "airflow"
READ_DAGS = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
dags = {name: [dag.schedule, dag.max_active_runs, dag.catchup, [task.bash_command for task in dag.tasks]]
        for name, dag in bag.dags.items()}
print(json.dumps({"errors": bag.import_errors, "dags": dags}))
"""


def bundle_jobs() -> dict[str, Any]:
    loaded = yaml.safe_load((BUNDLE / "resources" / "deltatide.yml").read_text())
    jobs: dict[str, Any] = loaded["resources"]["jobs"]
    return jobs


def bundle() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((BUNDLE / "databricks.yml").read_text())
    return loaded


def tasks_of_the_bundle() -> Iterator[dict[str, Any]]:
    for job in bundle_jobs().values():
        yield from job["tasks"]


@pytest.mark.parametrize("name", bundle_jobs())
def test_databricks_models_take_each_job(name: str) -> None:
    job = Job.from_dict(bundle_jobs()[name])  # raises for a field or value that it does not know
    assert job.max_concurrent_runs == 1
    assert job.schedule is not None
    keys = {cluster["job_cluster_key"] for cluster in bundle_jobs()[name]["job_clusters"]}
    assert {task["job_cluster_key"] for task in bundle_jobs()[name]["tasks"]} <= keys


def test_databricks_merges_every_five_minutes_and_maintains_once_a_night() -> None:
    found = {name: job["schedule"]["quartz_cron_expression"] for name, job in bundle_jobs().items()}
    _, minutes, *rest = found["deltatide_merge"].split()
    assert (minutes, rest) == ("0/5", ["*", "*", "*", "?"])
    (nightly,) = (schedule for name, schedule in found.items() if name != "deltatide_merge")
    assert re.fullmatch(r"0 \d+ [0-5] \* \* \?", nightly)


def test_databricks_runs_commands_that_exist() -> None:
    scripts = {script.name for script in entry_points(group="console_scripts")}
    wheels = [task["python_wheel_task"] for task in tasks_of_the_bundle() if "python_wheel_task" in task]
    assert len(wheels) == 2
    for wheel in wheels:
        assert wheel["entry_point"] in scripts
        assert_parsed([text.replace("${var.config}", CONFIG) for text in wheel["parameters"]], CONFIG)


def test_the_bundle_names_files_and_variables_that_are_there_and_no_secret() -> None:
    resources = (BUNDLE / "resources" / "deltatide.yml").read_text()
    assert set(re.findall(r"\$\{var\.(\w+)\}", resources)) == set(bundle()["variables"])
    assert f"deltatide-{__version__}-" in bundle()["variables"]["wheel"]["default"]
    notebooks = [
        task["notebook_task"]["notebook_path"] for task in tasks_of_the_bundle() if "notebook_task" in task
    ]
    assert notebooks
    for path in notebooks:
        notebook = BUNDLE / "resources" / path
        compile(notebook.read_text(), str(notebook), "exec")
        assert notebook.read_text().startswith("# Databricks notebook source\n")
    for job in bundle_jobs().values():
        for cluster in job["job_clusters"]:
            secrets = cluster["new_cluster"]["spark_env_vars"].values()
            assert secrets
            for value in secrets:
                assert re.fullmatch(r"\{\{secrets/deltatide/\w+\}\}", value)


def test_airflow_reads_the_dags(tmp_path: Path) -> None:
    if not (AIRFLOW / "ready").exists():
        pytest.skip("Airflow is not installed: .ci/fetch-servers airflow")
    done = subprocess.run(
        [AIRFLOW / "bin" / "python", "-c", READ_DAGS, CONF / "airflow"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert set(found["dags"]) == {"deltatide_shop_merge", "deltatide_shop_maintain"}
    for schedule, most, catchup, commands in found["dags"].values():
        assert len(schedule.split()) == 5
        assert (most, catchup) == (1, False)
        for command in commands:
            name, *arguments = shlex.split(command)
            assert name == "deltatide"
            assert_parsed(arguments, CONFIG)


def test_cron_runs_commands_that_exist() -> None:
    lines = (CONF / "cron" / "deltatide").read_text().splitlines()
    jobs = [line for line in lines if line[:1] in "*0123456789"]
    assert len(jobs) == 2
    for line in jobs:
        *_, command = line.split(maxsplit=6)
        words = shlex.split(command)
        assert_parsed(words[words.index("/opt/deltatide/bin/deltatide") + 1 :], CONFIG)


def test_an_emr_step_runs_a_command_that_exists() -> None:
    (step,) = json.loads((CONF / "spark-submit" / "emr-step.json").read_text())
    arguments = step["HadoopJarStep"]["Args"]
    script = next(number for number, text in enumerate(arguments) if text.endswith(".py"))
    assert (CONF / "spark-submit" / Path(arguments[script]).name).exists()
    assert_parsed(arguments[script + 1 :], CONFIG)
