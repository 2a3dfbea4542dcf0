"""What conf/compose.yaml puts together, with programs of this machine in place of the images."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from connector.config import load
from connector.demo.servers.starting import free_port
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.store.factory import open_store
from connector.store.protocol import Store
from tests.support.agent.installed import REPOSITORY, Running
from tests.support.servers.postgres import Database
from tests.support.servers.s3_server import versitygw_path
from tests.support.source.security import SECURITY
from tests.support.waiting import wait_until

CONF = REPOSITORY / "conf"
SERVICES: dict[str, Any] = yaml.safe_load((CONF / "compose.yaml").read_text())["services"]
ROLE = "composed"  # the test server's superuser has the other name


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """The S3 server by the compose file's own command; yields its endpoint."""
    program = versitygw_path()
    if program is None:
        pytest.skip("versitygw is not installed: .ci/fetch-servers makes it")
    address, objects = f"127.0.0.1:{free_port()}", tmp_path / "objects"
    objects.mkdir()
    replaced = {":7070": address, "/objects": str(objects)}
    arguments = [replaced.get(word, word) for word in SERVICES["store"]["command"]]
    with (tmp_path / "store.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    yield f"http://{address}"
    process.terminate()
    process.wait(10)


def test_the_agent_captures_the_database_into_the_store(
    database: Database, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables_and_role(database)
    environment = SERVICES["agent"]["environment"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    wait_until(lambda: create_bucket(store), "the bucket is there")
    assert create_bucket(store), "it is there already"
    file, port = tmp_path / "shop.toml", free_port()
    file.write_text(
        (CONF / "docker" / "shop.toml")
        .read_text()
        .replace("//deltatide:", f"//{ROLE}:")
        .replace("@database:5432/shop", f"@127.0.0.1:{database.port}/{database.name}")
        .replace("http://store:7070", store)
        .replace("0.0.0.0:8642", f"127.0.0.1:{port}")
    )
    arguments = [str(file) if word.startswith("/") else word for word in SERVICES["agent"]["command"]]
    landing = open_store(load(file).landing, "shop")
    try:
        with Running(tmp_path / "log", tuple(arguments), environment) as agent:
            landed: Manifest = agent.wait_until(lambda: dumped(landing), "all is dumped")
            assert {table.name for table in landed.tables} == {"customers", "orders"}
            token = {"authorization": f"Bearer {environment['CONTROL_TOKEN']}"}
            for path in ("/readyz", "/api/status"):
                answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers=token, trust_env=False)
                assert answer.status_code == 200
            assert agent.stop() == 0
    finally:
        database.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


def create_tables_and_role(database: Database) -> None:
    text = (CONF / "docker" / "database.sql").read_text()
    text = text.replace("\\i /security/postgres.sql", (SECURITY / "postgres.sql").read_text())
    database.execute(re.sub(r"\bshop\b", database.name, re.sub(r"\bdeltatide\b", ROLE, text)))


def create_bucket(store: str) -> bool:
    """Run the compose file's program, which is started again if it fails; return whether it worked."""
    (program,) = SERVICES["bucket"]["command"]
    command = [
        sys.executable,
        *SERVICES["bucket"]["entrypoint"][1:],
        program.replace("http://store:7070", store),
    ]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def dumped(landing: Store) -> Manifest | None:
    newest = newest_manifest(landing)
    return newest if newest and newest.exact and not any(d.active for d in newest.dumps) else None
