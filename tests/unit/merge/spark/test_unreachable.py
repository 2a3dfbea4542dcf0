"""What S3's errors mean, and servers that do not answer."""

from __future__ import annotations

import socket
import threading

import pytest
from pyspark.errors import PySparkException

from connector.config import LakeConfig
from connector.errors import ConfigurationError
from merge.spark import unreachable
from merge.spark.unreachable import StoreOutageError, UnfitStoreError, explain, explained
from tests.support.landing.landed import config_of

CONFIG = config_of("s3://bucket/landing", "s3a://other/lake")
DENIED = "Forbidden (Service: S3, Status Code: 403, Request ID: X)"
SDK = "software.amazon.awssdk.core.exception.SdkClientException"


@pytest.mark.parametrize(
    ("java", "message", "hint", "affects_all"),
    [
        (
            f"java.net.ConnectException: getFileStatus on s3a://bucket/landing/shop: {SDK}: failed\n"
            "\tat x.Y\nCaused by: java.net.ConnectException: Connection refused\n\t... 5 more",
            "landing.url (s3a://bucket): connecting to the store failed: Connection refused",
            "landing.endpoint is right",
            True,
        ),
        (
            "java.net.UnknownHostException: getFileStatus on s3a://other/lake/_deltatide/cuts/_delta_log\n"
            "Caused by: java.net.UnknownHostException: nowhere.invalid",
            "lake.url (s3a://other): the store's host can't be resolved: nowhere.invalid",
            "landing.endpoint is right",
            True,
        ),
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://bucket/landing': NoSuchBucketException",
            "landing.url (s3a://bucket): the bucket does not exist",
            "create the bucket",
            True,
        ),
        (
            f"java.nio.file.AccessDeniedException: s3a://other/lake/public/t: {DENIED}",
            "lake.url (s3a://other): the store refuses access",
            "AWS_ACCESS_KEY_ID",
            False,
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://bucket/landing: a.s3a.NoAuthWithAWSException: No",
            "landing.url (s3a://bucket): no credentials were found",
            "AWS_PROFILE",
            True,
        ),
        (
            f"org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException: s3a://bucket/landing: {SDK}",
            "landing.url (s3a://bucket): the store does not answer",
            "landing.endpoint is right",
            True,
        ),
        (
            "java.io.IOException: s3a://other ignores If-None-Match: drivers would overwrite",
            "lake.url (s3a://other): the store ignores If-None-Match",
            "lake.single_driver = true",
            True,
        ),
        (
            "IllegalArgumentException: unknown mandatory key fs.option.create.conditional.overwrite",
            "S3: the log store needs Hadoop 3.4.2 or newer",
            "Spark 4.1",
            True,
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_error_of_the_store_names_the_setting(
    java: str, message: str, hint: str, affects_all: bool
) -> None:
    found = explain(PySparkException(java), CONFIG)
    assert found is not None
    assert str(found).startswith(message)
    assert hint in (found.hint or "")
    assert found.affects_all == affects_all
    lasts = "log store" in message or "If-None-Match" in message
    assert isinstance(found, UnfitStoreError if lasts else StoreOutageError), "whether --every waits for it"


@pytest.mark.parametrize(
    "text",
    [
        "[DIVIDE_BY_ZERO] Division by zero",
        "java.nio.file.AccessDeniedException: /data/lake/public",
        "[CAST_INVALID_INPUT] The value 'java.net.ConnectException' of s3a cannot be cast",
        "Job aborted: [TASK_WRITE_FAILED] Task failed while writing rows to s3a://other/lake/public/t.\n"
        "Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'timed out'",
    ],
)
def test_other_errors_pass_unchanged(text: str) -> None:
    assert explain(PySparkException(text), CONFIG) is None
    with pytest.raises(PySparkException), explained(CONFIG):
        raise PySparkException(text)


def test_a_catalog_that_the_session_does_not_have_is_named() -> None:
    lake = LakeConfig.model_validate({"catalog": "main", "schema": "shop"})
    config = CONFIG.model_copy(update={"lake": lake})
    refused = "[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part namespace, but got "
    with pytest.raises(ConfigurationError, match=r"lake\.catalog: .* no catalog 'main'"), explained(config):
        raise PySparkException(f"{refused}`main`.`shop`.")
    with pytest.raises(PySparkException), explained(config):
        raise PySparkException(f"{refused}`x`.`y`.")
    with pytest.raises(PySparkException), explained(CONFIG):
        raise PySparkException(f"{refused}`main`.`shop`.")


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("s3a://other/lake/_deltatide/upkeep/_delta_log/10.checkpoint.parquet", True),
        ("s3a://other/lake/r=EU/1.parquet", False),
    ],
)
def test_a_file_that_was_not_delivered_is_an_outage_of_its_store(file: str, named: bool) -> None:
    """A checkpoint of the lake's own tables broke off: ``merge --every`` ended."""
    text = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file}.  SQLSTATE: KD001"
    cause = "\nCaused by: org.apache.http.ConnectionClosedException: Premature end of Content-Length"
    with pytest.raises(StoreOutageError, match="not delivered whole") as found, explained(CONFIG):
        raise PySparkException(text + cause)
    assert str(found.value).startswith(f"lake.url (s3a://other): {file if named else 'a file'} was not")
    assert not found.value.affects_all
    with pytest.raises(PySparkException), explained(CONFIG):
        raise PySparkException(f"{text}\nCaused by: java.lang.RuntimeException: not a Parquet file")


@pytest.mark.parametrize(
    ("answer", "message", "affects_all"),
    [
        (DENIED, "the store refuses access", False),
        (
            "ExpiredToken: expired (Service: S3, Status Code: 400, Request ID: X)",
            "rejects the credentials",
            True,
        ),
    ],
)
def test_credentials_that_expire_amid_a_merge_are_no_broken_connection(
    answer: str, message: str, affects_all: bool
) -> None:
    """Each table was read six times, and the hint was to merge again."""
    read = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://other/lake/1.parquet."
    text = (
        f"{read}  SQLSTATE: KD001\nCaused by: software.amazon.awssdk.services.s3.model.S3Exception: {answer}"
    )
    found = explain(PySparkException(text), CONFIG)
    assert found is not None
    assert message in str(found)
    assert "AWS_ACCESS_KEY_ID" in (found.hint or "")
    assert found.affects_all == affects_all


def test_an_endpoint_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreachable, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert unreachable._why_unanswered(endpoint) == "does not answer within 0.2 s"
        server.accept()[0].close()

        def answer() -> None:
            client, _ = server.accept()
            client.recv(1000)
            client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        assert unreachable._why_unanswered(endpoint) is None
    assert "refused" in (unreachable._why_unanswered(endpoint) or "")
    assert unreachable._why_unanswered("http://nowhere.invalid") is not None
    assert unreachable._why_unanswered("https://host:99999") is not None
