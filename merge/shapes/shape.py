"""Names and locations of the configured tables' shapes.

A shape is a Delta table of its own: ``orders_changes`` beside ``orders``. It has its own name in the control
table, so it has a frontier, belongs to each cut, and is maintained and read as of a cut like any table. If a
shape is removed from the configuration, its Delta table stays, but later cuts don't name it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from connector.config import Config
from connector.errors import ConfigurationError, GapError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.columns.configured import warn_of_unused
from merge.columns.projection import recorded_projection
from merge.lake.control_table import Frontier, Frontiers
from merge.lake.target import FileLayout, Target, not_landed, table_name, targets_of
from merge.plan import Manifests


@dataclass(frozen=True)
class Shape:
    """One shape of a source table: `kind` is as in the configuration."""

    table: TableName
    kind: str

    @property
    def name(self) -> TableName:
        """Return its name in the lake."""
        return TableName(self.table.namespace, f"{self.table.name}_{self.kind}")

    def is_made_of(self, manifest: Manifest) -> bool:
        """Return whether its table has landed by a manifest; all shapes except changes need a key."""
        state = manifest.tables.get(self.table)
        return state is not None and state.schema_id is not None and bool(state.key or self.kind == "changes")

    @property
    def damaged_hint(self) -> str:
        """Return what to do about a damaged landing file: no full dump replaces it here."""
        return f'restore it from a copy; or take "{self.kind}" out of tables."{self.table}".shapes'


def shapes_of(config: Config) -> dict[TableName, Shape]:
    """Return the configured shapes by their names in the lake, without the current rows.

    `ConfigurationError` if two would lie at one place.
    """
    found = (Shape(table, kind) for table, its in config.tables.items() for kind in its.shapes)
    shapes = {shape.name: shape for shape in found if shape.kind != "current"}
    for problem in clashing(config, (), shapes).values():
        raise problem
    return shapes


def with_shapes(
    frontiers: Frontiers,
    shapes: Collection[TableName],
    manifests: Manifests,
    instead: Collection[TableName] = (),
) -> Frontiers:
    """Add a frontier for each shape: at the beginning, if none was recorded.

    A frontier recorded under that name may belong to a source table that was excluded since: then the
    frontier's manifest lists that table. If that manifest was removed, the merge has to look at the Delta
    table itself. `instead`: source tables that lie where a shape would; for them, the same holds the other
    way around.
    """

    def is_its_own(name: TableName, at: Frontier) -> bool:
        try:
            return at.version is None or (name in instead) == (name in manifests.get(at.manifest).tables)
        except GapError:
            return False

    known = frontiers.by_table.items()
    either = {*shapes, *instead}
    kept = {name: at for name, at in known if name not in either or is_its_own(name, at)}
    return replace(frontiers, by_table=kept).naming(either)


def chosen_tables(
    manifest: Manifest,
    frontiers: Frontiers,
    tables: Collection[str] | None,
    shapes: Mapping[TableName, Shape],
    targets: Mapping[TableName, Target],
) -> list[TableName]:
    """Return the tables to merge, and their shapes: not yet at the manifest, failed, or built otherwise."""
    named = None if tables is None else {table_name(text) for text in tables}
    landed = [table for table in manifest.tables if has_landed(manifest, table)]
    if unknown := sorted((named or set()) - set(landed)):
        raise not_landed(unknown[0], manifest)
    chosen = landed if named is None else [t for t in landed if t in named]
    wanted = [table for table in chosen if manifest.tables[table].key]  # without one, there are only changes
    wanted += [name for name, shape in shapes.items() if shape.table in chosen]
    known = {table: frontiers.of(table) for table in wanted}
    return [
        table
        for table, at in known.items()
        if at.manifest < manifest.number
        or (at.manifest == manifest.number and (at.error or not at.is_built_with(targets[table].built_with)))
    ]


def has_landed(manifest: Manifest, table: TableName) -> bool:
    """Return whether anything of a table has landed: its layout, at least."""
    return table in manifest.tables and manifest.tables[table].schema_id is not None


def targets_with_shapes(
    config: Config, tables: Mapping[TableName, Target], shapes: Mapping[TableName, Shape]
) -> dict[TableName, Target]:
    """Add the locations of shapes to those of captured tables. `ConfigurationError` if they would share one.

    Names that differ only by case are the same; in a catalog's schema, so are equal names of any namespace.
    """
    warn_of_unused(config, tables)
    for problem in clashing(config, tables, shapes).values():
        raise problem
    beside = {
        name: replace(
            target,
            shape=shapes[name].kind,
            columns=recorded_projection(config, shapes[name].table),
            layout=FileLayout(),
            soft=False,
        )
        for name, target in targets_of(config, shapes).items()
    }
    return dict(tables) | beside


def clashing(
    config: Config, tables: Collection[TableName], shapes: Mapping[TableName, Shape]
) -> dict[TableName, ConfigurationError]:
    """Return which shapes would lie where a captured table or another shape does, and what to do about each.

    The table keeps the place; a table may be created, and captured by a pattern, long after the shape was.
    """
    by_url = config.lake is not None and config.lake.url is not None
    taken: dict[tuple[str, str], str] = {}
    found: dict[TableName, ConfigurationError] = {}

    def place_of(name: TableName) -> tuple[str, str]:
        return (name.namespace.lower() if by_url else "", name.name.lower())

    for table in tables:
        taken.setdefault(place_of(table), f"table {table}")
    for name, shape in shapes.items():
        holder = taken.setdefault(place_of(name), _named(shape))
        if holder != _named(shape):
            hint = f'take "{shape.kind}" out of tables."{shape.table}".shapes, or exclude the other table'
            found[name] = ConfigurationError(f"{_named(shape)} would lie where {holder} does", hint=hint)
    return found


def _named(shape: Shape) -> str:
    return f"the {shape.kind} of {shape.table} ({shape.name})"
