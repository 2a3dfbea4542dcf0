"""Landing files: what is in them, what a failure leaves, how much memory they need."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from connector.errors import BugError, TransientError
from connector.landing import parquet
from connector.landing.event_batch import (
    BEFORE_CDC_TYPE,
    CdcColumns,
    EventBatch,
    arrow_schema,
    arrow_type,
    assemble,
    before_struct,
)
from connector.landing.format import BEFORE_FIELDS, schema_path
from connector.landing.manifest import LandedFile
from connector.landing.parquet import ROW_GROUP_ROWS, FileWriter, SchemaWriter, batches_of
from connector.position import Position
from connector.schema import Column, TableName, TableSchema
from connector.store.local import LocalStore
from connector.store.protocol import Store
from connector.testing.memory_store import MemoryStore

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456)
VALUES: dict[str, Any] = {
    "boolean": True,
    "smallint": 7,
    "int": 8,
    "bigint": 2**62,
    "float": 0.5,
    "double": 0.1,
    "string": "ü\n",
    "binary": b"\x00\xff",
    "date": date(2026, 1, 1),
    "timestamp": NOON.replace(tzinfo=timezone.utc),
    "timestamp_ntz": NOON,
    "decimal(9,2)": Decimal("-1.25"),
    "decimal(18,0)": Decimal(10**17),
    "decimal(38,10)": Decimal("1234567890123456789012345678.0123456789"),
    "array<bigint>": [1, None, 3],
    "array<string>": [],
}

NARROW = TableSchema(TableName("public", "t"), (Column("id", "bigint", "bigint"),), ("id",))
WIDE = TableSchema(
    TableName("Odd ", "t.1"),
    (
        Column("id", "bigint", "bigint"),
        *(Column(f"a {type_}.", type_, type_) for type_ in VALUES),
    ),
    ("id",),
)


def land(store: Store, schemas: SchemaWriter, batches: list[EventBatch]) -> LandedFile | None:
    if not batches:
        return FileWriter(store, NARROW, Position(1, 10, 0)).close()
    schemas.ensure(batches[0].schema)
    with FileWriter(store, batches[0].schema, batches[0].first) as writer:
        for each in batches:
            writer.append_batch(each)
        return writer.close()


def rows_of(schema: TableSchema, ids: list[int], *, lsn: int = 10) -> pa.Table:
    """Rows of which every second one is null but for the id."""
    layout = arrow_schema(schema)
    columns = [pa.array(ids, pa.int64())]
    for i, column in enumerate(schema.columns[1:], 1):
        values = [VALUES[column.type] if n % 2 else None for n in ids]
        columns.append(pa.array(values, layout.field(i).type))
    cdc = CdcColumns(
        op="insert",
        epoch=1,
        lsn=lsn,
        seq=pa.array([2 * i for i in range(len(ids))], pa.int64()),
        unchanged=pa.array([["a", "b"] if n % 3 else None for n in ids], pa.list_(pa.string())),
        raw=pa.array([[("x", "NaN")] if n % 3 else None for n in ids], pa.map_(pa.string(), pa.string())),
    )
    return assemble(schema, columns, cdc)


def batch(schema: TableSchema, ids: list[int], *, lsn: int = 10, **facts: bool) -> EventBatch:
    first, last = Position(1, lsn, 0), Position(1, lsn, 2 * len(ids) - 2)
    return EventBatch(schema, rows_of(schema, ids, lsn=lsn), first, last, **facts)


def contents(store: MemoryStore, path: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(store.objects[path]))


def test_values_of_every_type_are_read_as_they_were_written() -> None:
    store = MemoryStore()
    landed = land(store, SchemaWriter(store), [batch(WIDE, [1, 2, 3])])
    assert landed is not None
    found = contents(store, landed.path)
    assert found.schema.names == [*(c.name for c in WIDE.columns), "_cdc"]
    expected = rows_of(WIDE, [1, 2, 3])
    for name in found.schema.names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    assert found.schema.field("a timestamp.").type == pa.timestamp("us", tz="UTC")
    assert found.schema.field("a timestamp_ntz.").type == pa.timestamp("us")


def test_a_landed_file_says_what_it_holds() -> None:
    store = MemoryStore()
    batches = [
        batch(NARROW, [1, 2], lsn=10),
        batch(NARROW, [3], lsn=11, partial=True),
        batch(NARROW, [4], lsn=12, truncates=True),
    ]
    landed = land(store, SchemaWriter(store), batches)
    assert landed is not None
    assert (landed.kind, str(landed.table), landed.schema_id) == ("log", "public.t", NARROW.id)
    assert (landed.rows, landed.bytes) == (4, len(store.objects[landed.path]))
    assert (landed.first, landed.last) == (Position(1, 10, 0), Position(1, 12, 0))
    assert (landed.partial, landed.truncates) == (True, True)
    assert re.fullmatch(
        r"data/public\.t/\d{4}-\d\d-\d\d/000001-000000000000000A-[0-9a-f]{16}\.parquet", landed.path
    )
    assert contents(store, landed.path)["id"].to_pylist() == [1, 2, 3, 4]


def test_files_of_the_same_position_have_different_names() -> None:
    store = MemoryStore()
    schemas = SchemaWriter(store)
    landed = [land(store, schemas, [batch(NARROW, [1])]) for _ in range(3)]
    assert len({file.path for file in landed if file}) == 3


def test_a_chunks_file_is_of_kind_chunk() -> None:
    store = MemoryStore()
    position = Position.of_chunk(2, 99, dump_number=3)
    with FileWriter(store, NARROW, position) as writer:
        writer.append(rows_of(NARROW, [1]))
        landed = writer.close()
    assert landed is not None
    assert (landed.kind, landed.first, landed.last) == ("chunk", position, position)


def test_without_rows_there_is_no_file() -> None:
    store = MemoryStore()
    assert land(store, SchemaWriter(store), []) is None
    with FileWriter(store, NARROW, Position(1, 1, 0)) as writer:
        writer.append(rows_of(NARROW, []))
        assert writer.close() is None
    assert store.objects == {}


def test_the_schema_is_durable_before_the_file_and_written_once() -> None:
    store = MemoryStore()
    schemas = SchemaWriter(store)
    for _ in range(2):
        land(store, schemas, [batch(WIDE, [1])])
    writes = [call for call in store.calls if call[0].startswith("put")]
    path = schema_path(WIDE.table, WIDE.id)
    assert [operation for operation, _ in writes] == ["put", "put_file", "put_file"]
    assert writes[0] == ("put", path)
    assert TableSchema.from_json(store.objects[path]) == WIDE
    assert json.loads(store.objects[path])["name"] == "t.1"


def test_a_schema_that_could_not_be_written_is_written_the_next_time() -> None:
    store = MemoryStore()
    schemas = SchemaWriter(store)
    store.fail("put", "schema/")
    with pytest.raises(TransientError):
        schemas.ensure(NARROW)
    schemas.ensure(NARROW)
    assert store.objects


def test_small_appends_become_row_groups_of_even_size() -> None:
    store = MemoryStore()
    part = rows_of(NARROW, list(range(5000)))
    with FileWriter(store, NARROW, Position(1, 1, 0)) as writer:
        for _ in range(30):
            writer.append(part)
        writer.append(pa.concat_tables([part] * 30))
        landed = writer.close()
    assert landed is not None
    metadata = pq.read_metadata(pa.BufferReader(store.objects[landed.path]))
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(groups) == 300_000
    assert all(ROW_GROUP_ROWS <= rows < 2 * ROW_GROUP_ROWS for rows in groups)


def test_wide_rows_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 100_000)
    store = MemoryStore()
    part = rows_of(NARROW, list(range(1000)))
    with FileWriter(store, NARROW, Position(1, 1, 0)) as writer:
        for _ in range(20):
            writer.append(part)
            assert writer._held_bytes < 100_000 + part.nbytes
        assert writer.close() is not None


class FullDisk(pq.ParquetWriter):
    """A Parquet writer that finds the disk full at its end, or when it writes rows."""

    def __init__(self, *args: Any, when: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._when = when

    def write_table(self, *args: Any, **kwargs: Any) -> None:
        self._fail("appending")
        super().write_table(*args, **kwargs)

    def close(self) -> None:
        super().close()
        self._fail("closing")

    def _fail(self, when: str) -> None:
        if when == self._when:
            self._when = ""
            no_space()


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("when", ["appending", "closing", "moving"])
def test_a_failure_leaves_neither_object_nor_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(pq, "ParquetWriter", partial(FullDisk, when=when))
    if when == "moving":
        monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(TransientError, match=r"(?i)no space left"):
        write_and_close(store)
    assert list(store.list("")) == []
    assert list(store.scratch.iterdir()) == []


def write_and_close(store: LocalStore) -> None:
    with FileWriter(store, NARROW, Position(1, 1, 0)) as writer:
        writer.append(pa.concat_tables([rows_of(NARROW, list(range(1024)))] * (ROW_GROUP_ROWS // 1024)))
        writer.close()


def test_what_is_not_closed_is_abandoned(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with FileWriter(store, NARROW, Position(1, 1, 0)) as writer:
        writer.append(pa.concat_tables([rows_of(NARROW, list(range(1024)))] * (ROW_GROUP_ROWS // 1024)))
        assert len(list(store.scratch.iterdir())) == 1
    assert list(store.scratch.iterdir()) == []
    assert list(store.list("")) == []


def test_rows_of_another_layout_are_a_bug() -> None:
    with (
        FileWriter(MemoryStore(), NARROW, Position(1, 1, 0)) as writer,
        pytest.raises(BugError, match="layout"),
    ):
        writer.append(rows_of(WIDE, [1]))


def test_key_and_log_position_have_statistics_and_nothing_else() -> None:
    store = MemoryStore()
    landed = land(store, SchemaWriter(store), [batch(WIDE, [1, 2, 3])])
    assert landed is not None
    metadata = pq.read_metadata(pa.BufferReader(store.objects[landed.path])).row_group(0)
    columns = [metadata.column(i) for i in range(metadata.num_columns)]
    assert [c.path_in_schema for c in columns if c.is_stats_set] == ["id", "_cdc.lsn"]
    assert all(c.compression == "ZSTD" for c in columns)
    assert pc.min(contents(store, landed.path)["id"]).as_py() == columns[0].statistics.min == 1


def test_a_layout_announced_behind_an_event_that_follows_it_does_not_shorten_the_file() -> None:
    columns = [pa.array([1, 2], pa.int64())]
    rows = assemble(NARROW, columns, CdcColumns("insert", 1, pa.array([10, 30]), 0))
    none = assemble(NARROW, [pa.nulls(0, pa.int64())], CdcColumns("insert", 1, 20, 0))
    first, later, last = (Position(1, lsn, 0) for lsn in (10, 20, 30))
    store = MemoryStore()
    batches = [EventBatch(NARROW, rows, first, last), EventBatch(NARROW, none, later, later)]
    file = land(store, SchemaWriter(store), batches)
    assert file is not None
    assert (file.first, file.last) == (first, last)


def test_before_images_are_read_as_they_were_written_and_only_where_they_are_asked_for() -> None:
    store, asking = MemoryStore(), replace(WIDE, before_images=True)
    assert asking.id != WIDE.id
    assert TableSchema.from_json(asking.to_json()) == asking
    rows = rows_of(WIDE, [1, 2, 3])
    columns = [column.combine_chunks() for column in rows.columns]
    names = pa.array([None, ["id"], None], pa.list_(pa.string()))
    raw = pa.array([[("id", "NaN")], None, None], pa.map_(pa.string(), pa.string()))
    replaces = np.array([True, True, False])
    before = before_struct(asking, columns[:-1], replaces, names, raw)
    arrays = pa.Table.from_arrays([*columns, before], schema=arrow_schema(asking))
    landed = land(store, SchemaWriter(store), [replace(batch(WIDE, [1, 2, 3]), schema=asking, table=arrays)])
    assert landed is not None
    (found,) = batches_of(asking, landed, store.objects[landed.path])
    assert found.table["_before"].to_pylist() == before.to_pylist()
    first, second, third = found.table["_before"].to_pylist()
    assert (first["_cdc"], second["_cdc"]["missing"], third) == (
        {"missing": None, "raw": [("id", "NaN")]}, ["id"], None,
    )  # fmt: skip
    assert "_before" not in rows.schema.names


def test_the_fields_of_before_images_are_those_of_the_format() -> None:
    named = [(field.name, field.type) for field in BEFORE_CDC_TYPE]
    texts = pa.map_(pa.string(), pa.string())
    types = [arrow_type(type_) if type_ != "map<string,string>" else texts for _, type_ in BEFORE_FIELDS]
    assert named == list(zip([name for name, _ in BEFORE_FIELDS], types, strict=True))
