"""The commands that the demo runs as child processes: `deltatide run` and `deltatide merge`.

Invariant: a child ends with the demo, by `stop` or, if the demo is killed, by a watchdog process that sees a
pipe close. Only processes started here are signaled, by their process id.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from connector.demo.servers.watchdog import Watchdog
from connector.errors import OperatorError


class Child:
    """A deltatide command in its own process, with its output in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.name = f"deltatide {arguments[0]}"
        self.log = log
        # A separate session: Ctrl-C in a terminal goes only to us, and we stop it when we are ready.
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "connector.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process, signal.SIGTERM)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def require_running(self) -> None:
        """Raise `OperatorError` with the end of its output if it has ended unexpectedly."""
        status = self._process.poll()
        if status is not None:
            raise self._ended(status)

    def stop(self, seconds: float = 60.0) -> None:
        """Stop it gracefully and wait; `OperatorError` if it fails, or takes longer than `seconds`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise OperatorError(
                f"{self.name} did not end within {seconds:g} s of SIGTERM", hint=f"see {self.log}"
            ) from None
        self._watchdog.dismiss()
        if status != 0:
            raise self._ended(status)

    def kill(self) -> None:
        """Kill it now; does nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        self._watchdog.dismiss()

    def close(self) -> None:
        """Stop it in any case; never raises."""
        with contextlib.suppress(OperatorError):
            self.stop(seconds=15)

    def _ended(self, status: int) -> OperatorError:
        lines = self.log.read_text(errors="replace").strip().splitlines()[-8:]
        text = "\n".join(f"  {line}" for line in lines)
        return OperatorError(f"{self.name} ended with status {status}:\n{text}", hint=f"see {self.log}")
