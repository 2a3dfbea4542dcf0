"""Starts the Java process of a local Spark session, shielded from signals meant for the command.

A service manager sends SIGTERM to every process of a service, a terminal sends SIGINT and SIGHUP to every
process of a job. Java would exit at once, in the middle of a commit. So it ignores all three, and exits when
this process closes a pipe to it or dies.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

SPARED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

END_SECONDS = 10.0
"""Kill Java if it has not exited by then, for example because a store hangs."""


LAST_LINES = 3
"""How many lines of Java's output say why it failed."""

_started: list[subprocess.Popen[bytes]] = []
_logs: list[Path] = []


class Ended(NamedTuple):
    """How Java ended: by itself and without an error (`well`), or not; and the last lines of its output."""

    well: bool
    output: str


@contextmanager
def started(settings: Mapping[str, str], log: Path) -> Iterator[None]:
    """Let pyspark use a Java process started here; its stdout and stderr go to `log`.

    `settings` are Spark's, for the launch. Does nothing if pyspark already has a Java process. The process
    outlives the block and exits with Python, and its log is removed; the log stays if the block fails.
    `RuntimeError` when Java does not start.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        log.unlink(missing_ok=True)
        yield
        return
    with log.open("ab") as output:
        port, secret = _launch(settings, output)
    _logs.append(log)
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    try:
        yield
        atexit.register(log.unlink, missing_ok=True)
    finally:
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)


def _launch(settings: Mapping[str, str], output: IO[bytes]) -> tuple[int, str]:
    """Start Java and return its port and secret."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    arguments = [item for name, value in settings.items() for item in ("--conf", f"{name}={value}")]
    arguments += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory() as folder:
        connection_file = Path(folder, "connection")
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
            },
            preexec_fn=_ignore_signals,
        )
        try:
            _wait_for(connection_file, process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        _started.append(process)
        atexit.register(_end, process)
        answer = connection_file.read_bytes()
    port, length = struct.unpack_from(">ii", answer)
    return port, answer[8 : 8 + length].decode()


def _wait_for(connection_file: Path, process: subprocess.Popen[bytes]) -> None:
    while not connection_file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"Java exited with status {process.returncode}")
        time.sleep(0.05)


def _ignore_signals() -> None:
    """Ignore signals in the process about to become Java; ignored signals stay ignored across exec."""
    for number in SPARED:
        signal.signal(number, signal.SIG_IGN)


def kill_java() -> None:
    """Kill Java at once; this is safe, since commits to Delta are atomic."""
    for process in _started:
        process.kill()


def end_java(seconds: float) -> Ended:
    """Have Java exit now; kill it if it has not after that many seconds."""
    well = [_end(process, seconds) for process in _started]
    return Ended(all(well), " / ".join(filter(None, map(last_lines, _logs))))


def last_lines(log: Path) -> str:
    """Return the last lines of Java's output; empty if there are none."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " / ".join(lines[-LAST_LINES:])


def _end(process: subprocess.Popen[bytes], seconds: float = END_SECONDS) -> bool:
    """Close the pipe that keeps Java alive, and wait until it exits; return whether it did without an error.

    Py4J still reports objects that Python drops, and would log a traceback when nobody answers.
    """
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
