"""A merge with the policy of conf/security/iam-merge.json, on an S3 server that evaluates it."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from merge import live, merge_once
from tests.support.landing.landed import Landed, config_of
from tests.support.landing.zone import ORDERS, T, delete, insert, update_of_a
from tests.support.servers.s3_server import S3ServerWithUsers, versitygw_path
from tests.support.source.security import policy
from tests.support.spark.spark_sessions import require_conditional_writes


def test_a_merge_reads_and_asks_and_records_how_far_it_is_and_can_write_no_manifest(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_conditional_writes()
    if versitygw_path() is None:
        pytest.skip("versitygw is not there, the server that has users: .ci/fetch-servers makes it")
    with S3ServerWithUsers(tmp_path) as server:
        bucket = "rights-of-merges"  # of this test alone: Hadoop keeps one client for each bucket
        root = server.s3.with_bucket(bucket).client()
        user = server.user("merge", policy("merge", bucket))
        settings = {"endpoint": user.endpoint, "access.key": user.access_key, "secret.key": user.secret_key}
        for name, value in settings.items():
            spark.conf.set(f"fs.s3a.bucket.{bucket}.{name}", value)
            request.addfinalizer(lambda name=name: spark.conf.unset(f"fs.s3a.bucket.{bucket}.{name}"))

        def put(path: str, data: bytes) -> None:
            root.put_object(Bucket=bucket, Key=f"landing/shop/{path}", Body=data)

        landed = Landed(f"s3://{bucket}/landing", put)
        landed.table(ORDERS)
        config = config_of(landed.url, f"s3://{bucket}/lake")
        landed.commit(10, [landed.log(ORDERS, [insert(5, 1), update_of_a(6, 2, 5)])])
        assert not merge_once(spark, config).failed
        landed.commit(20, [landed.log(ORDERS, [delete(15, 1)])])
        assert not merge_once(spark, config).failed
        assert [tuple(row) for row in live(spark, config, T).select("id", "a").collect()] == [(2, 5)]

        keys = [item["Key"] for item in root.list_objects_v2(Bucket=bucket)["Contents"]]
        for folder in ("requests", "consumers"):
            parts = [key for key in keys if key.startswith(f"landing/shop/{folder}/") and "/part-" in key]
            assert parts, folder
            assert not [key for key in keys if f"/{folder}/" in key and "_temporary/" in key]
        (manifest, *_) = (key for key in keys if "/manifest/" in key)
        for write in (user.client().put_object, user.client().delete_object):
            with pytest.raises(ClientError, match="AccessDenied"):
                write(Bucket=bucket, Key=manifest)
