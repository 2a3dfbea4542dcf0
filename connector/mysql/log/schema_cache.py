"""Which of the log's tables are captured, and under which layout: what the buffer can't know by itself.

Invariant: a layout comes from the log's own table map. Only what that lacks (MariaDB's uuid, inet and vector,
which it shows as binaries; which columns are virtual, hidden, end a row's version or have a default) comes
from the catalog, which is current, and may be ahead of the log. So it is read only where nothing else is
known: what was known of a column when the log was opened, as of there, or has been read since, counts until
the log has a statement that may have changed it. Only if the catalog is read after such a statement, and
already shows the effect of the next one, is the log between the two read as if it were after both. The next
one then has the table dumped again, if it matters.

Of columns that a row's table lacks, nothing is kept: they are those of a former or a later table of its name,
and a column that comes under such a name is another one. The layout that landed last may be a former table's,
too. So traits name the type of each column that it may be wrong about, and of a column that a statement adds
nothing is known.

A column that the catalog lacks, or shows with a type that is not what the log shows, has the type that it had
last. That may be stale only after a statement that has the table dumped again, as the catalog has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError
from connector.landing.format import misnamed
from connector.mysql.codec.charsets import lower
from connector.mysql.codec.table_map import TableMap, parse_table_map, table_name_of
from connector.mysql.codec.types import is_shown_as_binary
from connector.schema import KnownTables, TableComments, TableName, TableSchema, Traits

OWN_DATABASE = "deltatide"

WATERMARK = TableName(OWN_DATABASE, "watermark")
"""Our table whose rows are irrelevant to other servers, so a failover may lose writes to it."""


class ResolvedLayout(NamedTuple):
    """A table's layout; `schema` None: not captured. `problem`: why its rows can't be decoded.

    `comments`, `traits` (`traits_of`): if it was read from the catalog. `partial_images`: rows of which the
    log has only some columns may land.
    """

    table: TableName
    table_map: TableMap | None = None
    schema: TableSchema | None = None
    problem: TableError | None = None
    comments: TableComments | None = None
    traits: Traits | None = None
    partial_images: bool = False

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

    @classmethod
    def of(cls, trait: str) -> NotedColumn:
        """Return a column with the words of a trait (`traits_of`)."""
        words = trait.split()
        type_ = next((word for word in words if word not in _MARKS), "")
        return cls(type_, *(mark in words for mark in _MARKS))


_MARKS = ("virtual", "row_end", "default")


def traits_of(columns: Mapping[str, NotedColumn], unique: Collection[str]) -> dict[str, str]:
    """Return, of the columns that have any, all that the log reader takes from MariaDB's catalog, as words.

    Only defaults in unique indexes matter to it: the log names one as the key. Binaries have their type, too:
    the layout that landed last may be a former table's, which had a uuid there. `NotedColumn.of` parses it.
    """
    found = {}
    for name, column in columns.items():
        has = column.virtual, column.row_end, column.default and name in unique
        words = [mark for mark, is_so in zip(_MARKS, has, strict=True) if is_so]
        if words := [column.type, *words] if is_shown_as_binary(column.type) else words:
            found[name] = " ".join(words)
    return found


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

    def forget_traits(self, table: TableName) -> None:
        """Forget what MariaDB's log lacks about a table's columns: a statement may have changed it."""

    def forget_columns(
        self, table: TableName, columns: Collection[str], renamed: Collection[tuple[str, str]]
    ) -> None:
        """Forget columns that a statement dropped or added; those `renamed` keep their types."""

    def has_configured_key(self, table: TableName) -> bool:
        """Return whether the configuration names a table's key."""

    def noted(self, table: TableName) -> Mapping[str, NotedColumn]:
        """Return what the catalog shows of a table's columns; empty if it is gone.

        `NotYetError` if that can't be known now.
        """

    def types_of(self, table: TableName) -> Mapping[str, str]:
        """Return the types that a table's columns had when last seen, in the log or landed."""

    def named(self, database: str, name: str) -> TableName | None:
        """Return the captured table of this name, ignoring case if the server does."""

    def among(self, database: str | None) -> set[TableName]:
        """Return the captured tables of a database; None: of all."""

    def cascading(self) -> list[TableError]:
        """Return the captured tables that now have foreign keys which change rows by themselves (MySQL)."""


class CapturedSchemas:
    """Implements `SchemaCache` with the configuration and the catalog. Used by one thread.

    `noted` reads from the catalog what the log lacks about a table's columns, `layout` its current layout,
    `cascading` which tables have foreign keys that change rows by themselves. `known`: as of where
    the log is read from. `exists` returns whether the catalog has a table of this very name; None: it has all
    that the log names. (With lower_case_table_names = 2, the log has another name of a table with capitals.)
    """

    def __init__(
        self,
        config: SourceConfig,
        settings: Mapping[TableName, TableConfig],
        tables: Mapping[TableName, Callable[[], ResolvedLayout]] | set[TableName],
        noted: Callable[[TableName], Mapping[str, NotedColumn]],
        layout: Callable[[TableName], ResolvedLayout | None],
        cascading: Callable[[], list[TableError]],
        known: KnownTables,
        *,
        mariadb: bool,
        lower_case: bool,
        exists: Callable[[TableName], bool] | None = None,
    ) -> None:
        self.mariadb = mariadb
        self._config, self._settings, self._noted, self._layout = config, settings, noted, layout
        self._cascading = cascading
        self._lower_case, self._exists = lower_case, exists
        self._tables = set(tables)
        self._latest: dict[TableName, ResolvedLayout] = {}
        self._landed, self._traits = dict(known.layouts), dict(known.traits)
        self._columns: dict[TableName, dict[str, NotedColumn]] = {}
        self._settled: set[TableName] = set()  # their columns are known as of where the log has been read to
        self._types: dict[TableName, dict[str, str]] = {}

    def resolve(self, body: bytes) -> ResolvedLayout:
        """Return the layout in a TABLE_MAP event's body."""
        table = table_name_of(body)
        if not captures(self._config, table) or not self._is_named_alike(table):
            return ResolvedLayout(table)
        self._tables.add(table)
        try:
            table_map = self._completed(parse_table_map(body, mariadb=self.mariadb))
            schema = landing_schema_of(table_map, self._settings)
            allowed = self._config.allow_partial_row_images
            resolved = ResolvedLayout(table, table_map, schema, partial_images=allowed)
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

    def forget_traits(self, table: TableName) -> None:
        """Forget what the log lacks about a table's columns, but of those that the catalog lacks, too."""
        self._columns_of(table)
        self._settled.discard(table)

    def forget_columns(
        self, table: TableName, columns: Collection[str], renamed: Collection[tuple[str, str]]
    ) -> None:
        """Forget columns that a statement dropped or added; those `renamed` keep their types.

        Whatever is known under the name of a column that came is a former table's.
        """
        lost = {lower(name) for name in (*columns, *(new for _, new in renamed))}
        known, types = self._columns_of(table), self.types_of(table)
        self._columns[table] = {name: column for name, column in known.items() if lower(name) not in lost}
        before = {lower(name): types.pop(name) for name in [*types] if lower(name) in lost}
        types.update({new: before[lower(old)] for old, new in renamed if lower(old) in before})

    def has_configured_key(self, table: TableName) -> bool:
        """Return whether the configuration names a table's key."""
        return _configured_key(table, self._settings) is not None

    def noted(self, table: TableName) -> Mapping[str, NotedColumn]:
        """Return what the catalog shows of a table's columns; empty if it is gone."""
        return self._noted(table)

    def types_of(self, table: TableName) -> dict[str, str]:
        """Return the types that a table's columns had when last seen, in the log or landed."""
        if table not in self._types:
            landed = self._landed.get(table)
            self._types[table] = {c.name: c.source_type for c in landed.columns} if landed else {}
        return self._types[table]

    def named(self, database: str, name: str) -> TableName | None:
        """Return the captured table of this name."""
        exact = TableName(database, name)
        if exact in self._tables:
            return exact
        if self._lower_case:
            wanted = [lower(database), lower(name)]
            return next((t for t in self._tables if [*map(lower, t)] == wanted), None)
        return None

    def among(self, database: str | None) -> set[TableName]:
        """Return the captured tables of a database; None: of all."""
        return {t for t in self._tables if database is None or lower(t.namespace) == lower(database)}

    def cascading(self) -> list[TableError]:
        """Return the captured tables that now have foreign keys which change rows by themselves."""
        return [problem for problem in self._cascading() if captures(self._config, problem.table)]

    def _is_named_alike(self, table: TableName) -> bool:
        """Return whether the log's name of a table is the catalog's, or was."""
        if self._exists is None or table in self._tables or table in self._landed:
            return True
        return self._exists(table)

    def _any_schema(self, table: TableName) -> TableSchema:
        """Return some schema that names the table, for a layout that can't be read.

        The catalog is not asked for one: it may have to wait for the table's lock, and all log with it.
        """
        known = self._latest.get(table)
        return (known.schema if known else None) or TableSchema(table, (), ())

    def _columns_of(self, table: TableName) -> dict[str, NotedColumn]:
        """Return what is known of a table's columns; first what was known when the log was opened."""
        if table not in self._columns:
            self._columns[table] = {}
            traits, landed = self._traits.get(table), self._landed.get(table)
            if traits is not None:
                names = {column.name for column in landed.columns} if landed else set()
                self._columns[table] = {n: NotedColumn.of(traits.get(n, "")) for n in names | traits.keys()}
                self._settled.add(table)
        return self._columns[table]

    def _completed(self, table_map: TableMap) -> TableMap:
        if not self.mariadb:
            self._types[table_map.table] = _types_in(table_map)
            return table_map
        table, columns, shown = table_map.table, self._columns_of(table_map.table), None
        names, is_settled = {column.name for column in table_map.columns}, table in self._settled
        if not is_settled or not names <= columns.keys():
            noted = self._noted(table)
            columns = {**noted, **columns} if is_settled else {**columns, **noted}
            shown = columns if is_settled else noted
            self._settled |= {table} if noted else set()
        columns = {name: column for name, column in columns.items() if name in names}
        self._columns[table], types = columns, self.types_of(table)
        completed = table_map.with_aliases({name: column.type for name, column in columns.items()}, types)
        completed = completed.with_virtual({name for name, column in columns.items() if column.virtual})
        completed = completed.with_defaults({name for name, column in columns.items() if column.default})
        row_end = next((name for name, column in columns.items() if column.row_end), None)
        completed = completed.with_hidden(columns if shown is None else shown, row_end)
        self._types[table] = _types_in(completed)
        return completed


def _types_in(table_map: TableMap) -> dict[str, str]:
    return {column.name: column.type.type_name for column in table_map.landed}


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
