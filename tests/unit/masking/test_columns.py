"""What lands of a table's columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from connector.config import Config, TableConfig
from connector.errors import ConfigurationError, TableError
from connector.landing.event_batch import CdcColumns, EventBatch, assemble
from connector.masking.columns import LandedColumns
from connector.position import Position
from connector.schema import Column, TableName, TableSchema
from connector.source import ChunkRows

T = TableName("public", "people")
PEOPLE = TableSchema(
    T,
    tuple(Column(n, t, t) for n, t in {"id": "int", "Mail": "string", "born": "date", "note": "string",
                                       "secret": "string"}.items()),
    ("id",),
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "columns": ["id", "mail", "born", "note"],
    "mask": {"MAIL": "keep last 4", "born": "sha256", "note": "null"},
    "mask_before_landing": True,
}


def landed(salt: bytes = b"salt", **settings: Any) -> LandedColumns:
    return LandedColumns(T, TableConfig.model_validate(SETTINGS | settings), salt)


def batch(raw: list[Any], unchanged: list[Any]) -> EventBatch:
    rows = len(raw)
    cdc = CdcColumns(
        op="update",
        epoch=1,
        lsn=10,
        seq=pa.array(range(rows), pa.int64()),
        raw=pa.array(raw, pa.map_(pa.string(), pa.string())),
        unchanged=pa.array(unchanged, pa.list_(pa.string())),
    )
    texts = [pa.array([f"{name} {n}" for n in range(rows)]) for name in ("mail", "note", "secret")]
    born = pa.nulls(rows, pa.date32())
    columns = [pa.array(range(rows), pa.int32()), texts[0], born, *texts[1:]]
    return EventBatch(PEOPLE, assemble(PEOPLE, columns, cdc), Position(1, 10, 0), Position(1, 10, rows))


def test_a_layout_says_what_lands_and_under_which_mask() -> None:
    found = landed().layout(PEOPLE)
    assert [(c.name, c.type) for c in found.columns] == [
        ("id", "int"), ("Mail", "string"), ("born", "string"), ("note", "string")
    ]  # fmt: skip
    masks = [column.mask for column in found.columns]
    assert masks[:2] == [None, "keep last 4"]
    assert masks[3] == "null"
    assert masks[2] is not None
    assert masks[2].startswith("sha256 ")
    assert TableSchema.from_json(found.to_json()) == found


def test_another_salt_is_another_layout_only_where_it_matters() -> None:
    assert landed(b"other").layout(PEOPLE).id != landed().layout(PEOPLE).id
    unsalted = {"mask": {"mail": "keep last 4"}}
    assert landed(b"other", **unsalted).layout(PEOPLE).id == landed(**unsalted).layout(PEOPLE).id


def test_a_layout_without_masks_has_the_id_that_it_always_had() -> None:
    assert b"mask" not in PEOPLE.to_json()


def test_no_value_that_is_hidden_leaves_as_raw_text_and_no_name_of_a_column_that_does_not_land() -> None:
    raw = [{"born": "infinity", "secret": "s"}, {"id": "7"}, None]
    unchanged = [["secret"], ["note", "Mail"], None]
    found = landed().batch(batch([list(r.items()) if r else None for r in raw], unchanged))
    assert found.schema == landed().layout(PEOPLE)
    rows = found.table.to_pylist()
    assert [row["Mail"] for row in rows] == ["****il 0", "****il 1", "****il 2"]
    assert [row["note"] for row in rows] == [None] * 3
    assert rows[0]["born"] is not None
    assert rows[1]["born"] is None
    assert "secret" not in rows[0]
    assert [row["_cdc"]["raw"] for row in rows] == [None, [("id", "7")], None]
    assert [row["_cdc"]["unchanged"] for row in rows] == [None, ["Mail"], None]
    assert "infinity" not in str(rows)


def test_a_batch_without_rows_announces_the_layout() -> None:
    empty = batch([], [])
    assert landed().batch(empty).schema == landed().layout(PEOPLE)


def test_rows_of_a_chunk_land_as_events_of_the_log_do() -> None:
    events = batch([[("born", "infinity")], None], [None, None])
    columns = [events.table[c.name].combine_chunks() for c in PEOPLE.columns]
    raw = pa.array([[("born", "infinity")], None], pa.map_(pa.string(), pa.string()))
    found = landed().rows(PEOPLE, ChunkRows(columns, raw))
    expected = landed().batch(events).table
    assert [column.to_pylist() for column in found.columns] == [
        expected[c.name].to_pylist() for c in landed().layout(PEOPLE).columns
    ]
    assert found.raw is not None
    assert found.raw.to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mask": {"id": "null"}}, "'id' is in the key"),
        ({"columns": ["mail"], "mask": {}}, "'id' is in the key"),
        ({"mask": {"mail": "sha256"}}, "no unique text"),
    ],
)
def test_settings_that_do_not_fit_the_layout_are_refused(settings: dict[str, Any], problem: str) -> None:
    floats = replace(
        PEOPLE, columns=tuple(replace(c, type="double") if c.name == "Mail" else c for c in PEOPLE.columns)
    )
    with pytest.raises(TableError, match=problem) as refused:
        landed(**settings).layout(floats if "mail" in settings["mask"] else PEOPLE)
    assert refused.value.hint is not None
    assert T.section in refused.value.hint


def test_a_table_that_does_not_ask_lands_as_it_is() -> None:
    config = Config.model_validate(
        {
            "source": {
                "name": "shop",
                "kind": "postgres",
                "url": "postgresql://u@h/d",
                "tables": ["public.*"],
            },
            "landing": {"url": "/landing"},
            "tables": {str(T): {"mask": {"mail": "null"}}},
        }
    )
    assert LandedColumns.of(config, T) is None


def configured(tables: dict[str, Any], salt: str | None = None) -> Config:
    said: dict[str, Any] = {
        "source": {"name": "shop", "kind": "postgres", "url": "postgresql://u@h/d", "tables": ["public.*"]},
        "landing": {"url": "/landing"},
        "tables": tables,
    }
    if salt is not None:
        said["lake"] = {"url": "/lake", "salt": salt}
    return Config.model_validate(said)


def test_a_section_under_another_case_lets_nothing_land() -> None:
    found = LandedColumns.of(configured({"public.People": SETTINGS}), T)
    assert found is not None
    with pytest.raises(TableError, match="only by case") as refused:
        found.batch(batch([None], [None]))
    assert refused.value.hint is not None
    assert T.section in refused.value.hint
    assert LandedColumns.of(configured({"public.People": SETTINGS, str(T): {}}), T) is None


def test_a_value_that_no_mask_can_be_made_of_stops_its_table_and_is_not_shown() -> None:
    beyond = pa.array([3_000_000], pa.date32())
    texts = pa.array(["text"])
    with pytest.raises(TableError, match=r"can't be masked \(OverflowError\)"):
        landed().rows(PEOPLE, ChunkRows([pa.array([1], pa.int32()), texts, beyond, texts, texts]))


def test_a_reload_does_not_hash_without_a_salt() -> None:
    new = configured({str(T): SETTINGS}, "a salt of sixteen characters")
    with pytest.raises(ConfigurationError, match=r"needs lake\.salt"):
        configured({}).reloaded(new)
    assert configured({}, "another of sixteen characters").reloaded(new)[1] == ["lake.salt"]
