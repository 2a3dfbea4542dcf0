"""The IAM policies of conf/security/ on a real S3 server: each role can do its work, and nothing else.

That a policy grants no more than is used is checked by the requests of the work: each pair of an action and a
resource that it names is among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from connector.config import LandingConfig
from connector.errors import PreconditionError
from connector.landing import format, manifest_object
from connector.landing.consumers import Consumer, forget, record_path
from connector.landing.lease import Lease
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, pending_ids, rejection_of, submit
from connector.maintenance import compaction
from connector.maintenance.compaction import compact
from connector.maintenance.retention import History, horizon, remove_unneeded
from connector.schema import TableComments, TableName
from connector.store.probe import probe
from connector.store.s3 import S3Store
from tests.support.agent.agents import Agent, ask, insert, shop
from tests.support.servers.s3_server import S3, S3ServerWithUsers, versitygw_path
from tests.support.source.security import policy
from tests.support.waiting import wait_until

BUCKET = "example"
DAY = timedelta(days=1)
ITEMS = TableName("public", "items")
PART_BYTES = 5 << 20
ACTIONS = {
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    **dict.fromkeys(
        ["PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"], "s3:PutObject"
    ),
}


class Role:
    """A user with a role's policy; `used` are the actions and keys (or prefixes) of the requests so far."""

    def __init__(self, s3: S3, role: str) -> None:
        self.name, self.used = role, set[tuple[str, str]]()
        config = LandingConfig(url=f"s3://{s3.bucket}/landing", endpoint=s3.endpoint)
        with pytest.MonkeyPatch.context() as patched:
            for name, value in s3.environment.items():
                patched.setenv(name, value)
            self.store = S3Store.open(config, "shop")
        self.client: Any = self.store._client
        self.client.meta.events.register("before-parameter-build.s3", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        keys = [item["Key"] for item in params.get("Delete", {}).get("Objects", ())]
        keys = keys or [params.get("Key") or params.get("Prefix")]
        self.used |= {(ACTIONS[model.name], key) for key in keys}

    def abort_an_upload(self) -> None:
        """Do what boto3 does when a large upload fails."""
        where = {"Bucket": BUCKET, "Key": "landing/shop/data/large"}
        upload = {**where, "UploadId": self.client.create_multipart_upload(**where)["UploadId"]}
        self.client.upload_part(**upload, PartNumber=1, Body=bytes(PART_BYTES))
        self.client.abort_multipart_upload(**upload)

    def unused(self) -> set[tuple[str, str]]:
        """The actions on parts of the landing zone that its policy grants and no request was for."""
        granted: set[tuple[str, str]] = set()
        for statement in json.loads(policy(self.name, BUCKET))["Statement"]:
            condition = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
            resources = [f"{BUCKET}/{p}" for p in condition] if condition else _list(statement["Resource"])
            keys = [
                resource.removeprefix("arn:aws:s3:::").removeprefix(f"{BUCKET}/") for resource in resources
            ]
            granted |= {(action, key) for action in _list(statement["Action"]) for key in keys}
        return {
            (action, pattern)
            for action, pattern in granted
            if pattern.startswith("landing/")
            and not any(a == action and fnmatchcase(key, pattern) for a, key in self.used)
        }


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, Role]]:
    if versitygw_path() is None:
        pytest.skip("versitygw is not there, the server that has users: .ci/fetch-servers makes it")
    with S3ServerWithUsers(tmp_path) as server:
        bucket = server.s3.with_bucket(BUCKET)
        users = {role: server.user(role, policy(role, BUCKET)) for role in ("agent", "merge", "maintain")}
        yield {role: Role(replace(user, bucket=bucket.bucket), role) for role, user in users.items()}


def test_each_role_does_its_work_and_nothing_else(
    roles: dict[str, Role], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "MANIFESTS_PER_BLOCK", 3)
    monkeypatch.setattr(manifest_object, "FEW_BYTES", 0)
    monkeypatch.setattr(compaction, "FEW_FILES", 1)
    agent, merge, maintain = roles["agent"], roles["merge"], roles["maintain"]
    capture(agent, merge, tmp_path)
    (newest,) = {newest_manifest(role.store).number for role in roles.values()}  # type: ignore[union-attr]
    path = record_path("0a", "lake")
    merge.store.put(
        path, Consumer(id="0a", lake="/lake", manifest=newest, at=now()).model_dump_json().encode()
    )
    care_for(maintain)
    assert agent.unused() == maintain.unused() == set()
    of_spark = ("s3:DeleteObject", "landing/shop/consumers/*"), ("s3:DeleteObject", "landing/shop/requests/*")
    assert merge.unused() == set(of_spark), "what Spark does with its folders is tested with Spark"

    manifest, data, state = format.manifest_path(newest), "data/public.items/x.parquet", "state/x.json"
    for role, kept, unwritten in (
        (
            agent,
            [manifest, data, state, "lease.json", "rejected/x"],
            ["consumers/0a/0.json", "retention.json"],
        ),
        (merge, [manifest, data, state, "lease.json"], [manifest, data, state, "schema/x", "lease.json"]),
        (maintain, ["lease.json", "requests/x.json"], ["lease.json", "requests/x.json", state, "schema/x"]),
    ):
        for path in kept:
            assert_denied(role, "delete", path)
        for path in unwritten:
            assert_denied(role, "put", path, b"{}")
    for role in roles.values():
        with pytest.raises(Exception, match="AccessDenied"):
            role.client.list_objects_v2(Bucket=BUCKET, Prefix="landing/other/")
    assert newest_manifest(agent.store).number == newest  # type: ignore[union-attr]


def capture(agent: Role, merge: Role, folder: Path) -> None:
    """Do what an agent does, with requests of a merge."""
    probe(agent.store)
    lease = Lease.acquire(agent.store, 5)
    lease.renew()
    database = shop(20)
    database.comments[ITEMS] = TableComments(ITEMS, "what is sold")
    with Agent(database, agent.store) as running:
        first = running.wait_dumped().tables[ITEMS].comments
        database.comments[ITEMS] = TableComments(ITEMS, "what was sold")
        running.wait(lambda m: m.tables[ITEMS].comments != first, "the new comment has landed")
        for number in range(8):
            insert(database, 1000 + number)
            running.wait_caught_up()
        ask(running, merge.store, tables=[ITEMS])
        unknown = submit(agent.store, DumpRequest(tables=[TableName("public", "unknown")]))
        wait_until(lambda: rejection_of(merge.store, unknown), "it is rejected")
        wait_until(lambda: not pending_ids(merge.store), "requests are taken away")
    lease.release()
    large = folder / "large"
    large.write_bytes(bytes(33 << 20))
    agent.store.put_file("data/public.items/large.parquet", large)
    agent.abort_an_upload()


def care_for(maintain: Role) -> None:
    """Do what `deltatide maintain` does: compact, remove the originals a day later, and what nobody needs."""
    history = History.of(maintain.store)
    assert history is not None
    for later in (now() + DAY, now() + 2 * DAY):
        compact(maintain.store, history.oldest, history.newest.number, clock=lambda later=later: later)
    forget(maintain.store, Consumer(id="0a", lake="/lake", manifest=0, at=now()))
    later = now() + 40 * DAY
    removal = remove_unneeded(history, horizon(history, DAY, later), now=later, dry_run=False)
    assert removal.manifests
    assert removal.states
    assert removal.comments
    maintain.store.delete_all(["schema/public.items/unused.json"])  # in so short a history all are in use
    maintain.abort_an_upload()


def now() -> datetime:
    return datetime.now(timezone.utc)


def assert_denied(role: Role, operation: str, *arguments: Any) -> None:
    with pytest.raises(PreconditionError, match="AccessDenied") as denied:
        getattr(role.store, operation)(*arguments)
    assert f"iam-{role.name}.json" in (denied.value.hint or "")
