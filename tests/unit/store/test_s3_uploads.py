"""Uploads in parts that a store has completed without saying so; credentials that can't be renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError

from connector.errors import PreconditionError, TransientError
from connector.store.s3 import S3Store


class Client:
    """Refuses uploads with a code; `held`: the size of the object of that name, if there is one.

    `absent`: the answer if there is none. S3's is 403 without the right to list.
    """

    def __init__(self, code: str, held: int | None = None, absent: str = "404") -> None:
        self.code, self.held, self.absent = code, held, absent

    def upload_fileobj(self, *_: Any, **__: Any) -> None:
        raise refusal(self.code, "CompleteMultipartUpload")

    def head_object(self, **_: Any) -> dict[str, int]:
        if self.held is None:
            raise refusal(self.absent, "HeadObject")
        return {"ContentLength": self.held}


def refusal(code: str, operation: str) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    return ClientError(answer, operation)


def put(client: Any, local: Path) -> int:
    local.write_bytes(b"rows")
    return S3Store(client, "bucket", "landing").put_file("data/a.parquet", local)


def test_an_upload_that_is_no_longer_known_since_it_was_completed_is_done(tmp_path: Path) -> None:
    assert put(Client("NoSuchUpload", held=4), tmp_path / "a") == 4
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("held", "absent"), [(None, "404"), (None, "403"), (3, "")])
def test_an_upload_that_was_lost_may_be_repeated(tmp_path: Path, held: int | None, absent: str) -> None:
    with pytest.raises(TransientError, match="NoSuchUpload"):
        put(Client("NoSuchUpload", held, absent), tmp_path / "a")
    assert (tmp_path / "a").exists()


def test_any_other_refusal_stays_one_whatever_is_there(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError):
        put(Client("NoSuchBucket", held=4), tmp_path / "a")


class Role:
    """Answers as long as the machine's metadata service does."""

    answers = True

    def delete_object(self, **_: Any) -> None:
        if not self.answers:
            raise CredentialRetrievalError(provider="iam-role", error_msg="no response")


def test_credentials_that_cannot_be_renewed_may_pass_and_those_that_never_came_may_not() -> None:
    role: Any = Role()
    store = S3Store(role, "bucket", "landing")
    role.answers = False
    with pytest.raises(PreconditionError, match="iam-role"):
        store.delete("a")
    role.answers = True
    store.delete("a")
    role.answers = False
    with pytest.raises(TransientError, match="iam-role"):
        store.delete("a")
