"""Rows from dump and log whose key value a column can't hold, distinguished by its text in `_cdc.raw`."""

from __future__ import annotations

from typing import Any

from connector.schema import TableName
from connector.source import KeyRange, TableReader


def key_of(row: dict[str, Any]) -> tuple[int, str]:
    raw = dict((row["_cdc"]["raw"] if "_cdc" in row else row["raw"]) or [])
    return row["id"], raw.get("k") or repr(row["k"])


def rows_of(
    tables: TableReader, table: TableName, range_: KeyRange | None, keys: Any = ()
) -> list[dict[str, Any]]:
    """Return the rows of a chunk, or of given keys, each with `raw` and `absent`."""
    opened = tables.open_keys(table, keys) if range_ is None else tables.open_chunk(table, range_)
    with opened as chunk:
        found = []
        for some in chunk.rows():
            columns = {c.name: a.to_pylist() for c, a in zip(chunk.schema.columns, some.columns, strict=True)}
            size = len(some.columns[0])
            columns["raw"] = some.raw.to_pylist() if some.raw is not None else [None] * size
            columns["absent"] = some.absent.to_pylist() if some.absent is not None else [False] * size
            found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return found


def assert_the_same(
    tables: TableReader, table: TableName, logged: list[dict[str, Any]], texts: tuple[str, ...]
) -> None:
    """Check that a dump reads the log's final state: in one chunk, in many, and by key.

    `logged`: all events ever of table ``t (id int, k ..., v int)``; `texts`: values of `k`.
    """
    state: dict[Any, int] = {}
    for row in logged:
        if row["_cdc"]["op"] == "delete":
            del state[key_of(row)]
        else:
            state[key_of(row)] = row["v"]
    whole = rows_of(tables, table, KeyRange())
    chunks, after = [], None
    while (upto := tables.next_boundary(table, ("id", "k"), after, 2, None)) is not None:
        chunks += rows_of(tables, table, KeyRange(after, upto))
        after = upto
    chunks += rows_of(tables, table, KeyRange(after, None))
    found = rows_of(tables, table, None, [("1", text) for text in texts])
    assert state == {key_of(row): row["v"] for row in whole}
    assert sorted(map(key_of, chunks)) == sorted(state)
    assert {key_of(row) for row in found if not row["absent"]} == {key for key in state if key[0] == 1}
    gone = {key_of(row) for row in logged if row["_cdc"]["op"] == "delete"} - state.keys()
    assert {key_of(row) for row in found if row["absent"]} == gone
