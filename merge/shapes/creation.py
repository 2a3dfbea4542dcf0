"""Builds the statement that creates the Delta table of a shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connector.schema import Column
from merge.lake.comments import SourceComments
from merge.lake.schema import MAPPING, NEEDS_MAPPING, own_properties
from merge.lake.target import SHAPE_PROPERTY, Target, properties_sql
from merge.sql_formatting import quoted, text


def create_shape_sql(
    target: Target,
    source: str,
    key: Sequence[str],
    columns: Mapping[str, Column],
    comments: SourceComments,
    *,
    first: Mapping[str, str],
    last: Mapping[str, str],
    properties: Mapping[str, str],
) -> str:
    """Build the statement for a target with a shape; see `merge.lake.schema.create_sql`.

    `first`, `last`: our own columns before and after the source's, with their types. Delta keeps statistics
    of the first ones, however wide the table is.
    """
    all_ = {**own_properties(target, source, key), SHAPE_PROPERTY: str(target.shape), **properties}
    all_ |= comments.properties
    if any(NEEDS_MAPPING.search(name) for name in columns):
        all_ |= MAPPING
    ours = text("written by deltatide")
    lines = [
        *(f"{quoted(name)} {type_} COMMENT {ours}" for name, type_ in first.items()),
        *(f"{quoted(c.name)} {c.type} COMMENT {text(comments.of_column(c))}" for c in columns.values()),
        *(f"{quoted(name)} {type_} COMMENT {ours}" for name, type_ in last.items()),
    ]
    return (
        f"CREATE TABLE IF NOT EXISTS {target.name} ({', '.join(lines)}) USING DELTA {target.located}"
        f"{comments.clause}"
        f"TBLPROPERTIES ({properties_sql(all_)})"
    )
