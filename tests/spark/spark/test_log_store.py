"""Delta commits on a real S3 server: nothing that a driver committed is overwritten, or committed twice."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import PreconditionError
from merge.job import merge_once
from merge.spark import log_store
from tests.support.landing.landed import Event, Landed, config_of, schema_of
from tests.support.servers.s3_proxy import S3Proxy
from tests.support.servers.s3_server import S3, S3Server, versitygw_path
from tests.support.spark.spark_sessions import CONNECT_MODE, require_conditional_writes

REPOSITORY = Path(__file__).resolve().parents[3]
COMMIT = r"/_delta_log/\d{20}\.json"
FOREIGN = '{"commitInfo":{"timestamp":1,"operation":"FOREIGN","operationParameters":{},"txnId":"other"}}\n'


@pytest.fixture(autouse=True)
def conditional_writes() -> None:
    require_conditional_writes()


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with S3Proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def table(spark: SparkSession, s3: S3, proxy: S3Proxy) -> Iterator[str]:
    """A table with one row in a bucket that Spark reaches by way of the proxy."""
    setting = f"fs.s3a.bucket.{s3.bucket}.endpoint"
    spark.conf.set(setting, proxy.endpoint)
    table = f"delta.`s3a://{s3.bucket}/lake/t`"
    spark.sql(f"CREATE TABLE {table} (id int) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (0)")
    yield table
    spark.conf.unset(setting)


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {table}").collect())


def operations(spark: SparkSession, table: str) -> dict[int, str]:
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    return {row.version: row.operation for row in history}


def test_a_commit_held_on_its_way_does_not_overwrite_the_faster_one_of_another_driver(
    spark: SparkSession, s3: S3, proxy: S3Proxy, table: str
) -> None:
    arrived, free = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/00000000000000000002.json") and not arrived.is_set():
            arrived.set()
            free.wait(60)

    proxy.before = hold
    slow = threading.Thread(target=spark.sql, args=(f"INSERT INTO {table} VALUES (1)",))
    slow.start()
    assert arrived.wait(60)
    key = "lake/t/_delta_log/00000000000000000002.json"
    s3.client().put_object(Bucket=s3.bucket, Key=key, Body=FOREIGN.encode())
    free.set()
    slow.join(60)
    assert s3.client().get_object(Bucket=s3.bucket, Key=key)["Body"].read().decode() == FOREIGN
    assert 412 in proxy.answered("PUT", COMMIT)
    assert ids(spark, table) == [0, 1]
    assert operations(spark, table) == {0: "CREATE TABLE", 1: "WRITE", 2: "FOREIGN", 3: "WRITE"}


def test_a_commit_whose_answer_is_lost_is_made_once(spark: SparkSession, proxy: S3Proxy, table: str) -> None:
    lost: list[str] = []

    def lose(method: str, path: str) -> bool:
        if method != "PUT" or not re.search(COMMIT, path) or path in lost:
            return False
        lost.append(path)
        return True

    proxy.loses = lose
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    spark.sql(f"INSERT INTO {table} VALUES (2)")
    assert len(lost) == 2
    assert proxy.answered("PUT", COMMIT).count(412) == 2
    assert ids(spark, table) == [0, 1, 2]
    assert list(operations(spark, table)) == [3, 2, 1, 0]


def test_two_drivers_that_append_at_once_lose_nothing(
    spark: SparkSession, s3: S3, proxy: S3Proxy, table: str
) -> None:
    rows = 4
    local = {name: value for name, value in os.environ.items() if name not in (CONNECT_MODE, "SPARK_REMOTE")}
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark.lake_driver",
         proxy.endpoint, s3.access_key, s3.secret_key, table, "1000", str(rows)],
        cwd=REPOSITORY, env={**local, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    delays = random.Random(7)

    def delay(method: str, path: str) -> None:
        if method == "PUT" and re.search(COMMIT, path):
            time.sleep(delays.uniform(0.2, 0.5))

    proxy.before = delay
    other.stdin.write("go\n")
    other.stdin.close()
    number = 0
    while number < rows or (other.poll() is None and 412 not in proxy.answered("PUT", COMMIT)):
        number += 1
        spark.sql(f"INSERT INTO {table} VALUES ({number})")
    assert other.wait(120) == 0
    assert ids(spark, table) == [*range(number + 1), *range(1000, 1000 + rows)]
    assert len(operations(spark, table)) == 2 + number + rows
    assert 412 in proxy.answered("PUT", COMMIT), "the drivers never met"


@pytest.mark.skipif(versitygw_path() is None, reason="needs versitygw, which can ignore conditions")
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with S3Server(tmp_path, honour_conditions=False) as server:
        store = server.s3.with_bucket("no-conditions")
        for name, value in reached(store).items():
            spark.conf.set(name, value)
        with pytest.raises(Exception, match="ignores If-None-Match"):
            spark.sql(f"CREATE TABLE delta.`s3a://{store.bucket}/lake/t` (id int) USING delta")
        listed = store.client().list_objects_v2(Bucket=store.bucket).get("Contents", [])
        assert not [entry["Key"] for entry in listed if "json" in entry["Key"] or "probe" in entry["Key"]]


def reached(s3: S3) -> dict[str, str]:
    """Settings of a session by which it reaches a bucket."""
    values = {"endpoint": s3.endpoint, "access.key": s3.access_key, "secret.key": s3.secret_key}
    return {f"fs.s3a.bucket.{s3.bucket}.{name}": value for name, value in values.items()}


def test_a_merge_refuses_a_lake_on_s3_without_the_log_store(
    spark: SparkSession, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = Landed.local(tmp_path)
    config = config_of(str(tmp_path), f"s3a://{s3.bucket}/lake")
    table = schema_of("public.t", id="int")
    landed.table(table)
    landed.commit(10, [landed.log(table, [Event("insert", 5, 0, {"id": 1})])])
    # Delta looks at the context's settings alone: what a session is told later is no log store.
    monkeypatch.setattr(log_store, "KEY", "spark.delta.logStore.tests.impl")
    spark.conf.set(log_store.KEY, log_store.CLASS)
    with pytest.raises(PreconditionError, match="not set: another driver could overwrite") as refused:
        merge_once(spark, config)
    assert "lake.single_driver = true" in (refused.value.hint or "")
    spark.conf.unset(log_store.KEY)
    alone = config.model_copy(update={"lake": config.lake.model_copy(update={"single_driver": True})})  # type: ignore[union-attr]
    assert not merge_once(spark, alone).failed
    monkeypatch.undo()
    assert not merge_once(spark, config).failed
