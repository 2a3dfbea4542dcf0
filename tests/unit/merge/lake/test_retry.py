"""Commits that lost to another job's: retried a few times, then reported."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException
from tenacity import wait_none

from connector.errors import FencedError, TableError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake import retry
from merge.lake.control_table import create_cuts
from merge.lake.retry import (
    ATTEMPTS,
    UNDELIVERED_HINT,
    causes,
    innermost,
    is_lost_file,
    printed,
    reason_without_values,
    unread_hint,
    where_it_was,
    whole_reason,
    with_retries,
    without_values,
)
from merge.proof.differences import record_differences
from merge.report import MergeReport, TableReport, ViewReport
from tests.support.landing.landed import config_of

CONFLICT = PySparkException("[DELTA_CONCURRENT_APPEND] another one came first")
S3_ERROR = "software.amazon.awssdk.services.s3.model.S3Exception"
BEING_CREATED = AnalysisException("[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table")


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WAIT", wait_none())


class Commit:
    """Fails with `error` the first `failures` times."""

    def __init__(self, failures: int, error: Exception = CONFLICT) -> None:
        self.calls, self._failures, self._error = 0, failures, error

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "done"


@pytest.mark.usefixtures("no_wait")
def test_a_commit_that_lost_is_repeated() -> None:
    commit = Commit(ATTEMPTS - 1)
    assert with_retries(commit, "public.t") == "done"
    assert commit.calls == ATTEMPTS


@pytest.mark.usefixtures("no_wait")
def test_one_that_always_loses_is_reported_with_its_cause() -> None:
    commit = Commit(ATTEMPTS)
    with pytest.raises(FencedError, match=r"public\.t: another job keeps writing there") as refused:
        with_retries(commit, "public.t")
    assert (commit.calls, refused.value.__cause__) == (ATTEMPTS, CONFLICT)


@pytest.mark.parametrize("error", [PySparkException("no such column"), FencedError()])
def test_other_errors_are_not_repeated(error: Exception) -> None:
    commit = Commit(1, error)
    with pytest.raises(type(error)) as raised:
        with_retries(commit, "public.t")
    assert (commit.calls, raised.value) == (1, error)


@pytest.mark.usefixtures("no_wait")
def test_files_where_a_table_is_to_be_created_are_named() -> None:
    with pytest.raises(AnalysisException, match="Cannot create table"):
        with_retries(Commit(ATTEMPTS, BEING_CREATED), "public.t")


def test_another_job_may_need_a_second_to_create_the_table() -> None:
    """Its folder is there before its commit, which fails as files that stay do."""
    created = time.monotonic() + 1

    def create() -> str:
        if time.monotonic() < created:
            raise BEING_CREATED
        return "done"

    assert with_retries(create, "public.t") == "done"


def test_tables_that_two_jobs_create_at_once_are_created_again() -> None:
    config = config_of("landing", "lake")
    changed = PySparkException("[DELTA_PROTOCOL_CHANGED] ProtocolChangedException: changed by another")

    class Session:
        def __init__(self) -> None:
            self.create, self.catalog = Commit(1, changed), self

        def sql(self, statement: str) -> Any:
            if statement.startswith("CREATE"):
                self.create()
            return self

        def collect(self) -> list[Any]:
            return []

        def createOrReplaceTempView(self, _: str) -> None: ...

        def dropTempView(self, _: str) -> None: ...

    session: Any = Session()
    create_cuts(session, config)
    assert session.create.calls == 2
    session, at = Session(), SimpleNamespace(number=1, epoch=1, position=10)
    record_differences(session, config, "run", TableName("public", "t"), cast(Manifest, at), session)
    assert session.create.calls == 2


@pytest.mark.parametrize(
    ("cause", "lost"),
    [
        ("/lake/t/part-0.parquet (No such file or directory)", True),
        ("/lake/t/part-0.parquet (Too many open files)", False),
        ("/lake/t/part-0.parquet (Permission denied)", False),
        ("/tmp/blockmgr-1/0c/shuffle_0_0_0.index (No such file or directory)", False),
    ],
)
def test_a_file_that_cannot_be_opened_now_is_not_lost(cause: str, lost: bool) -> None:
    spark = "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"
    assert (
        is_lost_file(PySparkException(f"{spark}\nCaused by: java.io.FileNotFoundException: {cause}")) == lost
    )


@pytest.mark.parametrize("name", ["[DELTA_VERSION_NOT_FOUND] ", ""])
def test_a_version_that_delta_no_longer_has_is_lost_though_before_4_delta_names_no_condition(
    name: str,
) -> None:
    said = "Cannot time travel Delta table to version 3. Available versions: [5, 6]."
    assert is_lost_file(AnalysisException(name + said))


@pytest.mark.parametrize(
    ("cause", "delivered"),
    [
        ("software.amazon.awssdk.thirdparty.org.apache.http.ConnectionClosedException: Premature end", False),
        ("org.apache.hadoop.fs.s3a.AWSStatus500Exception: open s3a://b/1.parquet", False),
        ("java.net.SocketTimeoutException: Read timed out", False),
        ("org.apache.parquet.io.ParquetDecodingException: could not verify page checksum", True),
        ("java.lang.RuntimeException: s3a://b/1.parquet is not a Parquet file", True),
        (
            f"{S3_ERROR}: The specified key does not exist. (Service: S3, Status Code: 404, Request ID: X)",
            True,
        ),
        (f"{S3_ERROR}: Slow Down (Service: S3, Status Code: 503, Request ID: X)", False),
    ],
)
def test_a_file_that_its_store_did_not_deliver_is_not_called_damaged(cause: str, delivered: bool) -> None:
    """As seen when connections break amid a body: it was to be restored from a copy."""
    error = PySparkException(
        f"[FAILED_READ_FILE.NO_HINT] Encountered error\n\tat x.Y\nCaused by: {cause}\n\tat z"
    )
    hint = unread_hint(error, "restore it from a copy")
    assert hint == ("restore it from a copy" if delivered else UNDELIVERED_HINT)


def test_what_a_store_did_not_deliver_is_read_again(no_wait: None) -> None:
    """One of a cut's many tables would fail at nearly every flicker of the store."""
    closed = "software.amazon.awssdk.thirdparty.org.apache.http.ConnectionClosedException: Premature end"
    unread = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/1.parquet."
    several = f"[STAGE_MATERIALIZATION_MULTIPLE_FAILURES] x\n\tSuppressed: {unread}\n\tCaused by: {closed}"
    before_spark_4 = "Encountered error while reading file s3a://b/1.parquet. Details:"
    for text in (f"{unread}\nCaused by: {closed}", several, f"{before_spark_4}\nCaused by: {closed}"):
        read = Commit(ATTEMPTS - 1, PySparkException(text))
        assert with_retries(read, "public.orders") == "done"
    gone = "java.io.FileNotFoundException: s3a://b/1.parquet"
    lasting = (
        f"{unread}\nCaused by: java.lang.RuntimeException: no Parquet file",
        f"{unread}\nCaused by: {S3_ERROR}: Access Denied (Service: S3, Status Code: 403, Request ID: X)",
        f"{unread}\nCaused by: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No credentials",
        f"{unread}\nCaused by: {gone}\nCaused by: {S3_ERROR}: NoSuchKey",
    )
    for text in lasting:
        refused = Commit(1, PySparkException(text))
        with pytest.raises(PySparkException):
            with_retries(refused, "public.orders")
        assert refused.calls == 1, text


def test_an_error_is_told_without_the_values_that_it_may_hold() -> None:
    cast = "[CAST_INVALID_INPUT] The value 'a@example' of the type \"STRING\" cannot be cast.\nat Main.java"
    raised = "[USER_RAISED_EXCEPTION] public.orders: an update lacks a column"
    ours = TableError(TableName("public", "orders"), "x")
    errors = (PySparkException(cast), PySparkException(raised), ours, ValueError("a@b"))
    found = list(map(without_values, errors))
    assert found[0] == "[CAST_INVALID_INPUT] (the rest is withheld, since it may contain a value)"
    assert found[1:3] == [raised, "public.orders: x"]
    assert found[3] == "ValueError (the rest is withheld, since it may contain a value)"


def test_a_recorded_reason_leaves_the_lake_without_values() -> None:
    cast = "[CAST_INVALID_INPUT] The value 'a@example' of the type \"STRING\" cannot be cast."
    assert reason_without_values(cast) == "[CAST_INVALID_INPUT] (the lake's table of cuts has the rest)"
    for reason in ("public.orders: x", "[USER_RAISED_EXCEPTION] public.orders: an update lacks a column"):
        assert reason_without_values(reason) == reason


def test_what_a_merge_prints_of_an_error_quotes_no_row() -> None:
    """The error of a query's analysis, when no row has been read, is whole."""
    cast = PySparkException(
        "[CAST_INVALID_INPUT] The value 'a@example' of the type \"STRING\" cannot be cast."
    )
    analysis = AnalysisException("[UNRESOLVED_COLUMN] A column `emial` cannot be resolved.")
    hint = " (the lake's table of cuts has the rest)"
    assert printed(cast, whole_reason(cast)) == f"[CAST_INVALID_INPUT]{hint}"
    assert printed(analysis, whole_reason(analysis)) == str(analysis)
    unnamed = PySparkException('stopped\nCaused by: java.lang.NumberFormatException: For input string: "a@b"')
    reason = whole_reason(unnamed, innermost(unnamed))
    assert reason == '[UNNAMED_ERROR] For input string: "a@b"'
    assert printed(unnamed, reason) == f"[UNNAMED_ERROR]{hint}"

    failed: dict[str, Any] = {"error": whole_reason(cast), "printed": printed(cast, whole_reason(cast))}
    report = MergeReport(
        "shop", 7,
        tables=[TableReport(TableName("public", "orders"), 7, 3, **failed)],
        views=[ViewReport(TableName("views", n), 7, 3, **more) for n, more in {"v": failed, "w": {}}.items()],
    )  # fmt: skip
    assert "a@example" not in json.dumps(report.to_dict(), default=str)
    errors = [each["error"] for each in report.to_dict()["tables"] + report.to_dict()["views"]]
    assert errors == [f"[CAST_INVALID_INPUT]{hint}", f"[CAST_INVALID_INPUT]{hint}", None]


def test_the_stack_of_a_bug_is_told_without_its_messages() -> None:
    try:
        try:
            int("a@b")
        except ValueError as error:
            raise KeyError("a@b") from error
    except KeyError as error:
        found = where_it_was(error)
    assert "a@b" not in found.replace('int("a@b")', "").replace('KeyError("a@b")', "")  # but in its source
    assert [line for line in found.splitlines() if line.endswith("Error")] == ["ValueError", "KeyError"]
    assert f'File "{__file__}"' in found


def test_a_file_that_could_not_be_read_is_named_unless_its_folder_has_a_value() -> None:
    unread = (
        "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file"
    )
    named = f"{unread} s3a://b/landing/shop/data/public.t/2026-01-01/1.parquet.  SQLSTATE: KD001"
    assert reason_without_values(named) == named
    told = "[FAILED_READ_FILE.NO_HINT] (the lake's table of cuts has the rest)"
    for reason in (f"{unread} s3a://b/t/mail=a@b/1.parquet.", f"{unread} s3a://b/t/1.parquet: 'a@b'"):
        assert reason_without_values(reason) == told


def test_a_value_of_any_size_is_recorded_in_part() -> None:
    long = PySparkException(f"[CAST_INVALID_INPUT] The value '{'x' * 100_000_000}' of the type STRING")
    analysis = AnalysisException(f"[UNRESOLVED_COLUMN] {'y' * 100_000}")
    for reason in (whole_reason(long), whole_reason(long, innermost(long)), without_values(analysis)):
        assert len(reason) < 2_100
        assert reason.endswith(" characters)")
    assert reason_without_values(whole_reason(long)).startswith("[CAST_INVALID_INPUT] (the lake")


def test_an_error_of_java_without_a_name_leaves_the_lake_without_values() -> None:
    """Ours may name columns in capitals and brackets; a value may read like a name."""
    ours: Exception = TableError(TableName("public", "orders"), "its key is now [ID]")
    assert reason_without_values(whole_reason(ours)) == "public.orders: its key is now [ID]"
    number = 'java.lang.NumberFormatException: For input string: "a@b"'
    for text in (number, 'found "[USER_RAISED_EXCEPTION]" a@b'):
        reason = whole_reason(PySparkException(text))
        assert text in reason
        assert reason_without_values(reason) == "[UNNAMED_ERROR] (the lake's table of cuts has the rest)"
    named = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing a@b"
    assert whole_reason(PySparkException(named)) == named
    assert reason_without_values(named) == "[TASK_WRITE_FAILED] (the lake's table of cuts has the rest)"
    withheld = without_values(PySparkException("[CAST_INVALID_INPUT] The value 'a@b'"))
    assert reason_without_values(withheld) == withheld


def test_the_innermost_cause_of_an_error_is_told() -> None:
    wrapped = """[TASK_WRITE_FAILED] Task failed while writing rows
\tat org.apache.spark.A.b(C.scala:1)
Caused by: org.apache.spark.SparkException: Job aborted
\t... 3 more
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.
\tat org.apache.spark.D.e(F.scala:2)"""
    assert innermost(PySparkException(wrapped)) == "[DIVIDE_BY_ZERO] Division by zero."
    classes = ["org.apache.spark.SparkException", "org.apache.spark.SparkArithmeticException"]
    assert causes(PySparkException(wrapped)) == classes
    assert causes(PySparkException("[X] no value\nCaused by: a secret")) == []
    assert innermost(PySparkException("[X] no\nmore")) == "[X] no"
    assert innermost(ValueError("Caused by: a.B: c")) == "Caused by: a.B: c"
