"""A Spark Connect server for tests, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from connector.demo.servers.starting import free_port
from tests.support.servers.server_process import ServerProcess

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 120.0


class ConnectServer(ServerProcess):
    """One server, with its output in a folder; a context manager that stops it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        bound = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        super().__init__(
            "Spark Connect",
            _command({**settings, **bound}),
            folder / "spark-connect.log",
            {**os.environ, "SPARK_CONNECT_MODE": "0"},
            stop_seconds=10,
        )
        self.wait_until_it(lambda: _listens(port), START_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _command(settings: Mapping[str, str]) -> list[str]:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    confs = [item for name, value in settings.items() for item in ("--conf", f"{name}={value}")]
    return [str(home / "bin" / "spark-submit"), "--class", CLASS, *confs]
