"""Names the configured views, and where they lie.

A view is a Delta table of its own, ``views/NAME`` under the lake's url or ``NAME`` in its schema. In the
control table it goes by ``views.NAME`` beside the tables, so it belongs to cuts, and is maintained and read
as of a cut like a table. A source may have a namespace ``views``, too: what tells its tables from our views
is a property of the Delta table.

Invariant: the entry of a view in a cut is of the cut's state only if it is at the cut's manifest and has no
error. Otherwise it says in which state the view was left, and no reader of that cut is shown it
(`stale_views`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.lake.target import SHAPE_PROPERTY, Target, targets_of
from merge.landing_zone import is_missing

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

VIEWS = "views"
"""The namespace of views in the lake."""

VIEW = "view"
"""What a view's Delta table is marked as."""


@dataclass(frozen=True)
class View:
    """One view: its name in the configuration, and its query."""

    name: str
    sql: str

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
        """Return what tells its query from another, made from the text."""
        return hashlib.sha256(self.sql.strip().encode()).hexdigest()[:16]

    def target(self, config: Config) -> Target:
        """Return where it lies."""
        return replace(targets_of(config, [self.table])[self.table], shape=VIEW)


def views_of(config: Config) -> list[View]:
    """Return the configured views. `ConfigurationError` if one's file can't be read."""
    return [View(name, view.query()) for name, view in config.views.items()]


def is_view(spark: SparkSession, target: Target) -> bool:
    """Return whether what lies there is a view; asks Spark only if it is named like one."""
    if target.table.namespace != VIEWS:
        return False
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]
    except AnalysisException as error:
        if is_missing(error):
            return False
        raise
    return bool(detail["properties"].get(SHAPE_PROPERTY) == VIEW)


def stale_views(spark: SparkSession, cut: Row, targets: Mapping[TableName, Target]) -> dict[TableName, str]:
    """Return the views that a cut names without holding its state, and why, of these tables and views."""
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


def not_of_cut(view: TableName, manifest: int, reason: str) -> ConfigurationError:
    """Build the error of reading a view as of a cut of whose state it is not."""
    return ConfigurationError(
        f"the view {view.name} is not as of the cut of manifest {manifest}: {reason}",
        hint="deltatide views shows the views; the next merge refreshes it if it can",
    )
