"""Which of the log's tables are captured, and under which layout: what the buffer can't know by itself.

Invariant: a layout comes from the log's own table map. Only what that lacks (MariaDB's uuid, inet and vector,
which it shows as binaries; which columns are virtual, hidden, end a row's version or have a default) is read
from the catalog, and cached, since the catalog is current.

The catalog may be ahead of the log, and then lack a column, or show it with a type that is not what the log
shows. Such a column has the type that it had last: in the log, or in the layout that had landed when the log
was opened. That may be stale only after a statement that has the table dumped again, as the catalog has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError
from connector.landing.format import misnamed
from connector.mysql.codec.table_map import TableMap, parse_table_map, table_name_of
from connector.schema import Layouts, TableComments, TableName, TableSchema

OWN_DATABASE = "deltatide"

WATERMARK = TableName(OWN_DATABASE, "watermark")
"""Our table whose rows are irrelevant to other servers, so a failover may lose writes to it."""


class ResolvedLayout(NamedTuple):
    """A table's layout; `schema` None: not captured. `problem`: why its rows can't be decoded.

    `comments`: if it was read from the catalog.
    """

    table: TableName
    table_map: TableMap | None = None
    schema: TableSchema | None = None
    problem: TableError | None = None
    comments: TableComments | None = None

    def with_comment(self, comment: str | None) -> ResolvedLayout:
        """Add the table's own comment to those of its columns."""
        its = self.comments
        return (
            self if its is None else self._replace(comments=TableComments.of(its.table, comment, its.columns))
        )


class NotedColumn(NamedTuple):
    """What the catalog shows about a column, and MariaDB's log does not.

    `row_end`: the column holds the end of a row's version, in a table with system versioning. `stored`: it is
    a generated column with stored values, which MySQL's log does not show either.
    """

    type: str
    virtual: bool
    row_end: bool = False
    default: bool = False
    stored: bool = False


class SchemaCache(Protocol):
    """The interface that `connector.mysql.log.buffer` uses."""

    @property
    def mariadb(self) -> bool: ...  # noqa: D102

    def resolve(self, body: bytes) -> ResolvedLayout:
        """Return the layout in a TABLE_MAP event's body; `NotYetError` if it can't be known now."""

    def latest(self, table: TableName) -> ResolvedLayout | None:
        """Return the layout of a table's last row in the log; the catalog's if none is known.

        `NotYetError` if that can't be known now.
        """

    def forget(self, table: TableName) -> None:
        """Forget the layout of a table's last row: a statement may have changed it since."""

    def note_lost(
        self, table: TableName, columns: Collection[str], renamed: Iterable[tuple[str, str]]
    ) -> None:
        """Note that a statement dropped columns of a table, or `renamed` them to other names."""

    def has_configured_key(self, table: TableName) -> bool:
        """Return whether the configuration names a table's key."""

    def noted(self, table: TableName) -> Mapping[str, NotedColumn]:
        """Return what the catalog shows of a table's columns; empty if it is gone.

        `NotYetError` if that can't be known now.
        """

    def named(self, database: str, name: str) -> TableName | None:
        """Return the captured table of this name, ignoring case if the server does."""

    def among(self, database: str | None) -> set[TableName]:
        """Return the captured tables of a database; None: of all."""

    def cascading(self) -> list[TableError]:
        """Return the captured tables that now have foreign keys which change rows by themselves (MySQL)."""


class CapturedSchemas:
    """Implements `SchemaCache` with the configuration and the catalog. Used by one thread.

    `noted` reads from the catalog what the log lacks about a table's columns, `layout` its current layout,
    `cascading` which tables have foreign keys that change rows by themselves. `landed`: layouts as of where
    the log is read from.
    """

    def __init__(
        self,
        config: SourceConfig,
        settings: Mapping[TableName, TableConfig],
        tables: Mapping[TableName, Callable[[], ResolvedLayout]] | set[TableName],
        noted: Callable[[TableName], Mapping[str, NotedColumn]],
        layout: Callable[[TableName], ResolvedLayout | None],
        cascading: Callable[[], list[TableError]],
        landed: Layouts,
        *,
        mariadb: bool,
        lower_case: bool,
    ) -> None:
        self.mariadb = mariadb
        self._config, self._settings, self._noted, self._layout = config, settings, noted, layout
        self._cascading = cascading
        self._lower_case = lower_case
        self._tables = set(tables)
        self._latest: dict[TableName, ResolvedLayout] = {}
        self._known: dict[TableName, dict[str, NotedColumn]] = {}
        self._landed = dict(landed)
        self._types: dict[TableName, dict[str, str]] = {}

    def resolve(self, body: bytes) -> ResolvedLayout:
        """Return the layout in a TABLE_MAP event's body."""
        table = table_name_of(body)
        if not captures(self._config, table):
            return ResolvedLayout(table)
        self._tables.add(table)
        try:
            table_map = self._completed(parse_table_map(body, mariadb=self.mariadb))
            resolved = ResolvedLayout(table, table_map, landing_schema_of(table_map, self._settings))
        except TableError as error:
            resolved = ResolvedLayout(table, None, self._any_schema(table), error)
        else:
            self._latest[table] = resolved
        return resolved

    def latest(self, table: TableName) -> ResolvedLayout | None:
        """Return the layout of a table's last row in the log; the catalog's if none is known."""
        return self._latest.get(table) or self._layout(table)

    def forget(self, table: TableName) -> None:
        """Forget the layout of a table's last row: a statement may have changed it since."""
        self._latest.pop(table, None)

    def note_lost(
        self, table: TableName, columns: Collection[str], renamed: Iterable[tuple[str, str]]
    ) -> None:
        """Note that a statement dropped columns of a table, or `renamed` them to other names."""
        lost = {name.lower() for name in columns}
        noted, types = self._known.get(table, {}), self._types_of(table)
        self._known[table] = {name: column for name, column in noted.items() if name.lower() not in lost}
        before = {name.lower(): types.pop(name) for name in [*types] if name.lower() in lost}
        types.update({new: before[old.lower()] for old, new in renamed if old.lower() in before})

    def has_configured_key(self, table: TableName) -> bool:
        """Return whether the configuration names a table's key."""
        return _configured_key(table, self._settings) is not None

    def noted(self, table: TableName) -> Mapping[str, NotedColumn]:
        """Return what the catalog shows of a table's columns; empty if it is gone."""
        return self._noted(table)

    def named(self, database: str, name: str) -> TableName | None:
        """Return the captured table of this name."""
        exact = TableName(database, name)
        if exact in self._tables:
            return exact
        if self._lower_case:
            lower = (database.lower(), name.lower())
            return next((t for t in self._tables if (t.namespace.lower(), t.name.lower()) == lower), None)
        return None

    def among(self, database: str | None) -> set[TableName]:
        """Return the captured tables of a database; None: of all."""
        return {t for t in self._tables if database is None or t.namespace.lower() == database.lower()}

    def cascading(self) -> list[TableError]:
        """Return the captured tables that now have foreign keys which change rows by themselves."""
        return [problem for problem in self._cascading() if captures(self._config, problem.table)]

    def _any_schema(self, table: TableName) -> TableSchema:
        """Return some schema that names the table, for a layout that can't be read.

        The catalog is not asked for one: it may have to wait for the table's lock, and all log with it.
        """
        known = self._latest.get(table)
        return (known.schema if known else None) or TableSchema(table, (), ())

    def _types_of(self, table: TableName) -> dict[str, str]:
        """Return the types that a table's columns had when last seen, in the log or landed."""
        if table not in self._types:
            landed = self._landed.get(table)
            self._types[table] = {c.name: c.source_type for c in landed.columns} if landed else {}
        return self._types[table]

    def _completed(self, table_map: TableMap) -> TableMap:
        if not self.mariadb:
            return table_map
        known = self._known.setdefault(table_map.table, {})
        noted = self._noted(table_map.table)
        known.update(noted)
        types = self._types_of(table_map.table)
        completed = table_map.with_aliases({name: column.type for name, column in known.items()}, types)
        types.update({column.name: column.type.type_name for column in completed.columns})
        completed = completed.with_virtual({name for name, column in known.items() if column.virtual})
        completed = completed.with_defaults({name for name, column in known.items() if column.default})
        return completed.with_hidden(noted, next((n for n, column in noted.items() if column.row_end), None))


def captures(config: SourceConfig, table: TableName) -> bool:
    """Return whether to capture a table: never our own, nor the server's."""
    return table.namespace not in _NEVER and config.captures(table)


_NEVER = frozenset((OWN_DATABASE, "mysql", "information_schema", "performance_schema", "sys"))


def landing_schema_of(table_map: TableMap, settings: Mapping[TableName, TableConfig]) -> TableSchema:
    """Return the landing schema; `TableError` if the table has no usable key."""
    table = table_map.table
    only_changes = table in settings and settings[table].only_changes
    key = () if only_changes else _configured_key(table, settings) or table_map.key
    names = [column.name for column in table_map.columns]
    if not key and not only_changes:
        hint = (
            f"add a primary key, or set key in {table.section}; or, to capture only its changes from now on,"
            ' set shapes = ["changes"] there'
        )
        raise TableError(table, "it has no primary key", hint=hint)
    if unknown := [column for column in key if column not in names]:
        raise TableError(
            table,
            f"its configured key has no column {', '.join(unknown)}",
            hint=f"correct key in {table.section}; columns are {', '.join(names)}",
        )
    if twins := [column.name for column in table_map.columns if column.name in key and column.type.has_twins]:
        raise TableError(
            table,
            f"key column {', '.join(twins)} has an empty or a repeated member: two rows may have one text",
            hint="give each member a text of its own, or choose another key",
        )
    before_images = table in settings and settings[table].before_images
    schema = table_map.schema(key, before_images=before_images)
    if problem := misnamed((column.name for column in schema.columns), before_images=before_images):
        raise TableError(table, problem, hint="rename the column")
    return schema


def _configured_key(table: TableName, settings: Mapping[TableName, TableConfig]) -> tuple[str, ...] | None:
    setting = settings.get(table)
    return tuple(setting.key) if setting and setting.key else None
