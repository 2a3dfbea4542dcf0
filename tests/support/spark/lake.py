"""Compare the source with what has landed and with the lake: every row, every column.

The lake is read with delta-rs, which shares no code with Spark; what has landed is resolved in plain Python.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from connector.landing.format import CDC
from connector.schema import TableName
from tests.support.agent.installed import Installation, Running
from tests.support.landing.cuts import Table, add_manifest, manifests_in
from tests.support.source.tested_database import TestedDatabase

Rows = Counter[tuple[Any, ...]]


def source_columns(database: TestedDatabase, table: str) -> dict[str, str]:
    """Return a table's columns in alphabetical order, with the SQL that selects each."""
    found = database.columns(table)
    assert found, f"{table} has no columns"
    return found


def source_rows(database: TestedDatabase, table: str, columns: dict[str, str]) -> Rows:
    """Return the source's rows, each with its count."""
    return Counter(database.rows(f"SELECT {', '.join(columns.values())} FROM {table}"))


def _delta(place: Installation, table: str) -> DeltaTable:
    return DeltaTable(_url(place, table), storage_options=place.lake_options)


def _url(place: Installation, table: str) -> str:
    return f"{place.lake_url}/{place.table(table).replace('.', '/')}"


def lake_columns(place: Installation, table: str) -> dict[str, str | None]:
    """Return the Delta table's columns except `_cdc`, with their comments."""
    fields = _delta(place, table).schema().fields
    return {field.name: field.metadata.get("comment") for field in fields if field.name != CDC}


def lake_comment(place: Installation, table: str) -> str | None:
    """Return the Delta table's comment."""
    return _delta(place, table).metadata().description


def lake_rows(place: Installation, table: str, columns: list[str]) -> Rows:
    """Return the Delta table's rows, each with its count."""
    builder = QueryBuilder().register("target", _delta(place, table))
    wanted = ", ".join(f'"{column}"' for column in columns)
    batches = builder.execute(f"SELECT {wanted} FROM target").read_all()
    return Counter(tuple(row[c] for c in columns) for row in pa.table(batches).to_pylist())


def assert_landed(place: Installation, *tables: str, unchanged: Collection[str] = ("note",)) -> None:
    """Check that all landed files together resolve to the source's rows; its whole log must have landed.

    `unchanged`: columns that the log may omit when a key changes; a merge requests them in a dump.
    """
    landed: dict[TableName, Table] = defaultdict(Table)
    manifests = manifests_in(place.store)
    for manifest in manifests:
        add_manifest(place.store, manifest, landed)
    for table in map(place.table, tables):
        columns = source_columns(place.database, table)
        expected, found = source_rows(place.database, table, columns), Rows()
        keys = [list(columns).index(name) for name in manifests[-1].tables[TableName.parse(table)].key]
        by_key = {tuple(row[k] for k in keys): row for row in expected}
        for key in (state := landed[TableName.parse(table)]).events:
            row, _ = state.row(key)
            if row is not None:
                source = dict(zip(columns, by_key.get(key, ()), strict=False))
                left_out = {name: source.get(name) for name in unchanged if name not in row}
                found[tuple((left_out | row).get(name) for name in columns)] += 1
        _assert_same(table, expected, found)


def spark_rows(spark: Any, place: Installation, table: str, columns: list[str]) -> Rows:
    """Return the same, read with Spark: delta-rs does not support columns whose type was widened."""
    frame = spark.read.format("delta").load(_url(place, table))
    return Counter(tuple(row[c] for c in columns) for row in frame.select(*columns).toArrow().to_pylist())


def assert_lake(place: Installation, *tables: str, spark: Any = None) -> None:
    """Check that the lake equals the source, which must be idle and fully merged. `spark`: read with it."""
    for table in map(place.table, tables):
        columns = source_columns(place.database, table)
        expected = source_rows(place.database, table, columns)
        read = partial(spark_rows, spark) if spark else lake_rows
        _assert_same(table, expected, read(place, table, list(columns)))


def _assert_same(table: str, expected: Rows, found: Rows) -> None:
    missing, surplus = expected - found, found - expected
    reported = [f"{table}: {missing.total()} of {expected.total()} rows missing, {surplus.total()} too many"]
    reported += [f"  source {_short(row)}" for row in sorted(missing, key=repr)[:4]]
    reported += [f"  target {_short(row)}" for row in sorted(surplus, key=repr)[:4]]
    assert (missing, surplus) == (Rows(), Rows()), "\n".join(reported)


def _short(row: tuple[Any, ...]) -> str:
    return ", ".join(text if len(text := repr(v)) < 60 else f"{text[:30]}...({len(text)})" for v in row)


def merge(spark: Any, place: Installation, **options: Any) -> Any:
    """Merge in this process; fail unless every table is merged."""
    from merge.job import merge_once

    report = merge_once(spark, place.config, **options)
    assert not report.failed, report.failed
    return report


def merge_until_whole(spark: Any, place: Installation, agent: Running) -> Any:
    """Merge until the cut is exact, while the agent dumps rows that lack a column again."""
    return agent.wait_until(lambda: _whole(merge(spark, place)), "the cut is exact", seconds=240)


def _whole(report: Any) -> Any:
    return report if report.exact else None
