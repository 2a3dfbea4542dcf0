"""The oracle of capture: reads a landing zone back and resolves it in plain Python, cut by cut.

The rules: for each key the event with the greatest position wins; a partial event changes only the columns it
carries; a truncate, and the ghost sweep of a full dump, delete everything at earlier positions.
"""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from connector.landing.format import CDC, DELETE, TRUNCATE, UPDATE, schema_path
from connector.landing.manifest import FullDump, LandedFile, Manifest
from connector.landing.manifest_store import ManifestReader
from connector.position import CHUNK_SEQ, Position
from connector.schema import TableName, TableSchema
from connector.testing.memory_database import MemoryDatabase
from connector.testing.memory_log import Logged, events_of

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Event:
    """One landed event; `columns` are the ones it carries."""

    position: Position
    op: str
    key: Key | None
    columns: dict[str, Any]
    partial: bool


@dataclass
class Table:
    """What has landed of one table up to a manifest."""

    events: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    truncates: list[Position] = field(default_factory=list)
    sweeps: list[tuple[Position, set[Key]]] = field(default_factory=list)

    def row(self, key: Key) -> tuple[dict[str, Any] | None, Position | None]:
        """Return a key's row, or None, and the position of the last event that set it whole or deleted it."""
        deletes = [Event(p, DELETE, key, {}, False) for p in self.truncates]
        deletes += [Event(p, DELETE, key, {}, False) for p, kept in self.sweeps if key not in kept]
        row, decided = None, None
        for event in sorted([*self.events[key], *deletes], key=lambda e: e.position):
            if event.op == DELETE:
                row, decided = None, event.position
            elif event.op == UPDATE and event.partial:
                row = {**(row or {}), **event.columns}
            else:
                row, decided = event.columns, event.position
        return row, decided


def manifests_in(store: Any) -> list[Manifest]:
    """Return all manifests, after checking that they are numbered from 1 with none missing."""
    numbers = sorted(int(path[-20:-5]) for path in store.list("manifest/"))
    assert numbers == list(range(1, len(numbers) + 1))
    reader = ManifestReader(store)
    return [manifest for number in numbers if (manifest := reader.read(number))]


def read_events(store: Any, file: LandedFile) -> list[Event]:
    """Return the events of a landing file, read under the schema that it names."""
    data = store.read(file.path)
    assert data is not None, f"{file.path} is named by a manifest and does not exist"
    schema_data = store.read(schema_path(file.table, file.schema_id))
    assert schema_data is not None, f"the schema of {file.path} does not exist"
    schema = TableSchema.from_json(schema_data)
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    assert len(rows) == file.rows
    events = [_event(schema, row) for row in rows]
    assert all(file.first <= event.position <= file.last for event in events)
    return events


def _event(schema: TableSchema, row: dict[str, Any]) -> Event:
    cdc = row.pop(CDC)
    unchanged = cdc["unchanged"] or []
    key = tuple(row[c] for c in schema.key) if cdc["op"] != TRUNCATE else None
    carried = {c: v for c, v in row.items() if c not in unchanged}
    position = Position(cdc["epoch"], cdc["lsn"], cdc["seq"])
    return Event(position, cdc["op"], key, carried, bool(unchanged))


def assert_every_cut_exact(store: Any, database: MemoryDatabase) -> list[Manifest]:
    """Check every manifest: its form, and the state of every table after it."""
    manifests = manifests_in(store)
    tables: dict[TableName, Table] = defaultdict(Table)
    paths: set[str] = set()
    before: Manifest | None = None
    for manifest in manifests:
        _check_form(manifest, before, paths)
        add_manifest(store, manifest, tables)
        for name, table in tables.items():
            _check_table(manifest, name, table, database)
        before = manifest
    return manifests


def _check_form(manifest: Manifest, before: Manifest | None, paths: set[str]) -> None:
    if before is not None and manifest.epoch == before.epoch:
        assert manifest.position >= before.position, f"manifest {manifest.number} goes back"
    if before is not None and manifest.epoch != before.epoch:
        assert manifest.epoch == before.epoch + 1
        assert manifest.gaps[-1].epoch == manifest.epoch
    for file in manifest.files:
        assert file.path not in paths, f"{file.path} is committed twice"
        paths.add(file.path)
        assert file.last.epoch == manifest.epoch, "a file of an epoch that ended"
        if file.kind != "log":
            assert file.high <= manifest.position, "a chunk is committed before its high watermark"
        else:
            assert file.last.lsn < manifest.position, "a log event from the future"


def add_manifest(store: Any, manifest: Manifest, tables: dict[TableName, Table]) -> dict[TableName, set[Key]]:
    """Add what a manifest commits, and return the keys whose rows may be others since."""
    touched: dict[TableName, set[Key]] = defaultdict(set)
    for file in manifest.files:
        if file.kind == "verify":
            continue
        table = tables[file.table]
        for event in read_events(store, file):
            if event.key is None:
                table.truncates.append(event.position)
                touched[file.table] |= table.events.keys()
            else:
                table.events[event.key].append(event)
                touched[file.table].add(event.key)
    for dump in manifest.dumps:
        if dump.kind == "full" and dump.finished_in == manifest.number:
            table = tables[dump.table]
            number = CHUNK_SEQ + dump.number
            kept = {k for k, events in table.events.items() if any(e.position.seq == number for e in events)}
            table.sweeps.append((FullDump.of(dump).position, kept))
            touched[dump.table] |= table.events.keys() - kept
    return touched


def _check_table(manifest: Manifest, name: TableName, table: Table, database: MemoryDatabase) -> None:
    state = manifest.tables.get(name)
    if state is None or state.state == "quarantined":
        return
    want = database.state_at(manifest.position).get(str(name), {})
    whole = state.dumped and (manifest.epoch == 1 or manifest.exact)
    known_from = Position(manifest.epoch, 0, 0)
    if not state.dumped:  # capture may have resumed after a time without landing
        floors = [d.floor or 0 for d in manifest.dumps if d.table == name and d.active]
        known_from = Position(manifest.epoch, max(floors, default=0), 0)
    for key in table.events.keys() | want.keys():
        got, decided = table.row(key)
        if not whole and (decided is None or decided < known_from):
            continue  # not known yet, or left over from the previous epoch
        _check_row(f"manifest {manifest.number} at {manifest.position}: {name} {key}", got, want.get(key))


def _check_row(reported: str, got: dict[str, Any] | None, expected: Any) -> None:
    """Compare the columns that both have: dropped ones keep their values, added ones may not be read yet."""
    assert (got is None) == (expected is None), f"{reported} is {got}, in the source it is {expected}"
    if got is not None:
        both = got.keys() & expected.keys()
        wrong = {c: got[c] for c in both if got[c] != expected[c]}
        assert not wrong, f"{reported} has {wrong}, in the source it is {expected}"


def assert_no_event_lost(store: Any, database: MemoryDatabase) -> None:
    """Check that every event between the first and last manifests landed exactly once, in a single epoch."""
    manifests = manifests_in(store)
    begin, end = manifests[0].position, manifests[-1].position
    expected = sorted(
        (str(change.schema.table), commit.lsn, event.seq, event.op)
        for commit in database.log
        if begin < commit.position <= end
        for ordinal, change in enumerate(commit.changes)
        for event in events_of(Logged(commit, ordinal, change))
    )
    files = [file for manifest in manifests for file in manifest.files if file.kind == "log"]
    landed = sorted(
        (str(f.table), e.position.lsn, e.position.seq, e.op) for f in files for e in read_events(store, f)
    )
    assert landed == expected
