"""Masked columns under other names, of which the log has no trace: their values land under none of them."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from connector.capture import catalog_watcher
from connector.config import Config
from connector.landing.manifest_store import newest_manifest
from connector.schema import TableName
from tests.support.agent.captured import CapturedDatabase
from tests.support.landing.cuts import manifests_in
from tests.support.servers.postgres import Database
from tests.support.waiting import wait_until

ALIKE, GONE, COMPUTED = (TableName("public", name) for name in ("alike", "gone", "computed"))


def named_files(captured: CapturedDatabase) -> str:
    paths = [file.path for manifest in manifests_in(captured.store) for file in manifest.files]
    files = [captured.store.read(path) or b"" for path in paths]
    return "\n".join(str(pq.read_table(io.BytesIO(data)).to_pylist()) for data in files)


def mask_ssn(captured: CapturedDatabase, tables: Iterable[TableName], *others: str) -> None:
    """Mask `ssn` before it lands, whichever of the other columns there are."""
    said = captured.config.model_dump(by_alias=True, exclude_none=True)
    settings = {"columns": ["id", "ssn", *others], "mask": {"ssn": "null"}, "mask_before_landing": True}
    captured.config = Config.model_validate({**said, "tables": {str(table): settings for table in tables}})


def test_a_masked_column_lands_under_no_other_name_though_no_layout_or_catalog_shows_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table's layout is the same as before; one is gone by the next look; of one, the log lacked it."""
    for table in (ALIKE, GONE):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, x text, ssn text, note text)")
        database.execute(f"INSERT INTO {table} VALUES (1, 'shown', 'classified', 'shown')")
    generated = "text GENERATED ALWAYS AS ('classified') STORED"
    database.execute(f"CREATE TABLE {COMPUTED} (id int PRIMARY KEY, note text, ssn {generated})")
    database.execute(f"INSERT INTO {COMPUTED} VALUES (1, 'shown')")
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["public.*"])
    mask_ssn(captured, [ALIKE, GONE, COMPUTED], "x", "note")
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
        database.execute(
            "ALTER TABLE computed DROP note; ALTER TABLE computed RENAME ssn TO note;"
            "ALTER TABLE computed ALTER note DROP EXPRESSION; INSERT INTO computed VALUES (2, 'classified')"
        )
        wait_until(
            lambda: manifests_in(captured.store)[-1].tables.keys() == {ALIKE, COMPUTED},
            "it is not captured",
            seconds=60,
        )
    manifests = manifests_in(captured.store)
    assert manifests[-1].tables[ALIKE].reason == "column 'x' was 'ssn', which lands masked"
    assert manifests[-1].tables[COMPUTED].reason == "column 'note' was 'ssn', which lands masked"
    assert any(GONE in manifest.tables and manifest.tables[GONE].need for manifest in manifests)
    assert "shown" in named_files(captured)
    assert "classified" not in named_files(captured)


def wait_landed(captured: CapturedDatabase) -> None:
    end = captured.database.end_of_log()

    def landed() -> bool:
        newest = newest_manifest(captured.store)
        return newest is not None and newest.position >= end

    wait_until(landed, "all has landed", seconds=60)


def test_rows_of_a_commit_that_waits_for_a_standby_land_once_a_look_shows_it(
    unanswered: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table without a key: no dump would bring them back."""
    database, table = unanswered, TableName("public", "keyless")
    database.execute(f"CREATE TABLE {table} (id int, ssn text); ALTER TABLE {table} REPLICA IDENTITY FULL")
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["public.*"])
    mask_ssn(captured, [table])
    settings = captured.config.table(table).model_copy(update={"shapes": ["changes"]})
    captured.config = captured.config.model_copy(update={"tables": {table: settings}})
    writes = f"SET synchronous_commit = on; INSERT INTO {table} VALUES (12345, 'classified')"
    hanging = threading.Thread(target=lambda: database.execute(writes))
    with captured.running():
        captured.wait_settled()
        hanging.start()
        wait_until(lambda: captured._capture and captured._capture._hidden_columns._unseen_since, "it waits")
        assert "12345" not in named_files(captured)
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
        hanging.join(30)
        wait_until(lambda: "12345" in named_files(captured), "it has landed", seconds=60)
    notices = [notice for manifest in manifests_in(captured.store) for notice in manifest.notices]
    assert not [notice for notice in notices if notice.kind == "gap"]
    assert "classified" not in named_files(captured)


class Altered:
    """A table whose columns are altered at random; the one that was `ssn` at first has the secret."""

    def __init__(self, database: Database, name: TableName, rng: random.Random) -> None:
        self.database, self.name, self.rng = database, name, rng
        self.columns = {"a": 2, "ssn": 3, "b": 4}
        self.secret, self.last, self.key = 3, 4, 0
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a text, ssn text, b text)")
        database.execute(self.insert())

    def insert(self) -> str:
        self.key += 1
        values = ("'classified'" if n == self.secret else "'shown'" for n in self.columns.values())
        columns = ", ".join(("id", *self.columns))
        return f"INSERT INTO {self.name} ({columns}) VALUES ({', '.join((str(self.key), *values))})"

    def alter(self) -> str:
        kind, free = self.rng.choice("ARRD"), [name for name in NAMES if name not in self.columns]
        if kind == "D" and len(self.columns) > 1:
            gone = self.rng.choice([*self.columns])
            del self.columns[gone]
            return f"ALTER TABLE {self.name} DROP {gone}"
        if kind == "R":
            was, now = self.rng.choice([*self.columns]), self.rng.choice(free)
            numbers = {self.columns[name]: now if name == was else name for name in self.columns}
            self.columns = {name: number for number, name in numbers.items()}
            return f"ALTER TABLE {self.name} RENAME {was} TO {now}"
        self.last += 1
        self.columns[free[0]] = self.last
        return f"ALTER TABLE {self.name} ADD {free[0]} text"

    def step(self) -> None:
        """Alter the table several times and write a row, all at once; then, perhaps, drop it."""
        statements = [self.alter() for _ in range(self.rng.randint(2, 5)) if len(self.columns) < len(NAMES)]
        self.database.execute("; ".join([*statements, self.insert()]))
        if self.rng.random() < 0.4:
            self.database.execute(f"DROP TABLE {self.name}")
            self.key = 0


NAMES = ["a", "b", "ssn", "c", "d", "e", "f"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_a_masked_column_lands_under_no_other_name_however_its_table_is_altered(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    names = [TableName("public", f"t{number}") for number in range(40)]
    tables = [Altered(database, name, rng) for name in names]
    captured = CapturedDatabase(database, tmp_path, monkeypatch, tables=["public.*"])
    mask_ssn(captured, names, *(name for name in NAMES if name != "ssn"))
    with captured.running():
        captured.wait_settled()
        while len(tables) > 2:
            rng.choice(tables).step()
            tables = [table for table in tables if table.key]
            if rng.random() < 0.2 or len(tables) < 3:
                wait_landed(captured)
    assert "shown" in named_files(captured)
    assert "classified" not in named_files(captured)
