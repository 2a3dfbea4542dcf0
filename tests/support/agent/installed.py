"""The installed command as users run it: a configuration file, its processes, and their output."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connector.config import Config, load
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.position import parse_lsn
from connector.store.factory import open_store
from connector.store.protocol import Store
from tests.support.background import Background
from tests.support.landing.cuts import manifests_in
from tests.support.source.tested_database import TestedDatabase
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
SECTIONS: dict[str, dict[str, Any]] = {
    "source": {"name": "shop"},
    "landing": {"flush_seconds": 0.2, "heartbeat_seconds": 0.5, "lease_seconds": 3},
    "dump": {"chunk_rows": 200, "workers": 2, "delay_seconds": 0.05},
}
"""Short intervals and tiny chunks."""

COMMAND = "connector.cli"

SPARK_COMMANDS = ("merge", "query", "verify", "explain", "rebuild", "maintain", "views")

AT_WORK = re.compile("beginning a new history|resuming after manifest")


class Running:
    """One process of the command, with its output in a file. Leaving the `with` block kills it."""

    def __init__(
        self, log: Path, arguments: tuple[str, ...], environment: dict[str, str], module: str = COMMAND
    ) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=log.parent, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def output(self) -> str:
        """Return everything printed so far."""
        return self.log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        """Signal the process and return its exit status; fail if it takes longer than `seconds`."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def stop_group(self, number: signal.Signals, seconds: float = 60) -> int:
        """Signal the process group, as service managers do; return the exit status once all have ended."""
        group = self.process.pid
        os.killpg(group, number)
        status = self.wait(seconds)
        wait_until(lambda: not _is_there(group), "no process of its group is left", seconds=20)
        return status

    def wait(self, seconds: float = 120) -> int:
        """Wait for the process to end and return its exit status (-9: killed)."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {seconds:g} s:\n{self.output[-3000:]}") from None

    def wait_says(self, text: str, seconds: float = 60) -> None:
        """Wait until the output contains a text."""
        self.wait_until(lambda: text in self.output, f"it says {text!r}", seconds)

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Wait for a condition; fail at once, with the output, if the process ends first."""

        def met() -> Any:
            ended = self.ended
            if answer := condition():
                return answer
            assert not ended, f"ended with {self.process.returncode} before {what}:\n{self.output[-3000:]}"
            return None

        try:
            return wait_until(met, what, seconds=seconds, pause=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-3000:]}") from None


def run_command(
    file: Path, command: str, *arguments: str, environment: Mapping[str, str], seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command with a configuration file to completion."""
    return subprocess.run(
        [sys.executable, "-m", COMMAND, command, "-c", str(file), *arguments],
        cwd=file.parent, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}, timeout=seconds,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def landed_by_hand(folder: Path, more: str = "") -> Path:
    """Write a configuration for a landing zone and lake in a folder, with no database; return the file."""
    file = folder / "shop.toml"
    file.write_text(
        '[source]\nname = "shop"\nkind = "postgres"\nurl = "postgresql://u@h/shop"\ntables = ["*.*"]\n'
        f'[landing]\nurl = "{folder}/landing"\n[lake]\nurl = "{folder}/lake"\n{more}'
    )
    return file


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Installation:
    """A configuration file with its landing zone and lake, all in one folder, and commands run with it.

    `spark_url`: called for the address of a Spark Connect server, which commands use, unless `own_spark`.
    """

    def __init__(
        self,
        folder: Path,
        database: TestedDatabase,
        *,
        spark_url: Callable[[], str] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.folder, self.database = folder, database
        self.own_spark = spark_url is None
        self._spark_url = spark_url
        self.landing, self.lake = folder / "landing", folder / "lake"
        self.lake_url, self.lake_options = str(self.lake), dict[str, str]()  # for delta-rs
        self.file = folder / "shop.toml"
        self._sections = sections
        self._started = 0
        self.configure()

    def configure(self, **sections: dict[str, Any]) -> Config:
        """Write the configuration: the defaults, the constructor's sections, then these; later ones win."""
        source = {"tables": [f"{self.database.namespace}.*"], **self.database.settings()}
        places = {"source": source, "landing": {"url": str(self.landing)}, "lake": {"url": str(self.lake)}}
        settings: dict[str, dict[str, Any]] = {}
        for layer in (SECTIONS, places, self._sections, sections):
            for section, values in layer.items():
                settings.setdefault(section, {}).update(values)
        self.file.write_text("".join(_toml(section, values) for section, values in settings.items()))
        return self.config

    @property
    def config(self) -> Config:
        """Return the configuration as the command reads it."""
        return load(self.file)

    def table(self, name: str) -> str:
        """Return a table's qualified name."""
        return name if "." in name else f"{self.database.namespace}.{name}"

    def through(self, port: int) -> str:
        """Return the database's URL with the port of a proxy."""
        return self.database.url.replace(f":{self.database.port}/", f":{port}/")

    @property
    def slot(self) -> str:
        """Return the replication slot's name."""
        return self.config.source.slot

    @property
    def store(self) -> Store:
        """Open the landing zone."""
        return open_store(self.config.landing, "shop")

    @property
    def newest(self) -> Manifest | None:
        """Return the newest manifest; None before the first."""
        return newest_manifest(self.store)

    def run(self, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to completion."""
        return run_command(
            self.file, *arguments, seconds=seconds, environment=self._environment(arguments[0])
        )

    def json(self, *arguments: str) -> Any:
        """Run a command with --json and return its parsed output."""
        done = self.run(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str, kill_at: str = "", module: str = COMMAND, **variables: str) -> Running:
        """Start a command; `kill_at` names the `connector.failpoint` at which it kills itself.

        `variables`: more of its environment.
        """
        self._started += 1
        environment = {**self._environment(arguments[0]), "DELTATIDE_KILL_AT": kill_at, **variables}
        log = self.folder / f"{arguments[0]}-{self._started}.log"
        return Running(log, (arguments[0], "-c", str(self.file), *arguments[1:]), environment, module)

    def _environment(self, command: str) -> dict[str, str]:
        if command not in SPARK_COMMANDS or self.own_spark or not self._spark_url:
            return {}
        return {"SPARK_REMOTE": self._spark_url()}

    @contextmanager
    def agent(self) -> Iterator[Running]:
        """Run the agent, at work when the block begins; stop it at the end, with exit status 0."""
        with self.start("run") as agent:
            agent.wait_until(lambda: AT_WORK.search(agent.output), "it is at work")
            yield agent
            assert agent.stop() == 0, agent.output

    def wait(
        self, agent: Running, condition: Callable[[Manifest], Any], what: str, seconds: float = 120
    ) -> Manifest:
        """Wait until the newest manifest meets a condition, and return it."""

        def found() -> Manifest | None:
            newest = self.newest
            return newest if newest is not None and condition(newest) else None

        return agent.wait_until(found, what, seconds)

    def wait_dumped(self, agent: Running) -> Manifest:
        """Wait until every table is dumped and no dump is active."""
        return self.wait(agent, lambda m: m.exact and not any(d.active for d in m.dumps), "all is dumped")

    def wait_caught_up(self, agent: Running, seconds: float = 120) -> Manifest:
        """Wait until every table is dumped and a manifest has reached the current end of the log."""
        end = self.end_of_log()
        return self.wait(
            agent,
            lambda m: m.position >= end and m.exact and not any(d.active for d in m.dumps),
            "the end of the log is committed",
            seconds,
        )

    def end_of_log(self) -> int:
        """Return the position at the end of the server's log."""
        return self.database.end_of_log()

    def confirmed(self) -> int | None:
        """Return the position confirmed to the slot; None without a slot, as on MySQL and MariaDB."""
        rows = self._ask_slot("confirmed_flush_lsn::text")
        return parse_lsn(rows[0][0]) if rows else None

    def walsender(self) -> int | None:
        """Return the pid of the walsender that serves the agent; None if there is none."""
        rows = self._ask_slot("active_pid")
        return rows[0][0] if rows else None

    def _ask_slot(self, column: str) -> list[tuple[Any, ...]]:
        if self.database.kind != "postgres":
            return []
        return self.database.rows(
            f"SELECT {column} FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )

    def history(self) -> list[Manifest]:
        """Return all manifests, after checking that they form one line: no hole, no fork, no step back."""
        confirmed = self.confirmed()  # before the manifests are read: the agent may go on
        manifests = manifests_in(self.store)
        for before, after in itertools.pairwise(manifests):
            assert_follows(before, after)
        paths = [file.path for manifest in manifests for file in manifest.files]
        assert len(paths) == len(set(paths)), "a file is committed twice"
        assert confirmed is None or confirmed <= manifests[-1].position, "confirmed before it was committed"
        return manifests


def assert_follows(before: Manifest, after: Manifest) -> None:
    """Check that a manifest continues the one before it, and commits no chunk too early."""
    assert after.number == before.number + 1, f"manifest {after.number} follows {before.number}"
    assert (before.epoch, before.position) <= (after.epoch, after.position), (
        f"manifest {after.number} steps back"
    )
    assert before.term <= after.term, f"manifest {after.number} is of a term that had ended"
    early = [f.path for f in after.files if f.kind == "chunk" and f.high > after.position]
    assert not early, f"manifest {after.number} commits a chunk before its high watermark: {early}"


def _toml(section: str, values: dict[str, Any]) -> str:
    if section == "tables":
        return "".join(_toml(f'tables."{name}"', table) for name, table in values.items())
    return f"[{section}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


def assert_message(done: Any, *expected: str, status: int = 1) -> str:
    """Check that a command failed with a message of one to three lines, no traceback; return the message."""
    output = done.stderr if hasattr(done, "stderr") else done.output
    lines = [line for line in output.splitlines() if not re.match(r"\d\d:\d\d:\d\d (INFO|WARNING)", line)]
    text = "\n".join(lines)
    assert done.returncode == status, output
    assert "Traceback" not in output
    assert text.startswith("error: "), output
    assert 1 <= len(lines) <= 3, text
    for each in expected:
        assert each in text, text
    return text


class Meddler(Background):
    """Repeats an action in the background during a test, as in `with Meddler(kill_sessions, 0.5, 1.5):`."""

    def __init__(self, meddle: Callable[[], Any], *pauses: float) -> None:
        super().__init__("meddler")
        self.times = 0
        self._meddle, self._pauses = meddle, pauses

    def work(self) -> None:
        """Repeat the action."""
        while not self.stopping.wait(self._pauses[self.times % len(self._pauses)]):
            self._meddle()
            self.times += 1

    def wait_times(self, times: int, seconds: float = 60) -> None:
        """Wait until the action has run `times` times."""
        wait_until(lambda: self.times >= times or self.failure, f"{times} times", seconds=seconds)
