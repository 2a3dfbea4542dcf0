"""Masked columns under other names, of which the log has no trace: their values land under none of them."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from connector.capture import catalog_watcher
from connector.config import Config
from connector.schema import TableName
from tests.support.agent.captured import CapturedDatabase
from tests.support.landing.cuts import manifests_in
from tests.support.servers.postgres import Database
from tests.support.waiting import wait_until

ALIKE, GONE = TableName("public", "alike"), TableName("public", "gone")


def named_files(captured: CapturedDatabase) -> str:
    paths = [file.path for manifest in manifests_in(captured.store) for file in manifest.files]
    files = [captured.store.read(path) or b"" for path in paths]
    return "\n".join(str(pq.read_table(io.BytesIO(data)).to_pylist()) for data in files)


def test_a_masked_column_lands_under_no_other_name_though_no_layout_or_catalog_shows_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table's layout is the same as before; the other table is gone by the next check."""
    for table in (ALIKE, GONE):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, x text, ssn text, note text)")
        database.execute(f"INSERT INTO {table} VALUES (1, 'shown', 'classified', 'shown')")
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["public.*"])
    said = captured.config.model_dump(by_alias=True, exclude_none=True)
    settings = {"columns": ["id", "x", "ssn", "note"], "mask": {"ssn": "null"}, "mask_before_landing": True}
    captured.config = Config.model_validate(
        {**said, "tables": {str(table): settings for table in (ALIKE, GONE)}}
    )
    with captured.running():
        captured.wait_settled()
        monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", 3.0)
        captured.wait_settled()  # so the rows are committed long before the next check
        database.execute(
            "ALTER TABLE alike DROP x; ALTER TABLE alike RENAME ssn TO x;"
            "ALTER TABLE alike RENAME note TO ssn; ALTER TABLE alike ADD note text;"
            "INSERT INTO alike VALUES (2, 'classified', 'shown', 'shown')"
        )
        database.execute(
            "ALTER TABLE gone DROP note; ALTER TABLE gone RENAME ssn TO note;"
            "INSERT INTO gone VALUES (2, 'shown', 'classified'); DROP TABLE gone"
        )
        wait_until(
            lambda: [*manifests_in(captured.store)[-1].tables] == [ALIKE], "it is not captured", seconds=60
        )
    manifests = manifests_in(captured.store)
    assert manifests[-1].tables[ALIKE].reason == "column 'x' was 'ssn', which lands masked"
    assert any(GONE in manifest.tables and manifest.tables[GONE].need for manifest in manifests)
    assert "shown" in named_files(captured)
    assert "classified" not in named_files(captured)
