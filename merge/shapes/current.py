"""The shape that most tables have, their current rows: which tables have it, and where it lies.

Invariant: a cut names the very tables whose names decide where each lies. So whoever has only a cut finds the
Delta tables where the merge has put them.
"""

from __future__ import annotations

from connector.config import Config
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake.target import Target, targets_of


def tables_of_cut(manifest: Manifest) -> list[TableName]:
    """Return the tables that the manifest's cut names: those with current rows, or that have yet to land."""
    return [table for table, state in manifest.tables.items() if state.key or state.schema_id is None]


def targets_at(config: Config, manifest: Manifest) -> dict[TableName, Target]:
    """Return the locations of a manifest's tables, like `targets_of`.

    Tables of which only changes are captured have no place in the lake, so they take none from others. For
    what names them nevertheless (a view's query, say), they have the location that they would have.
    """
    named, targets = tables_of_cut(manifest), targets_of(config, manifest.tables)
    return targets if len(named) == len(targets) else targets | targets_of(config, named)
