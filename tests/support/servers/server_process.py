"""Server programs that tests start, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import wait_until

Self = TypeVar("Self", bound="ServerProcess")


class ServerProcess:
    """A server in a process of its own, with its output in a file; a context manager that stops it."""

    def __init__(
        self,
        title: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        stop_seconds: float = 5.0,
    ) -> None:
        self.title, self.log_path, self._stop_seconds = title, log_path, stop_seconds
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and wait for it to exit."""
        end_process(self.process, self._stop_seconds)

    def wait_until_it(self, answers: Callable[[], bool], seconds: float) -> None:
        """Wait until the server answers; stop it if it does not."""

        def answered() -> bool:
            if self.process.poll() is not None:
                tail = self.log_path.read_text(errors="replace").strip()[-500:]
                raise AssertionError(f"{self.title} ended with status {self.process.returncode}: {tail}")
            return answers()

        try:
            wait_until(answered, f"{self.title} answers (see {self.log_path})", seconds=seconds)
        except BaseException:
            self.stop()
            raise


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process by SIGTERM, or kill it after `seconds`; return when it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
