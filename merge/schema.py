"""Creates target tables and lets them evolve: columns added, types widened, nothing else.

Invariants:

- A column is never dropped and a type never narrowed; a dropped source column stays, and is null in rows
  written later.
- A change that can't be carried out raises `TableError` before anything of the table is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from connector.errors import TableError
from connector.landing import CDC
from connector.schema import Column, TableSchema, decimal_of
from merge.reconcile import TARGET_FIELDS
from merge.sql import quoted, text
from merge.target import (
    KEY_PROPERTY,
    SOURCE_PROPERTY,
    Target,
    TargetState,
    check_owner,
    look,
    properties_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CDC_TYPE = "struct<" + ",".join(f"{name}:{type_}" for name, type_ in TARGET_FIELDS.items()) + ">"

WIDER: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
"""What Delta's type widening can do without rewriting files; decimals: see `wider`."""

DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""Decimal digits that Delta asks for when an integer column becomes a decimal one."""

NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
MAPPING = {"delta.columnMapping.mode": "name"}


def prepare(
    spark: SparkSession,
    target: Target,
    source: str,
    newest: TableSchema,
    others: Iterable[TableSchema] = (),
) -> tuple[TargetState, bool]:
    """Create the target, or bring its columns up to what `newest` and `others` (to be read too) need.

    Gives its state after that, and whether it was created now. `TableError` when it isn't this source's, or
    the change can't be made.
    """
    schemas = [newest, *others]
    wanted = wanted_columns(target.table, schemas)
    state = look(spark, target)
    created = state is None
    if state is None:
        spark.sql(create_sql(target, source, newest.key, wanted))
        state = look(spark, target)
        assert state is not None
    check_owner(state, target, source, newest.key)
    changes = alter_sql(target, state, wanted)
    for statement in changes:
        spark.sql(statement)
    return (look(spark, target) or state) if changes else state, created


def wanted_columns(table: str, schemas: Sequence[TableSchema]) -> dict[str, Column]:
    """Join the columns of several layouts, the first one's before the others, each as wide as any has it."""
    wanted: dict[str, Column] = {}
    for column in (column for schema in schemas for column in schema.columns):
        known = wanted.setdefault(column.name, column)
        type_ = wider(known.type, column.type)
        if type_ is None:
            raise _impossible(table, column.name, column.type, known.type)
        if type_ != known.type:
            wanted[column.name] = Column(column.name, known.source_type, type_)
    lowered = [name.lower() for name in wanted]
    twice = next((name for name in wanted if lowered.count(name.lower()) > 1), None)
    if twice is not None or CDC in lowered:
        raise TableError(
            table,
            f"column {twice or CDC!r} differs from another one only by case, or has a name that is taken",
            hint="rename the column at the source",
        )
    return wanted


def wider(left: str, right: str) -> str | None:
    """Give the wider of two types when one widens to the other, else None."""
    if left == right or _widens(right, left):
        return left
    return right if _widens(left, right) else None


def _widens(narrow: str, wide: str) -> bool:
    if wide in WIDER.get(narrow, ()):
        return True
    whole = decimal_of(wide)
    if whole is None:
        return False
    if narrow in DIGITS:
        return whole[0] - whole[1] >= DIGITS[narrow]
    part = decimal_of(narrow)
    return part is not None and whole[1] >= part[1] and whole[0] - whole[1] >= part[0] - part[1]


def create_sql(target: Target, source: str, key: Sequence[str], columns: Mapping[str, Column]) -> str:
    """Spell the creation of a target; deletion vectors make a merge write only what changed."""
    properties = {
        "delta.enableDeletionVectors": "true",
        SOURCE_PROPERTY: source,
        KEY_PROPERTY: json.dumps(list(key)),
    }
    if any(NEEDS_MAPPING.search(name) for name in columns):
        properties |= MAPPING
    lines = [
        f"{quoted(c.name)} {c.type}{' NOT NULL' if c.name in key else ''} COMMENT {text(c.source_type)}"
        for c in columns.values()
    ]
    cdc = f"{quoted(CDC)} {CDC_TYPE} COMMENT {text('written by deltatide')}"
    return (
        f"CREATE TABLE IF NOT EXISTS {target.name} ({', '.join([*lines, cdc])}) USING DELTA "
        f"TBLPROPERTIES ({properties_sql(properties)})"
    )


def alter_sql(target: Target, state: TargetState, wanted: Mapping[str, Column]) -> list[str]:
    """Spell what brings a target's columns up to `wanted`; nothing for a column that is no longer wanted."""
    by_case = {name.lower(): name for name in state.columns}
    added = [c for c in wanted.values() if c.name.lower() not in by_case]
    widened: dict[str, str] = {}
    for column in wanted.values():
        known = state.columns.get(by_case.get(column.name.lower(), ""))
        type_ = column.type if known is None else wider(known, column.type)
        if known is not None and (type_ is None or column.name not in state.columns):
            raise _impossible(target.table, column.name, column.type, known)
        if known is not None and type_ is not None and type_ != known:
            widened[column.name] = type_
    properties: dict[str, str] = {}
    if any(NEEDS_MAPPING.search(c.name) for c in added) and not MAPPING.items() <= state.properties.items():
        properties |= MAPPING
    if widened and state.properties.get("delta.enableTypeWidening") != "true":
        properties["delta.enableTypeWidening"] = "true"
    alter = f"ALTER TABLE {target.name}"
    statements = [f"{alter} SET TBLPROPERTIES ({properties_sql(properties)})"] if properties else []
    if added:
        lines = [f"{quoted(c.name)} {c.type} COMMENT {text(c.source_type)}" for c in added]
        statements.append(f"{alter} ADD COLUMNS ({', '.join(lines)})")
    statements += [f"{alter} ALTER COLUMN {quoted(n)} TYPE {type_}" for n, type_ in widened.items()]
    return statements


def _impossible(table: str, column: str, wanted: str, known: str) -> TableError:
    return TableError(
        table,
        f"column {column!r} is {wanted} now and was {known}, Delta can't change that in place",
        hint="rename the column at the source, so that a new one is added",
    )
