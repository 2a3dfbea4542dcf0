"""Creates target tables and evolves them: adds columns, widens types, sets comments; nothing else.

Invariants:

- A column is never dropped and a type never narrowed; a dropped source column stays, null in rows written
  later.
- A change that can't be made raises `TableError` before anything in the table is changed, but for a widening
  that Delta refuses: other new columns may be there then.
- Each commit carries the mark of the merge that it prepares.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.errors import TableError
from connector.landing.format import CDC, is_reserved
from connector.schema import Column, TableName, TableSchema, decimal_of, fold
from merge.keys import may_be_raw
from merge.lake.comments import NO_COMMENTS, SourceComments, comment_sql
from merge.lake.commits import USER_METADATA, Mark, is_new
from merge.lake.retry import SPARK_ERRORS, OvertakenError, first_line, is_conflict
from merge.lake.target import (
    COLUMNS_PROPERTY,
    DROP,
    KEY_PROPERTY,
    SOURCE_PROPERTY,
    TABLE_PROPERTY,
    VECTORS_PROPERTY,
    WIDENING_PROPERTY,
    Target,
    TargetState,
    check_file_layout,
    check_owner,
    check_partitions,
    properties_sql,
    read_state,
)
from merge.reconcile import DELETED_AT, cdc_type
from merge.spark.session_settings import ONE_TASK, applied_settings
from merge.sql_formatting import listed, quoted, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

OURS = (CDC, "_valid_from", "_valid_to")
FIELDS = ("op", "epoch", "lsn", "seq", "txid", "committed_at", "seen", "unchanged", "raw", "missing",
          DELETED_AT)  # fmt: skip
"""The fields of our own columns, in order: each of these structs has some of them."""

Create = Callable[[Target, str, Sequence[str], Mapping[str, Column], SourceComments], str]
"""Builds the statement that creates a Delta table of a source, with this key, these columns and comments."""

WIDER: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
"""What Delta's type widening can do without rewriting files, from 4.0 on (`refused_widenings`); for decimals
see `wider`."""

DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""Decimal digits that Delta requires to widen an integer column to a decimal."""

NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
MAPPING = {"delta.columnMapping.mode": "name"}
OTHERS_FILES = re.compile("DELTA_CREATE_TABLE_(SCHEME_MISMATCH|WITH_DIFFERENT_)")
NOT_WIDENED = re.compile(
    r"DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP.* column (.+) from (\S+) to (\S+?)\.?\s*$", re.M
)
SPARK_CATALOG = "spark_catalog"
HELD_NAME = re.compile(r"`\w+`\.`\w+`\.`\w+`", re.ASCII)
FEED = {"delta.enableChangeDataFeed": "true"}
WITHOUT_ZONE = {"delta.feature.timestampNtz": "supported"}


def create_or_evolve_target(
    spark: SparkSession,
    target: Target,
    state: TargetState | None,
    mark: Mark,
    newest: TableSchema,
    others: Iterable[TableSchema] = (),
    like: TargetState | None = None,
    create: Create | None = None,
    comments: SourceComments = NO_COMMENTS,
) -> TargetState:
    """Create the target, or evolve its columns to what `newest` and `others` (also to be read) need.

    `state`: as found, None if it does not exist. `mark`: of the merge that will write the rows. `like`:
    another Delta table of these rows, whose columns come first, with their names. `create`: builds the CREATE
    statement, by default `create_sql`. `comments`: to be set if they are new. Returns the new state.
    `TableError` if the target isn't this source's, or the change can't be made; `OvertakenError` if another
    job creates or drops it at this moment, or if it was there already: a catalog that drops an external table
    leaves its files. A retry finds it, and whose it is.
    """
    schemas = [newest, *others]
    all_ = schemas if like is None else [_layout_of(like, newest), *schemas]
    wanted = wanted_columns(target.table, all_, target.drop_hint)
    if state is None:
        check_name(target)
        with applied_settings(spark, ONE_TASK):  # its log has one entry
            with refused_folders(target):
                statement = (create or create_sql)(target, mark.source, newest.key, wanted, comments)
                commit_layout(spark, mark, [statement])
            state = read_state(spark, target)
        if state is None:
            raise OvertakenError(f"{target.name}: another job is creating it, or has just dropped it")
        if target.folder is not None and not is_new(spark, target, mark.for_layout_commit()):
            raise OvertakenError(f"{target.name}: {target.folder} already had a table")
    check_owner(state, target, mark.source, newest.key)
    _check_fields(state, target)
    check_file_layout(state, target)
    changes = alter_sql(target, state, wanted, comments)
    statements = list(comment_sql(target, state, newest, comments, spark.version))
    if not (changes or statements):
        return state
    with refused_widenings(target):
        commit_layout(spark, mark, changes)
    _set_comments(spark, target, mark, statements)
    evolved = read_state(spark, target)
    if evolved is None:
        raise OvertakenError(f"{target.name}: another job has just dropped it")
    check_owner(evolved, target, mark.source, newest.key)  # it may have been rebuilt meanwhile
    return evolved


def _check_fields(state: TargetState, target: Target) -> None:
    """Refuse a table in which others have changed fields of our columns: structs are inserted by place."""
    added = [name for name in state.structs.get(CDC, ()) if name not in FIELDS]
    if CDC not in state.structs or added:
        reason = f"a field {CDC}.{added[0]} of somebody else's" if CDC in state.structs else f"no {CDC}"
        hint = f"drop that field; or {target.drop_hint}" if CDC in state.structs else target.drop_hint
        raise TableError(target.table, f"{target.name} has {reason}", hint=hint)
    for column in OURS:
        found = [name for name in state.structs.get(column, ()) if name in FIELDS]
        known = [name for name in FIELDS if name in found]
        if known != found:
            moved = next(n for n, name in enumerate(known) if found[n] != name)
            place = f"AFTER {known[moved - 1]}" if moved else "FIRST"
            raise TableError(
                target.table,
                f"{target.name} has the fields of {column} in another order than it was created with",
                hint=f"ALTER TABLE {target.name} ALTER COLUMN {column}.{known[moved]} {place}",
            )


def check_name(target: Target) -> None:
    """Refuse a new table whose name Spark's own catalog can't hold, whether in memory or Hive's.

    It would refuse the table itself, but only after Delta had made its folder.
    """
    if target.name.startswith(f"{quoted(SPARK_CATALOG)}.") and not HELD_NAME.fullmatch(target.name):
        raise TableError(
            target.table,
            f"{target.name}: this catalog holds only names of letters A to Z, digits and underscores",
            hint="set lake.url instead of catalog and schema, or exclude the table",
        )


def _set_comments(spark: SparkSession, target: Target, mark: Mark, statements: Sequence[str]) -> None:
    """Set comments. If a catalog refuses one, log it: rows matter more, and a later merge tries again."""
    try:
        commit_layout(spark, mark, statements)
    except SPARK_ERRORS as error:
        if is_conflict(error):
            raise
        log.warning("%s keeps its comments, as a new one was refused: %s", target.name, first_line(error))


@contextmanager
def refused_folders(target: Target) -> Iterator[None]:
    """Say what to do if the folder of a new table holds another Delta table than the statement creates.

    If they are just what is to be created, the table is that one again.
    """
    try:
        yield
    except AnalysisException as error:
        if target.folder is None or not OTHERS_FILES.search(str(error)):
            raise
        raise TableError(
            target.table,
            f"{target.folder} holds another Delta table than the one to be created as {target.name}",
            hint=f"remove that folder, if its rows are no longer needed; or change {target.table.section}"
            " or lake.location",
        ) from error


@contextmanager
def refused_widenings(target: Target) -> Iterator[None]:
    """Say how a table goes on whose column this release of Delta can't widen: before 4.0, hardly any.

    It is asked, since a platform's Delta may do more than its Spark's version says.
    """
    try:
        yield
    except AnalysisException as error:
        refused = NOT_WIDENED.search(str(error))
        if refused is None:
            raise
        column, known, wanted = refused.groups()
        raise TableError(
            target.table,
            f"column {column!r} was {known.lower()} and is now {wanted.lower()}; this release of Delta can't"
            " change that in place",
            hint="merge it once where Delta is 4.0 or newer (Spark 4), which can; or dump the table again"
            f" (deltatide dump {target.table}), and when that is done (deltatide dumps), {target.drop_hint}",
        ) from error


def commit_layout(spark: SparkSession, mark: Mark, statements: Iterable[str]) -> None:
    """Run statements that create a target or change its columns; each commit has the merge's mark."""
    with applied_settings(spark, {USER_METADATA: mark.for_layout_commit().to_json()}):
        for statement in statements:
            spark.sql(statement)


def check_layout(
    target: Target,
    state: TargetState,
    source: str,
    newest: TableSchema,
    others: Iterable[TableSchema] = (),
) -> None:
    """Raise `TableError` if `create_or_evolve_target` would, for these layouts; change nothing."""
    check_owner(state, target, source, newest.key)
    alter_sql(target, state, wanted_columns(target.table, [newest, *others]))


def wanted_columns(
    table: TableName, schemas: Sequence[TableSchema], drop_hint: str = DROP
) -> dict[str, Column]:
    """Combine the columns of several layouts in order, each with its widest type.

    A column whose name changed only in case is one column, named as in the first layout that has it.
    """
    wanted: dict[str, Column] = {}
    for schema in schemas:
        _check_names(table, schema)
        for column in schema.columns:
            known = wanted.setdefault(fold(column.name), column)
            type_ = wider(known.type, column.type)
            if type_ is None:
                raise _cannot_change_type(table, column.name, column.type, known.type, drop_hint)
            if type_ != known.type:
                wanted[fold(column.name)] = Column(known.name, known.source_type, type_)
    return {column.name: column for column in wanted.values()}


def _layout_of(state: TargetState, newest: TableSchema) -> TableSchema:
    """Return a Delta table's columns as a layout, with the source's current types."""
    known = {fold(column.name): column.source_type for column in newest.columns}
    columns = (Column(name, known.get(fold(name), ""), type_) for name, type_ in state.columns.items())
    return TableSchema(newest.table, tuple(columns), newest.key)


def _check_names(table: TableName, schema: TableSchema) -> None:
    names = [fold(column.name) for column in schema.columns]
    wrong = (c.name for c in schema.columns if names.count(fold(c.name)) > 1 or is_reserved(c.name))
    if (name := next(wrong, None)) is not None:
        raise TableError(
            table,
            f"column {name!r} differs from another column only by case, or has a reserved name",
            hint=f"rename the column at the source, then dump the table: deltatide dump {table}",
        )


def wider(left: str, right: str) -> str | None:
    """Return the wider of two types if one widens to the other, else None."""
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


def create_sql(
    target: Target, source: str, key: Sequence[str], columns: Mapping[str, Column], comments: SourceComments
) -> str:
    """Build the statement that creates a target.

    With deletion vectors, a merge writes only what changed, unless the table is tiny (`merge.table`).
    """
    properties = {VECTORS_PROPERTY: "true", **own_properties(target, source, key)}
    properties |= comments.properties
    if any(NEEDS_MAPPING.search(name) for name in columns):
        properties |= MAPPING
    if target.layout.change_data_feed:
        properties |= FEED
    whole = {name for name in key if not may_be_raw(columns[name].type, columns[name].source_type)}
    lines = [
        f"{quoted(c.name)} {c.type}{' NOT NULL' if c.name in whole else ''}"
        f" COMMENT {text(comments.of_column(c))}"
        for c in columns.values()
    ]
    cdc = f"{quoted(CDC)} {cdc_type(marked=target.soft)} COMMENT {text('written by deltatide')}"
    return (
        f"CREATE TABLE IF NOT EXISTS {target.name} ({', '.join([*lines, cdc])}) USING DELTA "
        f"{_laid_out(target, columns)}{target.located}{comments.clause}"
        f"TBLPROPERTIES ({properties_sql(properties)})"
    )


def _laid_out(target: Target, columns: Mapping[str, Column]) -> str:
    names = {fold(name): name for name in columns}
    types = {name: column.type for name, column in columns.items()}
    for clause, wanted in (
        ("PARTITIONED", target.layout.partition_by),
        ("CLUSTER", target.layout.cluster_by),
    ):
        if wanted:
            found = _named(target, clause, wanted, names)
            if clause == "PARTITIONED":
                check_partitions(target, found, types)
            return f"{clause} BY ({listed(found)}) "
    return ""


def _named(target: Target, clause: str, wanted: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return columns as a Delta table has them; `names`: its own by folded ones."""
    if unknown := [name for name in wanted if fold(name) not in names]:
        raise TableError(
            target.table,
            f"{clause} BY column {unknown[0]!r}: the target has no such column",
            hint="name columns as they are in the lake: partition_by and cluster_by"
            f" in {target.table.section}",
        )
    return [names[fold(name)] for name in wanted]


def cluster_sql(target: Target, columns: Sequence[str]) -> str:
    """Build the statement that clusters an existing Delta table."""
    return f"ALTER TABLE {target.name} CLUSTER BY ({listed(columns)})"


def cluster_again(spark: SparkSession, target: Target, mark: Mark, state: TargetState) -> None:
    """Cluster a table as it was in a state before all of its rows were overwritten: Delta drops that.

    If another job commits meanwhile, leave it to the next merge, which does so if it is configured.
    """
    now = read_state(spark, target) if state.clustered_by else None
    if now is None or now.clustered_by:
        return
    try:
        commit_layout(spark, mark, [cluster_sql(target, state.clustered_by)])
    except SPARK_ERRORS as error:
        log.warning("%s is no longer clustered: %s", target.name, first_line(error))


def own_properties(target: Target, source: str, key: Sequence[str]) -> dict[str, str]:
    """Return the properties that say whose rows a Delta table has, and which part of them."""
    known = {SOURCE_PROPERTY: source, TABLE_PROPERTY: str(target.table), KEY_PROPERTY: json.dumps(list(key))}
    return known if target.columns is None else known | {COLUMNS_PROPERTY: target.columns}


def change_properties(
    spark: SparkSession, target: Target, mark: Mark, properties: Mapping[str, str | None]
) -> None:
    """Set properties of a Delta table, or unset them (None); durable on return."""
    gone = [name for name, value in properties.items() if value is None]
    new = {name: value for name, value in properties.items() if value is not None}
    alter = f"ALTER TABLE {target.name}"
    statements = [f"{alter} SET TBLPROPERTIES ({properties_sql(new)})"] if new else []
    if gone:
        statements.append(f"{alter} UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(text, gone))})")
    commit_layout(spark, mark, statements)


def alter_sql(
    target: Target,
    state: TargetState,
    wanted: Mapping[str, Column],
    comments: SourceComments = NO_COMMENTS,
) -> list[str]:
    """Build the statements that evolve a target's columns to `wanted`; columns not in it are left alone."""
    named = {fold(name): name for name in state.columns}
    added = [c for c in wanted.values() if fold(c.name) not in named]
    widened: dict[str, str] = {}
    for column in wanted.values():
        known = state.columns.get(named.get(fold(column.name), ""))
        type_ = column.type if known is None else wider(known, column.type)
        if known is not None and type_ is None:
            raise _cannot_change_type(target.table, column.name, column.type, known, target.drop_hint)
        if known is not None and type_ is not None and type_ != known:
            widened[named[fold(column.name)]] = type_
    properties: dict[str, str] = {}
    if any(NEEDS_MAPPING.search(c.name) for c in added) and not MAPPING.items() <= state.properties.items():
        properties |= MAPPING
    if target.layout.change_data_feed and not FEED.items() <= state.properties.items():
        properties |= FEED
    if widened and state.properties.get(WIDENING_PROPERTY) != "true":
        properties[WIDENING_PROPERTY] = "true"
    properties |= type_features([*(c.type for c in added), *widened.values()], state)
    alter = f"ALTER TABLE {target.name}"
    statements = [f"{alter} SET TBLPROPERTIES ({properties_sql(properties)})"] if properties else []
    if added:
        lines = [f"{quoted(c.name)} {c.type} COMMENT {text(comments.of_column(c))}" for c in added]
        statements.append(f"{alter} ADD COLUMNS ({', '.join(lines)})")
    if target.soft and DELETED_AT not in state.structs.get(CDC, ()):
        statements.append(f"{alter} ADD COLUMNS ({CDC}.{DELETED_AT} timestamp)")
    for name, type_ in widened.items():
        if name in state.key and may_be_raw(type_) and not may_be_raw(state.columns[name]):
            statements.append(f"{alter} ALTER COLUMN {quoted(name)} DROP NOT NULL")
        statements.append(f"{alter} ALTER COLUMN {quoted(name)} TYPE {type_}")
    if target.layout.cluster_by and not (state.clustered_by or state.partitioned_by):
        names = {fold(c.name): c.name for c in added} | named
        statements.append(cluster_sql(target, _named(target, "CLUSTER", target.layout.cluster_by, names)))
    return statements


def type_features(types: Iterable[str], state: TargetState) -> Mapping[str, str]:
    """Return the properties that a Delta table in this state needs before it gets columns of new types.

    A table that is created with such a column has them; Delta changes an existing one only if asked to.
    """

    def has_any(found: Iterable[str]) -> bool:
        return any("timestamp_ntz" in type_ for type_ in found)

    return WITHOUT_ZONE if has_any(types) and not has_any(state.columns.values()) else {}


def _cannot_change_type(table: TableName, column: str, wanted: str, known: str, drop_hint: str) -> TableError:
    return TableError(
        table,
        f"column {column!r} was {known} and is now {wanted}; Delta can't change that in place",
        hint=f"wait until the table has been dumped again (deltatide dumps), then {drop_hint}",
    )
