"""A Spark Connect server for tests, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from connector.demo.servers.starting import free_port
from tests.support.waiting import wait_until

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 120.0


class ConnectServer:
    """One server process, with its output in a folder; a context manager that stops it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        self.log_path = folder / "spark-connect.log"
        bound = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                _command({**settings, **bound}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SPARK_CONNECT_MODE": "0"},
                start_new_session=True,
            )
        try:
            wait_until(
                lambda: self._answers(port),
                f"Spark Connect answers (see {self.log_path})",
                seconds=START_SECONDS,
            )
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> ConnectServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and wait for it to exit."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def _answers(self, port: int) -> bool:
        if self.process.poll() is not None:
            tail = self.log_path.read_text(errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(
                f"Spark Connect ended with status {self.process.returncode}: {' / '.join(tail)}"
            )
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0


def _command(settings: Mapping[str, str]) -> list[str]:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    confs = [item for name, value in settings.items() for item in ("--conf", f"{name}={value}")]
    return [str(home / "bin" / "spark-submit"), "--class", CLASS, *confs]
