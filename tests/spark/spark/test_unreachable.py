"""Merges whose store is away, lacks the bucket or refuses us."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config import Config
from merge import merge_every, merge_once
from merge.spark.session import S3A
from merge.spark.unreachable import StoreOutageError
from tests.support.landing.landed import Event, Landed, config_of, schema_of
from tests.support.servers.lossy_proxy import LossyProxy
from tests.support.servers.s3_server import S3
from tests.support.spark.spark_sessions import require_conditional_writes

TABLE = schema_of("public.t", id="int")


@pytest.fixture(autouse=True)
def conditional_writes() -> None:
    require_conditional_writes()


def landed_on(s3: S3) -> Config:
    """A configuration whose landing zone, with one event, and lake are in a bucket."""
    client = s3.client()

    def put(path: str, data: bytes) -> None:
        client.put_object(Bucket=s3.bucket, Key=f"landing/shop/{path}", Body=data)

    landed = Landed(f"s3://{s3.bucket}/landing", put)
    landed.table(TABLE)
    landed.commit(10, [landed.log(TABLE, [Event("insert", 5, 0, {"id": 1})])])
    return config_of(landed.url, f"s3://{s3.bucket}/lake")


def test_merging_again_and_again_outlives_an_outage_and_logs_it_once(
    spark: SparkSession, s3: S3, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "merge.schedule")
    stop, reports = threading.Event(), []
    port = int(s3.endpoint.rpartition(":")[2])

    with LossyProxy(1) as proxy:  # nobody listens there
        config = landed_on(s3)
        # Where it is looked at from here; Spark itself goes to the server.
        spark.conf.set(f"{S3A}endpoint", f"http://127.0.0.1:{proxy.port}")
        pauses: list[float | None] = []

        def wait(timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 3:
                proxy.lead_to(port)
            return stop.is_set()

        def seen(report: Any) -> None:
            reports.append(report)
            stop.set()

        monkeypatch.setattr(stop, "wait", wait)
        try:
            merge_every(spark, config, 0.01, report=seen, stop=stop)
        finally:
            spark.conf.set(f"{S3A}endpoint", s3.endpoint)
    assert [len(report.failed) for report in reports] == [0]
    assert pauses[:3] == [1.0, 2.0, 4.0]
    said = [record.message for record in caplog.records if record.name == "merge.schedule"]
    assert len(said) == 2, said
    assert "landing.endpoint" in said[0]
    assert said[1] == "the store answers again"


def test_a_missing_bucket_and_wrong_credentials_are_named(spark: SparkSession, s3: S3) -> None:
    config = config_of("s3://bucket-that-is-not-there/landing", "s3://bucket-that-is-not-there/lake")
    with pytest.raises(
        StoreOutageError, match=r"landing\.url and lake\.url \(.*\): the bucket does not exist"
    ):
        merge_once(spark, config)
    setting = f"fs.s3a.bucket.{s3.bucket}.secret.key"
    spark.conf.set(setting, "wrong" * 5)
    try:
        with pytest.raises(StoreOutageError, match="refuse") as refused:
            merge_once(spark, landed_on(s3))
        assert "AWS_SECRET_ACCESS_KEY" in (refused.value.hint or "")
    finally:
        spark.conf.unset(setting)
