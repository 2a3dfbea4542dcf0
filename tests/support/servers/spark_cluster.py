"""A standalone Spark cluster for tests: a master and workers, on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from connector.demo.servers.starting import free_port
from tests.support.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
SPARK_SUBMIT = SPARK_HOME / "bin" / "spark-submit"
SMALL = {"SPARK_DAEMON_MEMORY": "160m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC"}
START_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A job that was submitted; its output is in a file, since Spark says much."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def ended(self) -> bool:
        """Return whether its driver has ended."""
        return self.process.poll() is not None

    def result(self, seconds: float) -> Any:
        """Wait for its end, and return the JSON that it printed last."""
        self.process.wait(seconds)
        lines = self.output.with_suffix(".err").read_text(errors="replace").splitlines()
        said = "\n".join(line for line in lines if " INFO " not in line)
        assert self.process.returncode == 0, said[-5000:]
        return json.loads(self.output.read_text().splitlines()[-1])


class SparkCluster:
    """A master and workers of one core, with their files in a folder; a context manager that ends all.

    Workers and their executors find no Python package but Spark's: what they need comes with the job.
    `environment`: their further variables.
    """

    def __init__(self, folder: Path, workers: int, environment: Mapping[str, str]) -> None:
        self.folder, self._environment, self._jobs = folder, environment, 0
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        bound = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._master = self._start("master", "master.Master", *bound, "--port", str(port))
        try:
            self._wait(lambda: "ALIVE" in self._said("master"), "the master is alive")
            for number in range(workers):
                room = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.work_folder(number))]
                self.workers.append(self._start(f"worker-{number}", "worker.Worker", *bound, *room, self.url))
            self._wait(
                lambda: self._said("master").count("Registering worker") == workers,
                f"{workers} workers are registered",
            )
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> SparkCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def work_folder(self, worker: int) -> Path:
        """Return the folder of a worker's executors: `<application>/<executor>/stderr`."""
        return self.folder / f"work-{worker}"

    def tasks_begun(self, worker: int) -> int:
        """Return how many tasks a worker's executors have begun so far."""
        logs = self.work_folder(worker).glob("*/*/stderr")
        return sum(log.read_text(errors="replace").count("Running task") for log in logs)

    def lose(self, worker: int) -> None:
        """Kill a worker with all of its processes, as the loss of its machine does."""
        os.killpg(self.workers[worker].pid, signal.SIGKILL)
        self.workers[worker].wait()

    def stop(self) -> None:
        """End all processes."""
        for process in (*self.workers, self._master):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def submit(
        self,
        settings: Mapping[str, str],
        script: Path,
        *arguments: str | Path,
        environment: Mapping[str, str],
    ) -> Job:
        """Start a job with its driver here, in a process group of its own."""
        confs = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        self._jobs += 1
        output = self.folder / f"job-{self._jobs}.out"
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                [SPARK_SUBMIT, "--master", self.url, *confs, script, *map(str, arguments)],
                cwd=self.folder, env={**os.environ, **environment, **_local()},
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
            )  # fmt: skip
        return Job(process, output)

    def _start(self, name: str, class_: str, *arguments: str) -> subprocess.Popen[bytes]:
        variables = {
            **os.environ,
            "PYTHONPATH": "",
            **SMALL,
            **self._environment,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                _class(f"org.apache.spark.deploy.{class_}", arguments),
                cwd=self.folder, env={**variables, **self._environment, **_local()},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            ended = [p.args for p in (self._master, *self.workers) if p.poll() is not None]
            assert not ended, f"ended before {what}, see the logs in {self.folder}: {ended}"
            return condition()

        wait_until(met, f"{what}, see the logs in {self.folder}", seconds=START_SECONDS)

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


def _class(name: str, arguments: Sequence[str]) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-class"), name, *arguments]


def _local() -> dict[str, str]:
    return {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
