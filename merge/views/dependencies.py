"""Finds what each view reads, and orders views for refresh: each after the views that it reads.

All mistakes are found before a merge writes anything. A mistake in the configuration alone (no query, a
cycle) stops the merge. One that depends on the source's tables (an unknown name, or a table with the view's
name) stops the merge only if no cut has the view yet. So a mistake in a new view is reported at once, while
a table that is dropped at the source later stops only the views that read it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.schema import TableName, fold
from merge.lake.target import Target
from merge.reading.named_tables import view_names
from merge.reading.query_plans import parsed, refusal, relations
from merge.sql_formatting import quoted
from merge.views.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PlannedView:
    """A view, and the tables and views that it reads by the names in its query.

    `problem`: why it can't be refreshed.
    """

    view: View
    inputs: Mapping[str, TableName]
    problem: TableError | None = None

    @property
    def reads(self) -> set[TableName]:
        """Return the tables and views that it reads."""
        return set(self.inputs.values())


def planned(
    spark: SparkSession,
    config: Config,
    views: Sequence[View],
    targets: Mapping[TableName, Target],
    known: Collection[TableName],
) -> list[PlannedView]:
    """Return the views in the order of their refresh.

    `targets`: all tables of the lake. `known`: has the views of which a cut was recorded, refreshed or not.
    Their problems are not raised: what was created or dropped at the source since stops no table's merge.
    """
    names = view_names([*targets, *(view.table for view in views)])
    found = [_plan_of(view, named_by(spark, view), names) for view in views]
    found = [replace(p, problem=_collision(config, p.view, targets) or p.problem) for p in found]
    ordered = in_order(found)
    new = [p.problem for p in ordered if p.problem is not None and p.view.table not in known]
    if new:
        raise ConfigurationError("\n".join(map(str, new)), hint=new[0].hint)
    return ordered


def named_by(spark: SparkSession, view: View) -> list[str]:
    """Return the names that a view reads. `ConfigurationError` if its text is not one query."""
    try:
        plan = parsed(spark, view.sql)
    except AnalysisException as error:
        raise ConfigurationError(
            f"{view.setting} is not a query: {refusal(error)}",
            hint="a view is one SELECT over the lake's tables and other views",
        ) from None
    if "RelationTimeTravel" in plan or "PlanWithUnresolvedIdentifier" in plan:
        raise ConfigurationError(
            f"{view.setting} has VERSION AS OF, TIMESTAMP AS OF or IDENTIFIER()",
            hint="name the tables as they are: a view reads them as of the cut that it belongs to",
        )
    recursive = re.search(r"\bWITH\s+RECURSIVE\b", view.sql, re.IGNORECASE) is not None
    return relations(plan, recursive=recursive)


def _plan_of(view: View, relations: Iterable[str], names: Mapping[str, TableName]) -> PlannedView:
    by_fold = {fold(name): name for name in names}
    known = {by_fold[fold(name)] for name in relations if fold(name) in by_fold}
    inputs = {name: names[name] for name in sorted(known)}
    unknown = next((name for name in relations if fold(name) not in by_fold), None)
    return PlannedView(view, inputs, _unknown(view, unknown, names) if unknown is not None else None)


def _unknown(view: View, name: str, names: Mapping[str, TableName]) -> TableError:
    in_one = name.replace(", ", ".")
    if in_one in names:
        hint = f"write it in backquotes, as one name: {quoted(in_one)}"
    else:
        hint = f"tables and views: {', '.join(map(quoted, sorted(names))) or 'none yet'}"
    return TableError(
        view.table, f"its query reads {in_one}, which is not a table or view of this lake", hint=hint
    )


def _collision(config: Config, view: View, targets: Mapping[TableName, Target]) -> TableError | None:
    """Return what is wrong with a view's name: names are the same if they differ only by case."""
    place = view.target(config).name.lower()
    for table, target in targets.items():
        if fold(table.name) == fold(view.name) or target.name.lower() == place:
            return TableError(
                view.table, f"the table {table} has the same name", hint=f"rename {view.setting}"
            )
    return None


def in_order(views: Sequence[PlannedView]) -> list[PlannedView]:
    """Return views with each after those that it reads; `ConfigurationError` for a cycle."""
    by_table = {planned.view.table: planned for planned in views}
    graph = {table: sorted(planned.reads & by_table.keys()) for table, planned in by_table.items()}
    try:
        return [by_table[table] for table in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        cycle = " reads ".join(table.name for table in reversed(error.args[1]))
        raise ConfigurationError(
            f"views can't be refreshed in any order: {cycle}", hint="take one of them out of another's query"
        ) from None
