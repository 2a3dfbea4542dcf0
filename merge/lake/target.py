"""Locates a source table's Delta table, and reads its state. Writes nothing."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing.format import CDC, encode
from connector.landing.manifest import Manifest
from connector.schema import TableName, fold
from merge.columns.projection import recorded_projection
from merge.lake.stored_rows import stored_rows
from merge.landing_zone import LandingZone, is_missing, spark_url
from merge.sql_formatting import quoted, text, unquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_PROPERTY = "deltatide.key"
SOURCE_PROPERTY = "deltatide.source"
TABLE_PROPERTY = "deltatide.table"
SHAPE_PROPERTY = "deltatide.shape"
COLUMNS_PROPERTY = "deltatide.columns"
COLUMNS_SINCE_PROPERTY = "deltatide.columns_since"
GENERATION_PROPERTY = "deltatide.generation"
CHANGING = "changing"
"""Value of `COLUMNS_PROPERTY` while all rows are rewritten with other columns: merges must not write."""

VECTORS_PROPERTY = "delta.enableDeletionVectors"
WIDENING_PROPERTY = "delta.enableTypeWidening"
WIDENING_FEATURES = ("typeWidening", "checkpointProtection")
"""What features begin with of a table with files of a former type. Whoever drops the first rewrites only the
newest version, and Delta adds the other one."""
SHAPES = ("changes", "history")
"""The shapes kept beside the current rows."""
DROP = "drop that Delta table: the next merge rebuilds it from the landing zone"
COPY = "copy what you need, then drop it: the next merge begins a new one with what the landing zone has kept"
LEFT = "; its files stay in {}: remove that folder, too"
"""The end of a hint to drop a Delta table, if it is an external table of a catalog."""

INEXACT_PARTITIONS = ("timestamp", "binary")
"""Types of which a partition column can't hold all values."""


@dataclass(frozen=True)
class FileLayout:
    """How a Delta table's files are laid out (partitioned or clustered), and whether it has a change feed."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    change_data_feed: bool = False


@dataclass(frozen=True)
class Target:
    """The location of one Delta table: `name` in SQL; `rival`: another table with the same location.

    `folder`: where a catalog's new table is to lie; None: where its name says, or the catalog chooses.
    `shape`: of its rows (`merge.shapes`); None: current. `columns`: the projection that it must have been
    built with (`merge.columns.projection`); None: all columns and rows. `layout`: of files. `soft`: deletes.
    """

    table: TableName
    name: str
    rival: TableName | None = None
    shape: str | None = None
    columns: str | None = None
    layout: FileLayout = FileLayout()
    folder: str | None = None
    soft: bool = False

    @property
    def drop_hint(self) -> str:
        """Return how to have it rebuilt; nothing can rebuild a whole shape."""
        return self.hint_to_drop(COPY if self.shape else DROP)

    def hint_to_drop(self, hint: str) -> str:
        """Complete a hint that ends with `DROP` or `COPY`."""
        return hint if self.folder is None else hint + LEFT.format(self.folder)

    @property
    def located(self) -> str:
        """Return the clause by which it is created in its folder; empty if it has none."""
        return location_sql(self.folder)

    @property
    def built_with(self) -> str:
        """Return a fingerprint of `columns`, for the marks of its commits and for cuts."""
        return built_with(self.columns)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Read the table as it is when the frame is evaluated; within a MERGE, as the MERGE finds it."""
        return stored_rows(spark, self.name)

    def at(self, spark: SparkSession, version: int) -> DataFrame:
        """Read one version of the table."""
        return spark.sql(f"SELECT * FROM {self.name} VERSION AS OF {version}")


@dataclass(frozen=True)
class TargetState:
    """A Delta table's current state: id, columns (without `_cdc`) with their types, properties, size.

    `comment`: its own, empty if it has none. `comments`: of columns that have one. `structs`: their fields.
    `widened`: a column may have been, so that older files have its former type, though none may be any more.
    """

    id: str
    columns: dict[str, str]
    properties: dict[str, str]
    files: int
    bytes: int
    partitioned_by: tuple[str, ...] = ()
    clustered_by: tuple[str, ...] = ()
    comment: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)
    structs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    widened: bool = False

    @property
    def empty(self) -> bool:
        """Return whether it has no files."""
        return self.files == 0

    @property
    def has_deletion_vectors(self) -> bool:
        """Return whether deleted rows are only marked in their files, as in tables that we create."""
        return self.properties.get(VECTORS_PROPERTY) == "true"

    @property
    def built_with(self) -> str | None:
        """Return the columns, masks and rows that it was built with; see `Target.columns`."""
        return self.properties.get(COLUMNS_PROPERTY)

    @property
    def built_since(self) -> int:
        """Return the version from which on the table is `built_with` these."""
        return int(self.properties.get(COLUMNS_SINCE_PROPERTY, 0))

    @property
    def generation(self) -> int:
        """Return how many times it was rebuilt with other columns, masks or rows; see `Mark.generation`."""
        return int(self.properties.get(GENERATION_PROPERTY, 0))

    @property
    def key(self) -> list[str]:
        """Return the key it was created with."""
        return list(json.loads(self.properties.get(KEY_PROPERTY, "[]")))


def built_with(columns: str | None) -> str:
    """Return a fingerprint of the columns, masks and rows that a target was built with."""
    return hashlib.sha256((columns or "").encode()).hexdigest()[:16]


def built_with_in(config: Config, table: TableName) -> str:
    """Return the fingerprint that a configuration demands of the targets of a source's table."""
    return built_with(recorded_projection(config, table))


def lake_name(config: Config) -> str:
    """Return the name of the configured lake: its url, or catalog and schema."""
    lake = config.lake
    if lake is None:
        raise no_lake()
    return lake.url or f"{lake.catalog}.{lake.schema_name}"


def no_lake() -> ConfigurationError:
    """Build the error of a configuration without a lake."""
    return ConfigurationError(
        "the configuration has no [lake] section",
        hint='add it: [lake] url = "file:///folder" or catalog and schema',
    )


def lake_table(config: Config, path: str, name: str) -> str:
    """Format a table of the lake in SQL: `path` under the lake's url, or `name` in its schema."""
    lake = config.lake
    if lake is None:
        raise no_lake()
    if lake.url is not None:
        return f"delta.{quoted(spark_url(lake.url).rstrip('/') + '/' + path)}"
    return ".".join(quoted(part) for part in (lake.catalog, lake.schema_name, name) if part)


def lake_folder(config: Config, path: str) -> str | None:
    """Return the folder of a catalog's new table, `path` under ``lake.location``; None without that."""
    location = config.lake.location if config.lake else None
    return None if location is None else f"{spark_url(location).rstrip('/')}/{path}"


def location_sql(folder: str | None) -> str:
    """Build the clause that has a new table lie in a folder; empty without one."""
    return "" if folder is None else f"LOCATION {text(folder)} "


def check_schema(spark: SparkSession, config: Config) -> None:
    """Refuse a catalog schema that does not exist; its owner must create it with location and privileges."""
    if config.lake is None or config.lake.schema_name is None:
        return
    name = ".".join(quoted(part) for part in (config.lake.catalog, config.lake.schema_name) if part)
    if not spark.catalog.databaseExists(name):
        raise ConfigurationError(f"lake.schema: schema {name} does not exist", hint=f"CREATE SCHEMA {name}")


def targets_of(config: Config, tables: Collection[TableName]) -> dict[TableName, Target]:
    """Return the locations of all tables; tables that would share one name each other as `rival`.

    Catalogs and some file systems ignore case. If names differ only by case, the lower-case table keeps its
    plain name, and the others get a hash appended. `ConfigurationError` as for `check_sections`.
    """
    alike: dict[TableName, list[TableName]] = {}
    for table in tables:
        alike.setdefault(_folded(table), []).append(table)
    check_sections(config, tables)
    targets = [_target_of(config, table, group) for group in alike.values() for table in group]
    sharing: dict[str, list[TableName]] = {}
    for target in targets:
        sharing.setdefault(target.name.lower(), []).append(target.table)

    def rival(target: Target) -> TableName | None:
        return next((other for other in sharing[target.name.lower()] if other != target.table), None)

    return {target.table: replace(target, rival=rival(target)) for target in targets}


def check_sections(config: Config, tables: Iterable[TableName]) -> None:
    """Refuse masks of a table that are configured under its name in another case: they would mask nothing."""
    narrowed = {_folded(name): name for name, its in config.tables.items() if its.narrows}
    for table in tables:
        if table not in config.tables and (named := narrowed.get(_folded(table))) is not None:
            raise ConfigurationError(
                f"{named.section} says which columns or rows are written to the lake, but the table's name is"
                f" {str(table)!r}",
                hint=f"correct the name; or, if that is another table, add a section: {table.section}",
            )


def _folded(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


def _target_of(config: Config, table: TableName, alike: Sequence[TableName]) -> Target:
    """Return the location of a table's Delta table; `alike`: the tables whose names differ only by case."""
    across = len({other.namespace for other in alike}) > 1
    name, lower = table.name, _folded(table)
    if len(alike) > 1 and (table != lower if across else name != lower.name):
        name += "_" + hashlib.sha256((str(table) if across else name).encode()).hexdigest()[:8]
    path = f"{encode(table.namespace)}/{encode(name)}"
    its = config.table(table)
    return Target(
        table,
        lake_table(config, path, name),
        columns=recorded_projection(config, table),
        layout=FileLayout(tuple(its.partition_by), tuple(its.cluster_by), its.change_data_feed),
        folder=lake_folder(config, path),
        soft=its.deletes == "soft",
    )


def check_rival(spark: SparkSession, target: Target) -> None:
    """Refuse a table that would share its location, unless its Delta table already exists."""
    if target.rival is None:
        return
    state = read_state(spark, target)
    if state is None or state.properties.get(TABLE_PROPERTY) != str(target.table):
        raise TableError(
            target.table,
            f"{target.name} would also be the Delta table of {target.rival}",
            hint="set lake.url instead of catalog and schema, or exclude one of them",
        )


def table_name(text: str) -> TableName:
    """Parse a table name entered by the user."""
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def not_landed(table: TableName, manifest: Manifest | None) -> ConfigurationError:
    """Build the error for a table that has not landed; names those that have."""
    tables = sorted(map(str, manifest.tables)) if manifest else []
    base, _, kind = str(table).rpartition("_")
    if kind in SHAPES and base in tables:
        return ConfigurationError(
            f"{str(table)!r} is not a source table; if it holds the {kind} of {base}, it is merged with that",
            hint=f"name {base}; read the Delta table itself, or merge.as_of",
        )
    return ConfigurationError(
        f"table {str(table)!r} has not landed", hint=f"landed tables: {', '.join(tables) or 'none yet'}"
    )


def require_landed(table: TableName, manifest: Manifest | None) -> Manifest:
    """Return a manifest that names a table with a layout; else raise `not_landed`."""
    if manifest is None or table not in manifest.tables or manifest.tables[table].schema_id is None:
        raise not_landed(table, manifest)
    if not manifest.tables[table].key:
        raise ConfigurationError(
            f"only changes of {str(table)!r} are captured: it has no current rows",
            hint=f'read {table}_changes, as a Delta table or by as_of; or add "current" to shapes in'
            f" {table.section}, which needs a key",
        )
    return manifest


def manifest_at(landing: LandingZone, table: TableName, at: int | None) -> Manifest:
    """Return manifest `at`, or the newest; it must name the table. Reads earlier manifests, too.

    `ConfigurationError` if the table has not landed, or the state after the manifest can't be read.
    """
    number = landing.newest(0, at)
    landing.check_end(at)
    if at is not None and number != at:
        raise ConfigurationError(
            f"manifest {at} is not in {landing.root}",
            hint="it has not landed yet, or was removed after landing.retention_days; see deltatide cuts",
        )
    return require_landed(table, landing.get(number) if number else None)


def read_state(spark: SparkSession, target: Target) -> TargetState | None:
    """Return the state of a Delta table; None if it does not exist."""
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0].asDict()
        fields = spark.table(target.name).schema.fields
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise
    columns = {f.name: f.dataType.simpleString() for f in fields if f.name != CDC}
    clusters = tuple(map(unquoted, detail.get("clusteringColumns") or ()))  # unlike partitions, quoted if odd
    comments = {f.name: f.metadata["comment"] for f in fields if "comment" in f.metadata}
    structs = {f.name: names for f in fields if (names := getattr(f.dataType, "names", None))}
    size = detail["numFiles"], detail["sizeInBytes"], tuple(detail.get("partitionColumns") or ())
    known = detail["id"], columns, dict(detail["properties"]), *size
    widened = any(name.startswith(WIDENING_FEATURES) for name in detail.get("tableFeatures") or ())
    return TargetState(*known, clusters, detail["description"] or "", comments, structs, widened)


def table_id(spark: SparkSession, target: Target) -> str | None:
    """Return the id of a Delta table, which differs if it was recreated; None: no table."""
    try:
        return str(spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]["id"])
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise


def shape_of_rows(spark: SparkSession, target: Target) -> str | None:
    """Return what the rows of a Delta table are, as it says itself; None: current rows, or no table."""
    try:
        shape = spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]["properties"].get(SHAPE_PROPERTY)
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise
    return None if shape is None else str(shape)


def check_owner(state: TargetState, target: Target, source: str, key: Iterable[str]) -> None:
    """Refuse a Delta table that belongs to another source or table, or has another key."""
    if (problem := ownership_error(state, target, source, key)) is not None:
        raise problem


def ownership_error(state: TargetState, target: Target, source: str, key: Iterable[str]) -> TableError | None:
    """Return why the rows of a Delta table can't be matched to those of a source's table, or None."""
    owner, table = state.properties.get(SOURCE_PROPERTY), state.properties.get(TABLE_PROPERTY)
    if owner != source:
        whose = f"belongs to source {owner!r}" if owner else "was not created by deltatide"
        hint = target.hint_to_drop("choose another [lake], or drop that table")
        return TableError(target.table, f"{target.name} {whose}", hint=hint)
    shape = state.properties.get(SHAPE_PROPERTY)
    if (table, shape) != (str(target.table), target.shape):
        held = f"the {shape} table {table}" if shape else f"the rows of source table {table}"
        hint = target.hint_to_drop(COPY if shape else DROP)
        return TableError(target.table, f"{target.name} already holds {held}", hint=hint)
    if state.key != list(key):
        reason = f"its key is now {list(key)}, the key of {target.name} is {state.key}"
        return TableError(target.table, reason, hint=target.drop_hint)
    if state.built_with != target.columns:
        return built_otherwise(state, target)
    return None


def built_otherwise(state: TargetState, target: Target) -> TableError:
    """Build the error for a table that would mix rows masked or filtered in different ways."""
    known, wanted = (text or "the table as it is" for text in (state.built_with, target.columns))
    reason = f"{target.name} was built with {known}, and the configuration now says {wanted}"
    if state.built_with == CHANGING:
        reason = f"{target.name} is being rebuilt with other columns, masks or rows; or that was interrupted"
    rebuild = f"deltatide rebuild {shlex.quote(str(target.table))}"
    hint = f"rewrite all of its rows: {rebuild}; or restore the former configuration"
    return TableError(target.table, reason, hint=target.drop_hint if target.shape is not None else hint)


def check_partitions(target: Target, names: Iterable[str], types: Mapping[str, str]) -> None:
    """Refuse to partition by a type whose values Delta changes; for text, see `merge.apply`.

    Delta stores a partition's value as text: an instant as the session's local time, in which an hour comes
    twice when clocks are set back, even if others only OPTIMIZE; bytes with all but UTF-8 replaced, or null.
    """
    if inexact := next((name for name in names if types[name] in INEXACT_PARTITIONS), None):
        raise TableError(
            target.table,
            f"{target.name} is to be partitioned by column {inexact!r}, and Delta changes some values of type"
            f" {types[inexact]} there",
            hint=f"use cluster_by instead of partition_by in {target.table.section}; if the Delta table"
            f" exists, also {target.drop_hint}",
        )


def check_file_layout(state: TargetState, target: Target) -> None:
    """Refuse a Delta table whose file layout differs from the configured one, or changes values.

    One that is neither partitioned nor clustered can still be clustered.
    """
    check_partitions(target, state.partitioned_by, state.columns)
    is_laid_out = bool(state.partitioned_by or state.clustered_by)
    for setting, wanted, known in (
        ("partition_by", target.layout.partition_by, state.partitioned_by),
        ("cluster_by", target.layout.cluster_by, state.clustered_by),
    ):
        if setting == "cluster_by" and not is_laid_out:
            continue
        if wanted and list(map(fold, wanted)) != list(map(fold, known)):
            raise TableError(
                target.table,
                f"{target.name} has {setting} = {json.dumps(list(known))}, and the configuration says"
                f" {json.dumps(list(wanted))}",
                hint=f"restore the former {setting}, or leave it out; or {target.drop_hint}",
            )


def properties_sql(properties: dict[str, str]) -> str:
    """Format table properties."""
    return ", ".join(f"{text(name)} = {text(value)}" for name, value in properties.items())
