"""The landing zone on S3, or on a store that speaks its protocol and honors conditional puts.

Invariants: an object exists completely or not at all, and is durable once S3 has answered; a create is
``If-None-Match: *``, a replace ``If-Match``. botocore retries a request whose response was lost, so a failed
condition may be our own success: `create` leaves that to its caller, `replace` checks. So does `put_file`,
if the store no longer knows an upload in parts that it has completed (MinIO; S3 itself answers again).

Multipart uploads that a crash interrupts are left behind, invisible; a lifecycle rule of the bucket removes
them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from boto3.s3.transfer import TransferConfig
from botocore.config import Config as ClientConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import ConnectionError as NetworkError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from connector.config import LandingConfig
from connector.errors import DeltatideError, PreconditionError, TransientError
from connector.store.credentials import RenewedAhead, new_session
from connector.store.local import drop_stale

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_MIB = 1 << 20
_TRANSFER = TransferConfig(multipart_threshold=32 * _MIB, multipart_chunksize=16 * _MIB, max_concurrency=4)

_ABSENT = {"NoSuchKey", "404", "NotFound"}
_REFUSED = {"PreconditionFailed", "412"}
_CONFLICTS = {"ConditionalRequestConflict", "OperationAborted"}
_CONFLICT_TRIES = 8
_CONFLICT_SECONDS = 0.02
"""First wait for another conditional put to finish; doubled each time."""

_PASSING_CODES = {"SlowDown", "RequestTimeout", "IncompleteBody", "NoSuchUpload"}
"""Refusals that may pass, by codes: a broken connection, an upload in parts that is to begin anew."""

_PASSING = (HTTPClientError, NetworkError, IncompleteReadError, OSError)

_RIGHTS_HINT = (
    "allow what the policies in conf/security/ do: iam-agent.json, iam-merge.json, iam-maintain.json"
)
_HINTS = {
    "NoSuchBucket": "create the bucket, or fix landing.url",
    "AccessDenied": _RIGHTS_HINT,
    "403": _RIGHTS_HINT,
    "InvalidAccessKeyId": "check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, or the machine's role)",
    "SignatureDoesNotMatch": "check the secret key (AWS_SECRET_ACCESS_KEY)",
    "ExpiredToken": "renew the session's credentials",
    "PermanentRedirect": "set landing.region to the bucket's region",
    "AuthorizationHeaderMalformed": "set landing.region to the bucket's region",
    "RequestTimeTooSkewed": "set this machine's clock",
    "NotImplemented": "use a store with conditional PUT, which commits need",
}
_USUAL_HINT = "check landing.url, endpoint and region, and the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE)"
_UNREACHABLE_HINT = "check that the store is running, landing.url, landing.endpoint and the network"
_CREDENTIALS_HINT = "provide credentials by AWS_ACCESS_KEY_ID, AWS_PROFILE, or the machine's role"


class _Waits(NamedTuple):
    """How long a request waits for an answer, and how often it is sent."""

    answer_seconds: float
    attempts: int


_PATIENT, _IMPATIENT = _Waits(30.0, 4), _Waits(8.0, 2)


class S3Store:
    """A store in a bucket, under a prefix; safe for threads. See `connector.store.protocol.Store`."""

    def __init__(self, client: S3Client, bucket: str, prefix: str, *, renews: bool = False) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._scratch: Path | None = None
        self._had_credentials, self._renews = False, renews

    @classmethod
    def open(cls, config: LandingConfig, source: str, *, patient: bool = True) -> S3Store:
        """Create a client from the settings and the default credential chain. See `open_store`."""
        return cls._open_each(config, source, _PATIENT if patient else _IMPATIENT)[0]

    @classmethod
    def open_both(cls, config: LandingConfig, source: str, answer_seconds: float) -> Sequence[S3Store]:
        """Create two clients with one session. See `open_stores`."""
        return cls._open_each(config, source, _PATIENT, _Waits(answer_seconds, attempts=1))

    @classmethod
    def _open_each(cls, config: LandingConfig, source: str, *waits: _Waits) -> Sequence[S3Store]:
        if config.bucket is None:
            raise ValueError(f"{config.url} is not on S3")
        bucket, prefix = config.bucket
        with _errors(config.url):
            session = new_session(config.region)
            clients = [
                session.client(
                    "s3",
                    endpoint_url=config.endpoint,
                    region_name=config.region,
                    config=_client_config(config, each),
                )
                for each in waits
            ]
            renews = isinstance(session.get_credentials(), RenewedAhead)
        path = f"{prefix}/{source}" if prefix else source
        return [cls(client, bucket, path, renews=renews) for client in clients]

    @property
    def scratch(self) -> Path:
        """Return this user's folder for unfinished files, under TMPDIR; deletes stale ones."""
        if self._scratch is None:
            folder = Path(tempfile.gettempdir()) / f"deltatide-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise PreconditionError(f"{folder}: belongs to another user", hint="set TMPDIR")
            drop_stale(folder)
            self._scratch = folder
        return self._scratch

    def put(self, path: str, data: bytes) -> None:
        """Write an object, overwriting an existing one."""
        with self._errors(path):
            self._put(path, data)

    def put_file(self, path: str, local: Path) -> int:
        """Upload a finished local file, a large one in parts, then delete it locally."""
        with self._errors(path):
            size = local.stat().st_size
            try:
                with local.open("rb") as file:
                    self._client.upload_fileobj(file, self._bucket, self._prefix + path, Config=_TRANSFER)
            except ClientError as error:
                if _code(error) != "NoSuchUpload" or self._size(path) != size:
                    raise
            local.unlink()
        return size

    def _size(self, path: str) -> int | None:
        """Return an object's size; None if there is none, or if the store does not say."""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=self._prefix + path)["ContentLength"]
        except ClientError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist; False if it does, possibly by our own write."""
        with self._errors(path):
            return self._put_if(path, data, IfNoneMatch="*") is not None

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return an object's content; None if there is none."""
        found = self._get(path, limit)
        return found and found[0]

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and its ETag."""
        return self._get(path)

    def _get(self, path: str, limit: int | None = None) -> tuple[bytes, str] | None:
        with self._errors(path):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + path)
                if limit is not None and answer["ContentLength"] > limit:
                    answer["Body"].close()
                    raise PreconditionError(f"{self.url}/{path}: holds more than {limit:,} bytes")
                return answer["Body"].read(), answer["ETag"]
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise

    def replace(self, path: str, data: bytes, version: str | None) -> str | None:
        """Overwrite exactly this version; an object that already holds this content counts as written."""
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        with self._errors(path):
            written = self._put_if(path, data, **condition)
        if written is not None:
            return written
        found = self.read_versioned(path)
        return found[1] if found is not None and found[0] == data else None

    def list(self, prefix: str) -> Iterator[str]:
        """Return the paths that begin with a prefix, in order; one request per 1,000."""
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                yield item["Key"].removeprefix(self._prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a folder; one request per 1,000."""
        pages = self._pages(f"{prefix}/", Delimiter="/")
        paths = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ())]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def delete_all(self, paths: Iterable[str]) -> None:
        """Remove many objects; one request per 1,000."""
        remaining = iter(paths)
        while some := list(islice(remaining, 1000)):
            with self._errors(some[0]):
                keys: Any = [{"Key": self._prefix + path} for path in some]
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
                )
            for problem in answer.get("Errors", ()):
                path, why = problem["Key"].removeprefix(self._prefix), problem.get("Message", problem["Code"])
                if problem["Code"] not in _ABSENT:
                    raise TransientError(f"{self.url}/{path}: not removed: {why}")

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if there is none."""
        with self._errors(path):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + path)

    def _put(self, path: str, data: bytes, **condition: str) -> str:
        arguments: Any = {"Bucket": self._bucket, "Key": self._prefix + path, "Body": data, **condition}
        return self._client.put_object(**arguments)["ETag"]

    def _put_if(self, path: str, data: bytes, **condition: str) -> str | None:
        """Put under a condition; None if it does not hold.

        S3 answers 409 during a concurrent conditional put.
        """
        try:
            return _retrying_conflicts(self._put, path, data, **condition)
        except ClientError as error:
            if _code(error) in _REFUSED or ("IfMatch" in condition and _code(error) in _ABSENT):
                return None
            if _is_conflict(error):
                raise TransientError(
                    f"{self.url}/{path}: another conditional write has not finished"
                ) from error
            raise

    def _pages(self, prefix: str, **arguments: str) -> Iterator[Any]:
        with self._errors(prefix):
            paginator: Any = self._client.get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **arguments)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Raise our errors. Credentials that could be had before, and now can't, may come back.

        They are renewed every few hours, and botocore asks a machine's metadata service once, for a second.
        What gives them may fail until they expire, perhaps by the store's clock first. Those with which a
        role is asked for are what somebody has to renew.
        """
        try:
            with _errors(f"{self.url}/{path}"):
                yield
        except PreconditionError as error:
            if self._may_pass(error.__cause__):
                raise TransientError(str(error), hint=error.hint) from error.__cause__
            raise
        self._had_credentials = True

    def _may_pass(self, cause: BaseException | None) -> bool:
        if isinstance(cause, ClientError):
            asked_store = not cause.operation_name.startswith("AssumeRole")
            return self._renews and asked_store and _code(cause) == "ExpiredToken"
        return self._had_credentials and isinstance(cause, CredentialRetrievalError)


def _client_config(config: LandingConfig, waits: _Waits) -> ClientConfig:
    path_style = config.endpoint is not None if config.path_style is None else config.path_style
    checksums: Literal["when_required", "when_supported"] = (
        "when_required" if config.endpoint else "when_supported"
    )  # other stores may not know CRC trailers
    return ClientConfig(
        connect_timeout=min(5.0, waits.answer_seconds),
        read_timeout=waits.answer_seconds,
        retries={"mode": "standard", "total_max_attempts": waits.attempts},
        tcp_keepalive=True,
        max_pool_connections=16,
        request_checksum_calculation=checksums,
        response_checksum_validation=checksums,
        s3={"addressing_style": "path" if path_style else "auto"},
    )


@contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except DeltatideError:
        raise
    except ClientError as error:
        raise _refusal(url, error) from error
    except _PASSING as error:
        raise TransientError(f"{url}: {_lower(error)}", hint=_UNREACHABLE_HINT) from error
    except (BotoCoreError, ValueError) as error:
        raise PreconditionError(f"{url}: {_lower(error)}", hint=_hint(error)) from error


def _refusal(url: str, error: ClientError) -> DeltatideError:
    """Distinguish errors that may pass (throttling, server trouble) from those that need fixing."""
    code = _code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{url}: {code}: {error.response.get('Error', {}).get('Message', 'refused')}".rstrip(".")
    if code not in _HINTS and (status >= 500 or status in (408, 409, 429) or code in _PASSING_CODES):
        return TransientError(message)
    return PreconditionError(message, hint=_HINTS.get(code, _USUAL_HINT))


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, ClientError) and _code(error) in _CONFLICTS


_retrying_conflicts = Retrying(
    retry=retry_if_exception(_is_conflict),
    stop=stop_after_attempt(_CONFLICT_TRIES),
    wait=wait_exponential(multiplier=_CONFLICT_SECONDS),
    reraise=True,
)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _lower(error: BaseException) -> str:
    text = str(error).rstrip(".") or type(error).__name__
    return text[0].lower() + text[1:]


def _hint(error: BaseException) -> str:
    name = type(error).__name__
    if any(word in name for word in ("Credential", "Profile", "Token", "SSO")):
        return _CREDENTIALS_HINT
    return "check landing.url, landing.endpoint and landing.region"
