"""Runs SQL over a source's tables by their own names: as of one cut, or live as of one manifest.

Each table that the text names becomes a temporary view of the session: `` `public.orders` ``, and ``orders``
unless several namespaces have a table of that name. Rows marked as deleted are left out; the deletes in a
table of changes are not.

Nothing else is read. Spark would also resolve a catalog's tables, files by path, and views that the session
already has, none of which are as of the cut. So each leaf of the query's analyzed plan must lie in one of
these views, or be made by the query itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError
from connector.position import Moment
from connector.schema import TableName, fold
from merge.lake.target import SHAPES, shape_of_rows, targets_of
from merge.overlay import ALIVE
from merge.queries import live_tables, tables_at
from merge.reading.query_plans import analyzed, as_subquery, foreign_relation, parsed, refusal, relations
from merge.sql_formatting import quoted
from merge.views.view import VIEWS, not_of_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Names = Iterable[TableName]


@dataclass(frozen=True)
class Answer:
    """A query's rows, and the state of the tables that it read: after a manifest, exact or not."""

    frame: DataFrame
    manifest: int
    epoch: int
    position: int
    source_committed_at: datetime | None
    exact: bool


def answer(
    spark: SparkSession, config: Config, sql: str, *, at: Moment | None = None, live: bool = False
) -> Answer:
    """Run one query over all tables at a cut (`at` None: the newest), or `live` as of the newest manifest.

    `ConfigurationError` if it is not a query, or names an unknown table.
    """
    known: list[TableName] = []
    lacking: dict[TableName, str] = {}

    def choose(tables: Sequence[TableName], others: Mapping[TableName, str] = MappingProxyType({})) -> Names:
        known.extend(tables)
        lacking.update(others)
        return named_in(sql, tables)

    if live:
        newest, tables = live_tables(spark, config, choose)
        frames = {name: table.frame for name, table in tables.items()}
        # No manifest knows about rows that wait for a column.
        exact = newest.exact and all(table.is_complete() for table in tables.values())
        state = newest.number, newest.epoch, newest.position, newest.source_committed_at, exact
    else:
        row, at_cut = tables_at(spark, config, at, choose)
        frames = {
            table: frame.where(ALIVE) if _may_be_deleted(spark, config, table) else frame
            for table, frame in at_cut.items()
        }
        state = row["manifest"], row["epoch"], row["position"], row["source_committed_at"], row["exact"]
    names = view_names(known)
    views = [name for name, table in names.items() if table in frames]
    for name in views:
        frames[names[name]].createOrReplaceTempView(quoted(name))
    try:
        frame = _queried(spark, sql, names)
        foreign = foreign_relation(analyzed(spark, sql), views)
        if foreign is not None:
            raise ConfigurationError(
                f"the query reads {foreign}, which is not a table as of manifest {state[0]}",
                hint=_hint(names),
            )
    except ConfigurationError as error:
        others = [TableName(VIEWS, name) for name in config.views] if live else lacking
        if (read := _read_beside(spark, sql, names, others)) is None:
            raise
        if not live:
            raise not_of_cut(config, read, state[0], lacking[read]) from error
        error.hint = f"{error.hint}; the view {read.name} is read as of a cut: leave out --live"
        raise
    return Answer(frame, *state)


def _may_be_deleted(spark: SparkSession, config: Config, table: TableName) -> bool:
    """Return whether rows may be marked as deleted; in shapes and views, all rows count.

    A source table may be named like a shape or a view, and the configuration may no longer have one that a
    cut has: the Delta table says what it is. Only one that is named so is asked.
    """
    alike = table.namespace == VIEWS or table.name.endswith(tuple(f"_{kind}" for kind in SHAPES))
    return not alike or shape_of_rows(spark, targets_of(config, [table])[table]) is None


def view_names(tables: Iterable[TableName]) -> Mapping[str, TableName]:
    """Return the tables by view name; names that differ only by case would be the same view."""
    named = [(name, table) for table in tables for name in dict.fromkeys((table.name, str(table)))]
    alike = Counter(fold(name) for name, _ in named)
    return {name: table for name, table in named if alike[fold(name)] == 1}


def named_in(sql: str, tables: Iterable[TableName]) -> list[TableName]:
    """Return the tables whose names occur in a text as words; one too many does no harm."""
    text = fold(sql)
    return [
        table
        for table in tables
        if re.search(rf"(?<!\w){re.escape(fold(table.name).replace('`', '``'))}(?!\w)", text)
    ]


def _read_beside(
    spark: SparkSession, sql: str, names: Iterable[str], others: Iterable[TableName]
) -> TableName | None:
    """Return the first of other tables that a query reads by a name that is not among `names`, or None."""
    try:
        read = {fold(".".join(name.split(", "))) for name in relations(parsed(spark, sql))}
    except AnalysisException:
        return None
    read -= {fold(name) for name in names}
    return next((table for table in others if read & {fold(str(table)), fold(table.name)}), None)


def _hint(names: Iterable[str]) -> str:
    return f"tables: {', '.join(map(quoted, sorted(names))) or 'none'}"


def _queried(spark: SparkSession, sql: str, names: Iterable[str]) -> DataFrame:
    """Run a text as a query; anything that would change a table fails to parse."""
    try:
        frame = spark.sql(as_subquery(sql))
        _ = frame.schema  # over Spark Connect, this is what analyzes it
    except AnalysisException as error:
        raise ConfigurationError(
            f"the query can't be run: {refusal(error)}",
            hint=f"{_hint(names)}; one SELECT, in single quotes",
        ) from error
    return frame
