from __future__ import annotations

from pathlib import Path

import botocore.exceptions
import pytest

from tests.support.servers.s3_server import S3, S3Server, versitygw_path


def test_of_two_conditional_creates_the_second_is_refused(s3: S3) -> None:
    client = s3.client()
    client.put_object(Bucket=s3.bucket, Key="manifest/1.json", Body=b"first", IfNoneMatch="*")
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3.bucket, Key="manifest/1.json", Body=b"second", IfNoneMatch="*")
    assert client.get_object(Bucket=s3.bucket, Key="manifest/1.json")["Body"].read() == b"first"


def test_moto_takes_the_place_of_a_missing_server(tmp_path: Path) -> None:
    with S3Server(tmp_path, kind="moto") as server:
        test_of_two_conditional_creates_the_second_is_refused(server.s3.with_bucket("double"))


@pytest.mark.skipif(versitygw_path() is None, reason="no versitygw on this machine")
def test_a_server_can_be_had_that_ignores_conditions_silently(tmp_path: Path) -> None:
    with S3Server(tmp_path, honour_conditions=False) as server:
        s3 = server.s3.with_bucket("careless")
        for body in (b"first", b"second"):
            s3.client().put_object(Bucket=s3.bucket, Key="1.json", Body=body, IfNoneMatch="*")
        assert s3.client().get_object(Bucket=s3.bucket, Key="1.json")["Body"].read() == b"second"
