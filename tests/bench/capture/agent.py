"""The agent under measurement: the installed command in its own process, observed from outside.

Its manifests show what is committed and when; /proc shows the cost. It stops with the bench: gracefully, or,
if the bench is killed, through a watchdog process that sees a pipe close.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from connector.demo.servers.starting import free_port
from connector.demo.servers.watchdog import Watchdog
from connector.errors import OperatorError
from connector.landing.format import manifest_path
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import ManifestReader
from connector.store.local import LocalStore
from tests.bench.databases.database import Database
from tests.support.servers.server_process import end_process

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE = "bench"
SLOT = PUBLICATION = f"deltatide_{SOURCE}"
POLL_SECONDS = 0.01
LIMIT_SECONDS = 240.0
_TICKS = os.sysconf("SC_CLK_TCK")

CONFIGURATION = """
[source]
name = "{source}"
kind = "{kind}"
url = "{url}"
tables = ["{tables}"]
[landing]
url = "{folder}/landing"
{landing}
[control]
listen = "{address}"
[dump]
workers = 2
[lake]
url = "{folder}/lake"
"""


@dataclass(frozen=True)
class Moment:
    """A manifest, when it was created, and the agent's CPU time when it was seen."""

    manifest: Manifest
    created: float
    cpu_seconds: float


class Agent:
    """One agent process; a context manager that stops it gracefully.

    `url`: replaces the database's TCP URL.
    `streaming`: never read in bulk, however far behind. `landing`: more settings for that section. `standby`:
    it stands by while another one of the same folder is active.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        url: str = "",
        *,
        streaming: bool = False,
        landing: str = "",
        standby: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.zone = folder / "landing" / SOURCE
        self.configuration = folder / "bench.toml"
        self.address = f"127.0.0.1:{free_port()}"
        self.configuration.write_text(
            CONFIGURATION.format(
                source=SOURCE,
                kind=database.kind,
                url=url or database.urls["TCP"],
                tables=database.tables,
                folder=folder,
                landing=landing,
                address=self.address,
            )
        )
        self._log = folder / "agent.log"
        self._module = "tests.bench.capture.streaming_agent" if streaming else "connector.cli"
        self._options = ["--standby"] if standby else []
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._number = 0
        self._manifests = ManifestReader(LocalStore(self.zone))

    def __enter__(self) -> Agent:
        self.skip()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "run", *self._options, "-c", str(self.configuration)],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._watchdog = Watchdog(self._process, signal.SIGTERM)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        end_process(process, 60)
        watchdog, self._watchdog = self._watchdog, None
        assert watchdog is not None
        watchdog.dismiss()
        if kind is None and process.returncode != 0 and not self._killed:
            raise self._ended(process.returncode)

    def skip(self) -> None:
        """Pass over the manifests that there are."""
        while self._file(self._number + 1).exists():
            self._number += 1

    def next(self, seconds: float = LIMIT_SECONDS) -> Moment:
        """Wait for the next manifest after the last one returned."""
        path = self._file(self._number + 1)
        deadline = time.monotonic() + seconds
        while not path.exists():
            status = self._process.poll() if self._process else 0
            if status is not None:
                raise self._ended(status)
            if time.monotonic() > deadline:
                raise OperatorError(f"no manifest within {seconds:g} s", hint=f"see {self._log}")
            time.sleep(POLL_SECONDS)
        self._number += 1
        manifest = self._manifests.read(self._number)
        assert manifest is not None
        return Moment(manifest, path.stat().st_ctime, self.cpu_seconds())

    def until(self, holds: Callable[[Manifest], bool]) -> Moment:
        """Wait for a manifest that meets a condition."""
        while True:
            moment = self.next()
            if holds(moment.manifest):
                return moment

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, which may end by SIGKILL."""
        assert self._process is not None
        self._process.send_signal(number)
        self._killed = number == signal.SIGKILL

    def wait_says(self, text: str, times: int = 1) -> None:
        """Wait until the agents of this folder have said a text so often."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._log.read_text(errors="replace").count(text) < times:
            if time.monotonic() > deadline:
                raise OperatorError(f"no agent says {text!r}", hint=f"see {self._log}")
            time.sleep(POLL_SECONDS)

    def cpu_seconds(self) -> float:
        """Return the process's user and system time so far; the resolution is a kernel clock tick, 10 ms."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def size_of(self, manifest: int) -> int:
        """Return the size of a manifest's object in bytes."""
        return self._file(manifest).stat().st_size

    def peak_mb(self) -> float:
        """Return the peak resident memory in MB (10^6 bytes)."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6

    def _proc(self, name: str) -> str:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/{name}").read_text()

    def _file(self, number: int) -> Path:
        return self.zone / manifest_path(number)

    def _ended(self, status: int) -> OperatorError:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-8:]
        return OperatorError(f"the agent ended with status {status}:\n" + "\n".join(lines))
