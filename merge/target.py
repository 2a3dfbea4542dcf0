"""Where a source table's Delta table lies, and what it is now. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from connector.config import Config
from connector.errors import ConfigurationError, TableError
from connector.landing import CDC, encode
from connector.schema import TableName
from merge.read import is_missing, spark_url
from merge.sql import quoted, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_PROPERTY = "deltatide.key"
SOURCE_PROPERTY = "deltatide.source"
WRITES = ("MERGE", "WRITE")
"""What Delta calls the operations by which rows are applied."""

COMMITS_SEARCHED = 100
"""So far back a table's history is searched for our last commit; others (OPTIMIZE) may lie above it."""


@dataclass(frozen=True)
class Target:
    """The place of one Delta table: `name` is how SQL spells it."""

    table: str
    name: str

    def frame(self, spark: SparkSession) -> DataFrame:
        """Read the table as it is now."""
        return spark.table(self.name)


@dataclass(frozen=True)
class TargetState:
    """A Delta table as it is: its columns but for `_cdc` with their types, its properties, its size."""

    columns: dict[str, str]
    properties: dict[str, str]
    files: int
    bytes: int

    @property
    def empty(self) -> bool:
        """Tell whether it holds no file at all."""
        return self.files == 0

    @property
    def key(self) -> list[str]:
        """Give the key it was created with."""
        return list(json.loads(self.properties.get(KEY_PROPERTY, "[]")))


def lake_table(config: Config, path: str, name: str) -> str:
    """Spell a table of the lake in SQL: `path` under the lake's url, or `name` in its schema."""
    lake = config.lake
    if lake is None:
        raise ConfigurationError(
            "the configuration has no [lake]",
            hint='add it: [lake] url = "file:///folder" or catalog and schema',
        )
    if lake.url is not None:
        return f"delta.{quoted(spark_url(lake.url).rstrip('/') + '/' + path)}"
    return ".".join(quoted(part) for part in (lake.catalog, lake.schema_name, name) if part)


def check_schema(spark: SparkSession, config: Config) -> None:
    """Refuse a schema of a catalog that is not there; it is its owner's to make, with place and rights."""
    if config.lake is None or config.lake.schema_name is None:
        return
    name = ".".join(quoted(part) for part in (config.lake.catalog, config.lake.schema_name) if part)
    if not spark.catalog.databaseExists(name):
        raise ConfigurationError(f"lake.schema: {name} is not there", hint=f"CREATE SCHEMA {name}")


def target_of(config: Config, table: str) -> Target:
    """Give the place of a source table's Delta table."""
    parsed = TableName.parse(table)
    return Target(table, lake_table(config, f"{encode(parsed.namespace)}/{encode(parsed.name)}", parsed.name))


def targets_of(config: Config, tables: Iterable[str]) -> dict[str, Target]:
    """Give the places of all tables; `ConfigurationError` when two would share one."""
    targets = {table: target_of(config, table) for table in tables}
    owners: dict[str, str] = {}
    for table, target in targets.items():
        other = owners.setdefault(target.name.lower(), table)
        if other != table:
            raise ConfigurationError(
                f"{other} and {table} would both be {target.name}",
                hint="set lake.url instead of catalog and schema, or exclude one of them",
            )
    return targets


def look(spark: SparkSession, target: Target) -> TargetState | None:
    """Give the state of a Delta table; None when there is none."""
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {target.name}").collect()[0]
        fields = target.frame(spark).schema.fields
    except AnalysisException as error:
        if is_missing(error):
            return None
        raise
    columns = {f.name: f.dataType.simpleString() for f in fields if f.name != CDC}
    return TargetState(columns, dict(detail["properties"]), detail["numFiles"], detail["sizeInBytes"])


@dataclass(frozen=True)
class Mark:
    """What a commit of ours carries as its user metadata, for other jobs to see.

    It brings the table to the state after `manifest`, in which `requested` rows wait for columns that an
    earlier event should have brought and that the agent was asked for.
    """

    source: str
    manifest: int
    requested: int

    def to_json(self) -> str:
        """Serialize."""
        return json.dumps({"deltatide": asdict(self)})

    @classmethod
    def parse(cls, user_metadata: str | None, source: str) -> Mark | None:
        """Read a commit's user metadata; None when it is none of ours, or another source's."""
        try:
            mark = json.loads(user_metadata or "null")
        except ValueError:
            return None
        ours = mark.get("deltatide") if isinstance(mark, dict) else None
        if not isinstance(ours, dict) or ours.get("source") != source:
            return None
        return cls(source, int(ours["manifest"]), int(ours.get("requested", 0)))


@dataclass(frozen=True)
class Commits:
    """What a table's history tells: the version by our newest commit and the manifest that this names.

    `requested`: how many rows our commits since some version left waiting for columns that they asked for;
    None when that can't be told. Where no commit of ours is found (the platform keeps no user metadata),
    `version` is the newest one and `manifest` None.
    """

    version: int
    manifest: int | None
    requested: int | None


def read_commits(spark: SparkSession, target: Target, source: str, since: int | None) -> Commits:
    """Read a table's history; `since`: the version after which requests count, None for all of them."""
    history = spark.sql(f"DESCRIBE HISTORY {target.name} LIMIT {COMMITS_SEARCHED}")
    rows = (
        history.select("version", "operation", "userMetadata").orderBy("version", ascending=False).collect()
    )
    ours = {row["version"]: mark for row in rows if (mark := Mark.parse(row["userMetadata"], source))}
    rebuilt = since is not None and since > rows[0]["version"]
    first = 0 if since is None or rebuilt else since + 1
    if not ours:
        written = [row for row in rows if row["version"] >= first and row["operation"] in WRITES]
        return Commits(rows[0]["version"], None, 0 if len(written) <= 1 else None)
    newest, oldest = max(ours), rows[-1]["version"]
    whole = oldest <= first or len(rows) < COMMITS_SEARCHED
    requested = sum(mark.requested for version, mark in ours.items() if version >= first)
    return Commits(newest, ours[newest].manifest, requested if whole else None)


def check_owner(state: TargetState, target: Target, source: str, key: Iterable[str]) -> None:
    """Refuse a Delta table that is not this source's, or has another key."""
    owner = state.properties.get(SOURCE_PROPERTY)
    if owner != source:
        whose = f"belongs to source {owner!r}" if owner else "was not created by deltatide"
        raise TableError(
            target.table, f"{target.name} {whose}", hint="choose another [lake], or drop that table"
        )
    if state.key != list(key):
        raise TableError(
            target.table,
            f"its key is {list(key)} now, {target.name} has {state.key}",
            hint="drop that Delta table: the next merge builds it anew from the landing zone",
        )


def properties_sql(properties: dict[str, str]) -> str:
    """Spell table properties."""
    return ", ".join(f"{text(name)} = {text(value)}" for name, value in properties.items())
