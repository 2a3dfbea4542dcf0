"""Spark sessions of tests, classic or over Spark Connect."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from connector.demo.servers.starting import free_port
from merge.spark.session import S3Access, local_session
from merge.spark.session_pool import offers_own_sessions
from merge.spark.session_settings import INTERPRETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's options for tests and the commands that they run (JDK_JAVA_OPTIONS): they merge few rows and never
recoup the cost of the second compiler. With one compiler Java keeps only 48 MB of compiled code; Spark's
needs more, and would be compiled again."""

QUICK_JAVA = "-XX:+UseSerialGC"

QUICK_QUERIES = {**INTERPRETED, "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4"}
"""Spark's settings: of few rows, reading is quicker so as well as merging; and no 10,000 tasks for VACUUM."""

CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""While this is set, pyspark's functions build columns of Spark Connect."""

_others: list[SparkSession] = []

JARS = Path(pyspark.__file__).parent / "jars"
PORT = "spark.connect.grpc.binding.port"


@contextmanager
def local_spark(s3: S3Access) -> Iterator[SparkSession]:
    """Yield a local session that also serves Spark Connect, where its release can; stop it at the end."""
    settings = dict(QUICK_QUERIES)
    if comes_with_connect():
        settings["spark.plugins"] = "org.apache.spark.sql.connect.SparkConnectPlugin"
        settings["spark.connect.grpc.binding.address"] = "127.0.0.1"
        settings[PORT] = str(free_port())
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_SUBMIT_ARGS", f"{given} pyspark-shell")
        session = local_session("deltatide-tests", s3=s3, java_options=QUICK_JAVA)
    yield session
    session.stop()


def comes_with_connect() -> bool:
    """Return whether the release of Spark has Spark Connect's server among its own jars."""
    return any(JARS.glob("spark-connect_*.jar"))


def serving_at(spark: SparkSession) -> str | None:
    """Return the address at which a session of `local_spark` serves; None if its release can't."""
    port = spark.conf.get(PORT, None)
    return None if port is None else f"sc://127.0.0.1:{port}"


def served_at(spark: SparkSession) -> str:
    """Return the same; skip the test if there is none."""
    url = serving_at(spark)
    if url is None:
        pytest.skip("this release of Spark has no Spark Connect of its own")
    return url


@contextmanager
def connected(url: str) -> Iterator[SparkSession]:
    """Yield a session on a Spark Connect server; during the block, this process is in Connect mode."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_REMOTE", url)
        patched.setenv(CONNECT_MODE, "1")
        session = _connect()
        yield session
        while _others:  # while the server is there: later, each waits for it for minutes
            _others.pop().stop()
        session.stop()


def another_session(spark: SparkSession) -> SparkSession:
    """Return a further session of the same kind, with default settings.

    One of Spark Connect is kept to the end: in Spark 4.0, its finalizer fails the calls of all others that
    garbage collection interrupts.
    """
    if not os.environ.get(CONNECT_MODE):
        return spark.newSession()
    other = _connect()
    _others.append(other)
    return other


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return a frame's rows as Arrow, also before Spark 4, which has no method for it."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    collected: Any = frame
    return pa.Table.from_batches(collected._collect_as_arrow())


def forget_delta_logs(spark: SparkSession) -> None:
    """Make Delta reread each table's log: files that it knows were replaced."""
    if os.environ.get(CONNECT_MODE):
        pytest.skip("what Delta remembers of a table can't be dropped over Spark Connect")
    java: Any = spark._jvm
    java.org.apache.spark.sql.delta.DeltaLog.clearCache()


@contextmanager
def files_limited_to(spark: SparkSession, size: int) -> Iterator[None]:
    """During the block, Java can write no more bytes to a file: it fails, as on a full disk."""
    if os.environ.get(CONNECT_MODE):
        pytest.skip("the process of a Spark Connect server can't be limited from here")
    java: Any = spark._jvm
    pid = java.java.lang.ProcessHandle.current().pid()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def require_own_sessions(spark: SparkSession) -> None:
    """Skip a test of what a merge's own sessions are for, where it has none."""
    if not offers_own_sessions(spark):
        pytest.skip("before Spark 4.1, a merge over Spark Connect has no session of its own")


def require_conditional_writes() -> None:
    """Skip a test of a lake on S3 where Spark comes with a Hadoop whose S3 client has none."""
    versions = [re.findall(r"\d+", jar.stem) for jar in JARS.glob("hadoop-client-api-*.jar")]
    if versions and [int(part) for part in versions[0][:3]] < [3, 4, 2]:
        pytest.skip(f"a lake on S3 needs Hadoop 3.4.2; this is {'.'.join(versions[0][:3])}")


def _connect() -> SparkSession:
    from pyspark.sql.connect.session import SparkSession as Connected

    session: Any = Connected.builder.remote(os.environ["SPARK_REMOTE"]).create()
    return session
