"""Conditional puts that meet another one: repeated, up to a limit. S3 answers 409 meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from connector.errors import TransientError
from connector.store import s3
from connector.store.s3 import S3Store


class Client:
    """Answers puts with these error codes, then with an ETag."""

    def __init__(self, *codes: str) -> None:
        self.codes, self.puts = list(codes), 0

    def put_object(self, **_: Any) -> dict[str, str]:
        self.puts += 1
        if self.codes:
            raise ClientError({"Error": {"Code": self.codes.pop(0)}}, "PutObject")
        return {"ETag": "e"}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between puts, which take no time."""
    found: list[float] = []
    monkeypatch.setattr(s3._retrying_conflicts, "sleep", found.append)
    return found


def store_over(client: Client) -> S3Store:
    opened: Any = client
    return S3Store(opened, "bucket", "landing")


def test_a_conflicting_put_is_repeated_with_growing_waits(waits: list[float]) -> None:
    client = Client("ConditionalRequestConflict", "OperationAborted", "ConditionalRequestConflict")
    assert store_over(client).create("a", b"")
    assert (client.puts, waits) == (4, [0.02, 0.04, 0.08])


def test_a_conflict_that_does_not_end_is_transient(waits: list[float]) -> None:
    client = Client(*["ConditionalRequestConflict"] * 8)
    with pytest.raises(TransientError, match="a: another conditional write has not finished"):
        store_over(client).create("a", b"")
    assert (client.puts, len(waits)) == (8, 7)


def test_a_refused_condition_after_a_conflict_is_the_answer(waits: list[float]) -> None:
    client = Client("ConditionalRequestConflict", "PreconditionFailed")
    assert not store_over(client).create("a", b"")
    assert client.puts == 2


def test_other_errors_are_not_repeated(waits: list[float]) -> None:
    client = Client("AccessDenied")
    with pytest.raises(Exception, match="AccessDenied"):
        store_over(client).create("a", b"")
    assert (client.puts, waits) == (1, [])
