"""The proxy that fails as stores do: each fault is what its name says, and counts only when it happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.config
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from tests.support.servers import faulty_s3
from tests.support.servers.faulty_s3 import FaultyS3
from tests.support.servers.s3_server import S3
from tests.support.waiting import wait_until

ERRORS = {
    faulty_s3.ERROR: ClientError,
    faulty_s3.BUSY: ClientError,
    faulty_s3.LOST: ConnectionClosedError,
    faulty_s3.TIMEOUT: ReadTimeoutError,
    faulty_s3.ERROR_AFTER: ClientError,
    faulty_s3.LOST_AFTER: ConnectionClosedError,
    faulty_s3.TIMEOUT_AFTER: ReadTimeoutError,
    faulty_s3.LATE: ReadTimeoutError,
}


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyS3]:
    with FaultyS3(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def client(s3: S3, proxy: FaultyS3) -> Any:
    once = {"mode": "standard", "total_max_attempts": 1}
    settings: Any = {"s3": {"addressing_style": "path"}, "retries": once, "read_timeout": 0.5}
    return boto3.client(
        "s3", endpoint_url=proxy.endpoint, region_name=s3.region, config=botocore.config.Config(**settings),
        aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key,
    )  # fmt: skip


def exists(s3: S3, key: str) -> bool:
    return bool(s3.client().list_objects_v2(Bucket=s3.bucket, Prefix=key).get("Contents"))


@pytest.mark.parametrize("kind", ERRORS)
def test_a_write_fails_before_or_after_it_took_effect(
    s3: S3, proxy: FaultyS3, client: Any, kind: str
) -> None:
    proxy.force(kind)
    with pytest.raises(ERRORS[kind]):
        client.put_object(Bucket=s3.bucket, Key="a", Body=b"1", IfNoneMatch="*")
    if kind in faulty_s3.HANGING:
        wait_until(lambda: proxy.counts[kind], "the proxy notices that its client gave up")
    assert exists(s3, "a") == (kind in faulty_s3.AFTER)
    counted = {kind: 1, faulty_s3.CREATE_LOST: 1} if kind in faulty_s3.AFTER else {kind: 1}
    assert dict(proxy.counts) == counted
    client.put_object(Bucket=s3.bucket, Key="b", Body=b"1")
    assert dict(proxy.counts) == counted


def test_a_write_that_is_refused_is_no_write_whose_answer_was_lost(
    s3: S3, proxy: FaultyS3, client: Any
) -> None:
    client.put_object(Bucket=s3.bucket, Key="a", Body=b"1", IfNoneMatch="*")
    proxy.force(faulty_s3.CREATE_LOST)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3.bucket, Key="a", Body=b"2", IfNoneMatch="*")
    assert not proxy.counts
    with pytest.raises(ConnectionClosedError):  # what was forced waits until it happens
        client.put_object(Bucket=s3.bucket, Key="b", Body=b"2", IfNoneMatch="*")
    assert dict(proxy.counts) == {faulty_s3.LOST_AFTER: 1, faulty_s3.CREATE_LOST: 1}


def test_a_body_is_cut_short_or_slow(s3: S3, proxy: FaultyS3, client: Any) -> None:
    client.put_object(Bucket=s3.bucket, Key="a", Body=b"0123456789" * 100)
    proxy.force(faulty_s3.TRUNCATED)
    with pytest.raises(ResponseStreamingError):
        client.get_object(Bucket=s3.bucket, Key="a")["Body"].read()
    proxy.force(faulty_s3.SLOW)
    begun = time.monotonic()
    assert client.get_object(Bucket=s3.bucket, Key="a")["Body"].read() == b"0123456789" * 100
    assert time.monotonic() - begun > 0.9
    assert dict(proxy.counts) == {faulty_s3.TRUNCATED: 1, faulty_s3.SLOW: 1}


def test_after_the_end_of_faults_all_requests_pass_and_none_hangs(
    s3: S3, proxy: FaultyS3, client: Any
) -> None:
    proxy.share = 1.0
    proxy.force(faulty_s3.TIMEOUT)
    threading.Timer(0.2, proxy.end_faults).start()
    with pytest.raises((ConnectionClosedError, ReadTimeoutError)):
        client.put_object(Bucket=s3.bucket, Key="a", Body=b"1")
    wait_until(lambda: not proxy.share, "faults end")
    for _ in range(20):
        client.put_object(Bucket=s3.bucket, Key="a", Body=b"1")
    assert not proxy.counts or dict(proxy.counts) == {faulty_s3.TIMEOUT: 1}
