"""Columns that don't land, or land masked: from dump and log, on every database."""

from __future__ import annotations

import hashlib
import hmac
import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connector.config import Config
from connector.landing.format import DATA
from connector.landing.manifest_store import newest_manifest
from connector.schema import TableName
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.landing.cuts import manifests_in
from tests.support.source.tested_database import KINDS, TestedDatabase
from tests.support.waiting import wait_until

SALT = "a salt of sixteen characters"
SECRETS = ("example.org", "12345678", "classified", "2026-02-0")


@pytest.fixture(params=KINDS)
def tested(request: pytest.FixtureRequest) -> TestedDatabase:
    """Return a database named after the test."""
    name = "database" if request.param == "postgres" else f"{request.param}_database"
    found: TestedDatabase = request.getfixturevalue(name)
    return found


def masking(captured: CapturedDatabase, table: TableName, salt: str = SALT) -> Config:
    said = captured.config.model_dump(by_alias=True, exclude_none=True)
    said["lake"] = {**said["lake"], "salt": salt}
    said["tables"] = {
        str(table): {
            "columns": ["id", "mail", "card", "born", "note", "code"],
            "mask": {"mail": "sha256", "born": "sha256", "card": "keep last 4", "note": "null"},
            "mask_before_landing": True,
        }
    }
    return Config.model_validate(said)


def sha(text: str, salt: str = SALT) -> str:
    return hmac.new(salt.encode(), text.encode(), hashlib.sha256).hexdigest()


def expected(key: int, salt: str = SALT) -> tuple[Any, ...]:
    masked = (sha(f"{key}@example.org", salt), f"****{key:04}", sha(f"2026-02-0{key}", salt), None)
    return (key, *masked)


def landed_rows(captured: CapturedDatabase, table: TableName) -> list[tuple[Any, ...]]:
    landed = landed_tables(captured.store)[table]
    rows = (landed.row(key)[0] for key in sorted(landed.events))
    return [tuple(row[name] for name in ("id", "mail", "card", "born", "note")) for row in rows if row]


def everything(captured: CapturedDatabase, *, unnamed: bool = True) -> str:
    """Return all objects of the landing zone as text; `unnamed`: files that no manifest names, too."""
    found = []
    named = {file.path for manifest in manifests_in(captured.store) for file in manifest.files}
    for path in captured.store.list(""):
        if not (unnamed or path in named or not path.startswith(DATA)):
            continue
        data = captured.store.read(path) or b""
        parquet = data[:4] == b"PAR1"
        found.append(str(pq.read_table(io.BytesIO(data)).to_pylist()) if parquet else data.decode())
    return "\n".join(found)


def quarantined(captured: CapturedDatabase, table: TableName) -> bool:
    newest = newest_manifest(captured.store)
    reason = newest.tables[table].reason if newest is not None else None
    return reason == "column 'code' was 'card', which lands masked"


def test_nothing_that_is_hidden_lands_from_dump_or_log(
    tested: TestedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableName(tested.namespace, "people")
    captured = CapturedDatabase(tested, tmp_path, monkeypatch, tables=[str(table)])
    captured.config = masking(captured, table)
    tested.script(
        "CREATE TABLE people (id int PRIMARY KEY, mail varchar(40), card varchar(20), born date, note text,"
        " code varchar(20), secret varchar(20));"
        "INSERT INTO people VALUES"
        " (1, '1@example.org', '123456780001', '2026-02-01', 'classified', 'open', 'classified')"
    )
    with captured.running():
        captured.wait_settled()
        tested.script(
            "INSERT INTO people VALUES"
            " (2, '2@example.org', '123456780002', '2026-02-02', 'classified', 'open', 'classified'),"
            " (3, 'x@example.org', '123456789999', '2026-02-09', 'classified', 'open', 'classified');"
            "UPDATE people SET mail = '3@example.org', card = '123456780003', born = '2026-02-03'"
            " WHERE id = 3"
        )
        captured.wait_settled()
        assert landed_rows(captured, table) == [expected(key) for key in (1, 2, 3)]
        captured.dump()
        tested.script("ALTER TABLE people ADD COLUMN more varchar(20) DEFAULT 'classified'")
        newest = captured.wait_settled()
    assert newest.tables[table].state == "captured"
    assert landed_rows(captured, table) == [expected(key) for key in (1, 2, 3)]
    text = everything(captured)
    assert not [secret for secret in SECRETS if secret in text]
    captured.config = masking(captured, table, "another salt of sixteen characters")
    with captured.running():
        tested.script("UPDATE people SET secret = 'more' WHERE id = 1")
        captured.wait_settled()
    assert landed_rows(captured, table) == [
        expected(key, "another salt of sixteen characters") for key in (1, 2, 3)
    ]
    renames = ("RENAME COLUMN card TO aside", "RENAME COLUMN aside TO code")  # in between, it does not land
    for statement in ("DROP COLUMN code", *renames, "ADD COLUMN card varchar(20)"):
        tested.script(f"ALTER TABLE people {statement}")  # the agent reads that once all of it is done
    tested.script("UPDATE people SET note = 'changed'")
    with captured.running():
        wait_until(lambda: quarantined(captured, table), "the masked column has another name")
    assert not [secret for secret in SECRETS if secret in everything(captured, unnamed=False)]
