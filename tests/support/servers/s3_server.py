"""A real S3 server for tests, on a free port of 127.0.0.1: versitygw if available, else moto."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions
import pyarrow.fs

from connector.demo.servers.starting import free_port
from tests.support.servers.server_process import ServerProcess, end_process

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class S3:
    """What a client needs to connect; `bucket` is empty for the server as a whole."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    bucket: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables in which boto3's default chain finds the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }

    @property
    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options for reading tables here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def file_system(self) -> pyarrow.fs.S3FileSystem:
        """Return pyarrow's view of the server."""
        return pyarrow.fs.S3FileSystem(
            endpoint_override=self.endpoint.partition("://")[2],
            scheme="http",
            region=self.region,
            access_key=self.access_key,
            secret_key=self.secret_key,
        )

    def client(self) -> Any:
        """Return a boto3 client with path-style addresses."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}),
        )

    def with_bucket(self, bucket: str) -> S3:
        """Create a bucket, and return how to reach it."""
        self.client().create_bucket(Bucket=bucket)
        return replace(self, bucket=bucket)


class S3Server(ServerProcess):
    """One server with its objects in a folder; a context manager that stops it.

    `kind` is `versitygw` or `moto`. With `honour_conditions=False`, versitygw silently ignores the conditions
    of a put, as some stores do.
    """

    def __init__(self, folder: Path, *, kind: str | None = None, honour_conditions: bool = True) -> None:
        self.program = versitygw_path()
        self.kind = kind or ("versitygw" if self.program else "moto")
        port = free_port()
        self.s3 = S3(f"http://127.0.0.1:{port}", "deltatide", secrets.token_hex(12))
        command = (
            self._versitygw(folder, port, honour_conditions) if self.kind == "versitygw" else _moto(port)
        )
        super().__init__(self.kind, command, folder / "s3.log")
        self.wait_until_it(self._answers, 60)

    def _versitygw(self, folder: Path, port: int, honour_conditions: bool) -> list[str]:
        objects = folder / "objects"
        objects.mkdir(exist_ok=True)
        command = [
            str(self.program),
            "--quiet",
            "--port",
            f"127.0.0.1:{port}",
            "--access",
            self.s3.access_key,
        ]
        command += ["--secret", self.s3.secret_key, "posix"]
        if not honour_conditions:
            command.append("--nometa")
        elif not _has_attributes(objects):
            (folder / "metadata").mkdir(exist_ok=True)
            command += ["--sidecar", str(folder / "metadata")]
        return [*command, str(objects)]

    def _answers(self) -> bool:
        try:
            self.s3.client().list_buckets()
        except botocore.exceptions.EndpointConnectionError:
            return False
        return True


class S3ServerWithUsers(S3Server):
    """A versitygw whose users have IAM policies, which it evaluates; they are kept by a process beside it.

    `s3` is the root account, which may do everything.
    """

    def __init__(self, folder: Path) -> None:
        self._iam_endpoint = f"http://127.0.0.1:{free_port()}"
        self._iam: subprocess.Popen[bytes] | None = None
        super().__init__(folder, kind="versitygw")

    def user(self, name: str, policy: str) -> S3:
        """Create a user with a policy (JSON), and return how to connect as this user."""
        iam = boto3.client(
            "iam",
            endpoint_url=self._iam_endpoint,
            aws_access_key_id=self.s3.access_key,
            aws_secret_access_key=self.s3.secret_key,
            region_name=self.s3.region,
        )
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return replace(self.s3, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])

    def stop(self) -> None:
        """Stop both processes and wait for them to exit."""
        super().stop()
        if self._iam is not None:
            end_process(self._iam, 5)

    def _versitygw(self, folder: Path, port: int, honour_conditions: bool) -> list[str]:
        users, socket = folder / "users", folder / "iam.socket"
        users.mkdir()
        program, *arguments = super()._versitygw(folder, port, honour_conditions)
        root = ["--access", self.s3.access_key, "--secret", self.s3.secret_key]
        address = ["--port", self._iam_endpoint.removeprefix("http://"), *root]
        with (folder / "iam.log").open("ab") as log:
            self._iam = subprocess.Popen(
                [program, "--quiet", *address, "iam", "--dir", str(users), "--private-ports", str(socket)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return [program, "--iam-standalone-endpoint", str(socket), *arguments]


def versitygw_path() -> Path | None:
    """Return the program from the checkout's cache, the PATH, or Go's folder; None if it is missing."""
    found = shutil.which("versitygw")
    places = [
        REPOSITORY / ".cache/bin/versitygw",
        *([Path(found)] if found else []),
        Path.home() / "go/bin/versitygw",
    ]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def _moto(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _has_attributes(folder: Path) -> bool:
    """Return whether the file system has extended attributes, where versitygw stores an object's ETag."""
    try:
        os.setxattr(folder, "user.deltatide", b"1")
    except (OSError, AttributeError):
        return False
    return True
