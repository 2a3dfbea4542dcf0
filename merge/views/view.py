"""Names and locations of the configured views.

A view is a Delta table of its own, ``views/NAME`` under the lake's url or ``NAME`` in its schema. The control
table lists it as ``views.NAME`` beside the tables, so it belongs to cuts, and is maintained and read as of a
cut like a table. A source may have a namespace ``views``, too: a property of the Delta table distinguishes
our views from its tables.

Invariant: a view's entry in a cut is of the cut's state only if it is at the cut's manifest and has no error.
Otherwise the entry records the state in which the view was left, and readers of the cut don't see the view
(`stale_views`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.lake.commits import newest_written, read_history
from merge.lake.control_table import Frontier
from merge.lake.target import Target, shape_of_rows, targets_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

VIEWS = "views"
"""The namespace of views in the lake."""

VIEW = "view"
"""The property value that marks a view's Delta table."""

MADE_OF = "view"
"""The field of a commit's user metadata that holds the query and inputs of its rows."""


@dataclass(frozen=True)
class View:
    """One view: its name in the configuration, its query, and whether to refresh it incrementally."""

    name: str
    sql: str
    incremental: bool = False

    @property
    def table(self) -> TableName:
        """Return its name in the lake."""
        return TableName(VIEWS, self.name)

    @property
    def setting(self) -> str:
        """Return its section in the configuration."""
        return f"views.{self.name}"

    @cached_property
    def definition(self) -> str:
        """Return a fingerprint of its query's text."""
        return hashlib.sha256(self.sql.strip().encode()).hexdigest()[:16]

    def target(self, config: Config) -> Target:
        """Return its location."""
        return replace(targets_of(config, [self.table])[self.table], shape=VIEW)


def views_of(config: Config) -> list[View]:
    """Return the configured views. `ConfigurationError` if one's file can't be read."""
    return [View(name, view.query(), view.incremental) for name, view in config.views.items()]


def is_view(spark: SparkSession, target: Target) -> bool:
    """Return whether the Delta table is a view; asks Spark only if it is named like one."""
    return target.table.namespace == VIEWS and shape_of_rows(spark, target) == VIEW


def stale_views(spark: SparkSession, cut: Row, targets: Mapping[TableName, Target]) -> dict[TableName, str]:
    """Return which of these are views that are not of the cut's state, with the reasons."""
    entries: Iterable[tuple[TableName, Row]] = (
        (TableName.parse(name), at) for name, at in cut["tables"].items()
    )
    return {
        name: at["error"] or f"it was refreshed as of manifest {at['manifest']}"
        for name, at in entries
        if name in targets
        and name.namespace == VIEWS
        and (at["error"] is not None or at["manifest"] != cut["manifest"])
        and (at["version"] is None or is_view(spark, targets[name]))
    }


def provenance(row: Row) -> dict[str, Any]:
    """Return the provenance of the rows that a view's commit wrote; empty if it names none."""
    return json.loads(row["userMetadata"] or "{}").get(MADE_OF) or {}


def tables_read(
    spark: SparkSession, config: Config, view: TableName, frontiers: Mapping[TableName, Frontier]
) -> set[TableName]:
    """Return what a view's rows in a cut were computed from, by its own commits: tables, and other views'.

    `frontiers`: those of the cut, which also stand for a commit that is no longer known.
    """
    found, waiting = set[TableName](), [view]
    while waiting:
        at, name = frontiers[waiting[-1]], waiting.pop()
        target = replace(targets_of(config, [name])[name], shape=VIEW)
        history = read_history(spark, target, at.version or 0, config.source.name)
        written = newest_written(
            [row for row in history if row["version"] <= (at.version or 0)], config.source.name
        )
        inputs = provenance(written[0]).get("inputs") if written is not None else None
        names = frontiers.keys() if inputs is None else {*map(TableName.parse, inputs)}
        new = (names & frontiers.keys()) - found - {view}
        found |= new
        waiting += [
            each
            for each in new
            if each.namespace == VIEWS and is_view(spark, targets_of(config, [each])[each])
        ]
    return found


def not_of_cut(config: Config, table: TableName, manifest: int, reason: str) -> ConfigurationError:
    """Build the error for reading a table or a view as of a cut that has no state of it."""
    if table.namespace == VIEWS and table.name in config.views:
        return ConfigurationError(
            f"the view {table.name} is not as of the cut of manifest {manifest}: {reason}",
            hint="deltatide views shows the views; the next merge refreshes it if it can",
        )
    return ConfigurationError(
        f"the cut of manifest {manifest} has no rows of {table}: {reason}",
        hint="run deltatide merge: it merges the table, or says what to do; a later cut then has it",
    )
