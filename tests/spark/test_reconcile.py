"""Columns that events carry together are taken together, as if each were taken by itself."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from merge.columns.landed_files import CDC_TYPE, schema_ddl
from merge.reconcile import group_columns, reconcile

COLUMNS = ["a", "b.c", "d", "é", "f", "g"]
UNCHANGED = [[], ["a", "b.c"], ["d", "é"], ["a", "b.c", "d", "é"], ["a", "b.c", "f"]]


def event(r: random.Random, lsn: int) -> dict[str, Any]:
    op = r.choice(["insert", "update", "update", "update", "dump", "delete"])
    unchanged = r.choice(UNCHANGED) if op == "update" else []
    carried = [] if op == "delete" else [name for name in COLUMNS if name not in unchanged]
    values = {name: r.choice([None, f"{name}{lsn}"]) for name in carried}
    raw = {name: f"raw {lsn}" for name in carried if values[name] is None and r.random() < 0.5}
    known = {"op": op, "epoch": 1, "lsn": lsn, "seq": 0, "unchanged": unchanged or None, "raw": raw or None}
    return {"id": r.randint(1, 40), **dict.fromkeys(COLUMNS), **values, "_cdc": known}


def canonical(rows: Iterable[Any]) -> dict[int, Any]:
    found = {}
    for row in rows:
        cdc = row["_cdc"].asDict(recursive=True)
        cdc["missing"] = sorted(cdc["missing"] or [])
        found[row["id"]] = (cdc, [row[name] for name in COLUMNS])
    return found


@pytest.mark.parametrize("soft", [False, True])
def test_grouped_columns_give_the_same_rows(spark: SparkSession, soft: bool) -> None:
    r = random.Random(5)
    schema = schema_ddl({"id": "int", **dict.fromkeys(COLUMNS, "string"), "_cdc": CDC_TYPE})
    events = spark.createDataFrame([event(r, lsn) for lsn in range(300)], schema)
    groups = group_columns(COLUMNS, UNCHANGED)
    assert groups == [["a", "b.c"], ["d", "é"], ["f"], ["g"]]
    each, together = (
        canonical(reconcile(events, ["id"], COLUMNS, partial=True, groups=g, soft=soft).collect())
        for g in (None, groups)
    )
    assert together == each
    assert any(cdc["missing"] for cdc, _ in each.values())
    assert any(cdc["raw"] for cdc, _ in each.values())
    some = reconcile(events, ["id"], ["a"], partial=True, groups=groups, soft=soft).collect()
    assert {row["id"]: (row["a"], _without_raw(row["_cdc"].asDict(recursive=True))) for row in some} == {
        id_: (values[0], _without_raw(cdc)) for id_, (cdc, values) in each.items()
    }


def _without_raw(cdc: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in cdc.items() if name != "raw"}
    return {**known, "missing": sorted(cdc["missing"] or []), "raw of a": (cdc["raw"] or {}).get("a")}


def test_columns_that_no_event_lacks_are_one_group() -> None:
    assert group_columns(["a", "b", "c"], [()]) == [["a", "b", "c"]]
    assert group_columns(["a", "b", "c"], [["b"], ["b", "c"]]) == [["a"], ["b"], ["c"]]
    assert group_columns([], [["b"]]) == []
