"""Locates a source table's Delta table, and reads its state. Writes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing.format import CDC, encode
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.landing_zone import LandingZone, is_missing, spark_url
from merge.sql import quoted, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_PROPERTY = "deltatide.key"
SOURCE_PROPERTY = "deltatide.source"
TABLE_PROPERTY = "deltatide.table"
WIDENING_PROPERTY = "delta.enableTypeWidening"
DROP = "drop that Delta table: the next merge rebuilds it from the landing zone"


@dataclass(frozen=True)
class Target:
    """The location of one Delta table: `name` in SQL; `rival`: another table with the same location."""

    table: TableName
    name: str
    rival: TableName | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """Read the table as it is when the frame is evaluated; within a MERGE, as the MERGE finds it."""
        return spark.table(self.name)

    def at(self, spark: SparkSession, version: int) -> DataFrame:
        """Read one version of the table."""
        return spark.sql(f"SELECT * FROM {self.name} VERSION AS OF {version}")


@dataclass(frozen=True)
class TargetState:
    """A Delta table's current state: id, columns (without `_cdc`) with their types, properties, size."""

    id: str
    columns: dict[str, str]
    properties: dict[str, str]
    files: int
    bytes: int

    @property
    def empty(self) -> bool:
        """Return whether it has no files."""
        return self.files == 0

    @property
    def widened(self) -> bool:
        """Return whether a column may have been widened: older files then have its former type."""
        return self.properties.get(WIDENING_PROPERTY) == "true"

    @property
    def key(self) -> list[str]:
        """Return the key it was created with."""
        return list(json.loads(self.properties.get(KEY_PROPERTY, "[]")))


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


def check_schema(spark: SparkSession, config: Config) -> None:
    """Refuse a catalog schema that does not exist: its owner must create it, with location and privileges."""
    if config.lake is None or config.lake.schema_name is None:
        return
    name = ".".join(quoted(part) for part in (config.lake.catalog, config.lake.schema_name) if part)
    if not spark.catalog.databaseExists(name):
        raise ConfigurationError(f"lake.schema: schema {name} does not exist", hint=f"CREATE SCHEMA {name}")


def targets_of(config: Config, tables: Iterable[TableName]) -> dict[TableName, Target]:
    """Return the locations of all tables; tables that would share one have each other as `rival`.

    Catalogs and some file systems ignore case. Of tables whose names and namespaces differ only by case, the
    lower-case one keeps its plain name, and the others get a name with a hash.
    """
    alike: dict[TableName, list[TableName]] = {}
    for table in tables:
        alike.setdefault(_folded(table), []).append(table)
    targets = [_target_of(config, table, group) for group in alike.values() for table in group]
    sharing: dict[str, list[TableName]] = {}
    for target in targets:
        sharing.setdefault(target.name.lower(), []).append(target.table)

    def rival(target: Target) -> TableName | None:
        return next((other for other in sharing[target.name.lower()] if other != target.table), None)

    return {target.table: replace(target, rival=rival(target)) for target in targets}


def _folded(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


def _target_of(config: Config, table: TableName, alike: Sequence[TableName]) -> Target:
    """Return the location of a table's Delta table; `alike`: the tables whose names differ only by case."""
    across = len({other.namespace for other in alike}) > 1
    name, lower = table.name, _folded(table)
    if len(alike) > 1 and (table != lower if across else name != lower.name):
        name += "_" + hashlib.sha256((str(table) if across else name).encode()).hexdigest()[:8]
    return Target(table, lake_table(config, f"{encode(table.namespace)}/{encode(name)}", name))


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
    """Return an error saying that a table has not landed, and which have."""
    known = ", ".join(sorted(map(str, manifest.tables))) if manifest else ""
    return ConfigurationError(
        f"table {str(table)!r} has not landed", hint=f"landed tables: {known or 'none yet'}"
    )


def require_landed(table: TableName, manifest: Manifest | None) -> Manifest:
    """Return a manifest that names a table with a layout; else raise `not_landed`."""
    if manifest is None or table not in manifest.tables or manifest.tables[table].schema_id is None:
        raise not_landed(table, manifest)
    return manifest


def manifest_at(landing: LandingZone, table: TableName, at: int | None) -> Manifest:
    """Return manifest `at`, or the newest, which must name a table; read those before it, too.

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
        detail = spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]
        fields = target.frame(spark).schema.fields
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise
    columns = {f.name: f.dataType.simpleString() for f in fields if f.name != CDC}
    properties = dict(detail["properties"])
    return TargetState(detail["id"], columns, properties, detail["numFiles"], detail["sizeInBytes"])


def table_id(spark: SparkSession, target: Target) -> str | None:
    """Return the id of a Delta table, which differs if it was recreated; None: no table."""
    try:
        return str(spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]["id"])
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise


def check_owner(state: TargetState, target: Target, source: str, key: Iterable[str]) -> None:
    """Refuse a Delta table that belongs to another source or table, or has another key."""
    if (problem := ownership_error(state, target, source, key)) is not None:
        raise problem


def ownership_error(state: TargetState, target: Target, source: str, key: Iterable[str]) -> TableError | None:
    """Return why the rows of a Delta table can't be matched to those of a source's table, or None."""
    owner, table = state.properties.get(SOURCE_PROPERTY), state.properties.get(TABLE_PROPERTY)
    if owner != source:
        whose = f"belongs to source {owner!r}" if owner else "was not created by deltatide"
        return TableError(
            target.table, f"{target.name} {whose}", hint="choose another [lake], or drop that table"
        )
    if table != str(target.table):
        return TableError(
            target.table, f"{target.name} already holds the rows of source table {table}", hint=DROP
        )
    if state.key != list(key):
        reason = f"its key is now {list(key)}, the key of {target.name} is {state.key}"
        return TableError(target.table, reason, hint=DROP)
    return None


def properties_sql(properties: dict[str, str]) -> str:
    """Format table properties."""
    return ", ".join(f"{text(name)} = {text(value)}" for name, value in properties.items())
