"""The control table: one row per cut, with each table's frontier.

Invariants:

- Rows are only appended. A row names all tables captured at its manifest, each with the manifest that it has
  reached and the Delta table's id and version. Later rows leave out tables that are no longer captured.
- Readers need only the rows appended last (`merged_at`): each job records for each table the greatest
  manifest that it has read or merged. Rows of the greatest manifests would not do: a slow job may append one
  of a manifest that others passed long ago. A driver whose clock is behind the last row's sets it forward.
- A table that these rows don't name is new, or was not captured for a while. In that case older rows name it,
  with the id of its Delta table. So they do if a late job names a Delta table that was dropped meanwhile:
  where rows differ in the id, the table is looked at.
- Another table marks cuts that can no longer be read (`merge.lake.kept_versions`). When upkeep rewrites files
  of a table, it appends the newest cut again with the version that holds the same rows (`renew_cut`). Of
  several rows of a manifest, the newest exact one counts, or the newest if none is exact.
- A row says with which columns, masks and rows the versions that it names were built (`Built`). It is exact
  only if these are those of the job's configuration, even of a table of which nothing has landed for long.
- A job that began before such a rebuild may record its cut after it, with the version from before. That does
  not take the table back: of entries of one Delta table, those of its greatest generation count, whatever
  their manifests. The next merge records the cut again. Until then, whoever reads the newest cut finds that
  the version was not built with today's settings; a cut that is named is read as it was.
- A row is written after the tables that it names. A crash in between leaves tables ahead of their frontier;
  the next run applies the same events again, which changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import SourceMismatchError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake.kept_versions import with_gone
from merge.lake.own_tables import create_own_table
from merge.lake.retry import with_retries
from merge.lake.target import built_with, lake_folder, lake_table
from merge.landing_zone import is_missing
from merge.plan import Manifests
from merge.spark.local_rows import local_rows
from merge.spark.session_settings import ONE_TASK, UNCOMPACTED, applied_settings
from merge.sql_formatting import text, timestamp, to_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ENTRY = {"version": "bigint", "manifest": "bigint", "id": "string", "missing": "bigint", "error": "string"}
"""The fields of a table's frontier in a row."""

BUILT = "struct<fingerprint: string, generation: bigint>"

COLUMNS = {
    "source": "string",
    "manifest": "bigint",
    "epoch": "int",
    "position": "bigint",
    "source_committed_at": "timestamp",
    "merged_at": "timestamp",
    "exact": "boolean",
    "tables": f"map<string, struct<{', '.join(f'{name}: {type_}' for name, type_ in ENTRY.items())}>>",
    "built_with": f"map<string, {BUILT}>",
}
"""`built_with`: of tables that were not built with all columns and rows as they landed; null for one of which
that is unknown. Null as a whole in rows of earlier releases, whose control table lacks it."""

CUTS_PATH = "_deltatide/cuts"

CUTS_COMPACTED = 32
"""Delta's files are compacted after one in so many cuts, by chance."""

ROWS_READ = 20
"""Every row names all tables, but a job does not see what others append at the same time."""

ROWS_READ_AGAIN = 5
"""Appending takes time, so rows may be appended in another order than their times."""


@dataclass(frozen=True)
class Built:
    """The columns, masks and rows that a version was built with (`Target.built_with`), and how often.

    `generation`: how many times the Delta table had been rebuilt with other ones; see `Mark.generation`.
    """

    fingerprint: str
    generation: int = 0


AS_LANDED = Built(built_with(None))
"""With all columns and rows as they landed, from the beginning."""


@dataclass(frozen=True)
class Frontier:
    """A table's frontier: the last manifest applied, and the version of that state in the Delta table `id`.

    `version` and `id` None: there is no table yet. `missing`: how many of its rows are missing a column
    (None: unknown). `error`: why the last merge did not advance it. `built`: with which columns, masks and
    rows the version was built (None: unknown, as an earlier release recorded it). `disputed`: other rows name
    another Delta table, so this one may be gone.
    """

    manifest: int
    version: int | None = None
    id: str | None = None
    missing: int | None = None
    error: str | None = field(default=None, compare=False)
    built: Built | None = field(default=None, compare=False)
    disputed: bool = field(default=False, compare=False)

    def is_built_with(self, fingerprint: str) -> bool:
        """Return whether the version, if there is one, is known to have these columns, masks and rows."""
        return self.version is None or (self.built is not None and self.built.fingerprint == fingerprint)

    def overtakes(self, other: Frontier) -> bool:
        """Return whether this one of two recorded frontiers of a table counts."""
        if self.is_rebuilt_after(other) or other.is_rebuilt_after(self):
            return self.is_rebuilt_after(other)
        return self.manifest > other.manifest

    def is_rebuilt_after(self, other: Frontier) -> bool:
        """Return whether the same Delta table was rebuilt with other columns or masks after the other one."""
        if self.id != other.id or self.built is None or other.built is None:
            return False
        return self.built.generation > other.built.generation


@dataclass(frozen=True)
class Frontiers:
    """The frontiers of a source's tables, and the cut with the greatest manifest, `newest`.

    A table without a frontier here was not captured at manifest `newest`: whatever landed of it before is
    followed by a full dump. So its frontier is at `newest`, unless an older cut names its Delta table
    (`recorded_frontiers`). `merged_at`: by its driver's clock. `ahead`: how far the last row's clock is ahead
    of this driver's. `failed`: the tables and views that failed, of each row read; jobs may differ.
    `overtaken`: cut `newest` names a table's version from before it was rebuilt with other columns or masks.
    """

    newest: int = 0
    epoch: int = 0
    position: int = 0
    exact: bool = True
    merged_at: datetime | None = None
    by_table: Mapping[TableName, Frontier] = field(default_factory=dict)
    ahead: timedelta = timedelta()
    failed: frozenset[frozenset[TableName]] = frozenset()
    overtaken: bool = False

    def of(self, table: TableName) -> Frontier:
        """Return a table's frontier."""
        return self.by_table.get(table, Frontier(self.newest))

    def naming(self, tables: Iterable[TableName]) -> Frontiers:
        """Return these frontiers with one for each of `tables`: at the beginning, if none was recorded."""
        return replace(self, by_table={table: Frontier(0) for table in tables} | dict(self.by_table))

    def check(self, landing: Manifests, first_kept: int = 0) -> None:
        """Refuse a landing zone whose manifest `newest` isn't the one that was merged.

        If that was removed, the first one kept (`first_kept`) must not be at an earlier position: this lake's
        rows would win over its dumps.
        """
        if not self.newest:
            return
        manifest = landing.get(max(self.newest, first_kept))
        at, merged = (manifest.epoch, manifest.position), (self.epoch, self.position)
        if at < merged or (at > merged and manifest.number == self.newest):
            raise SourceMismatchError(
                f"manifest {manifest.number} of source {manifest.source.name!r} is at"
                f" {manifest.epoch}/{manifest.position},"
                f" but the lake has merged it at {self.epoch}/{self.position}",
                hint="the landing zone was replaced; choose another [lake] or source.name for it",
            )


def cuts_table(config: Config) -> str:
    """Format the control table in SQL."""
    return lake_table(config, CUTS_PATH, "_deltatide_cuts")


def read_frontiers(spark: SparkSession, config: Config) -> Frontiers:
    """Read the frontiers of the configured source."""
    return FrontierReader(config).read(spark)


class FrontierReader:
    """Reads a source's frontiers repeatedly: first the newest rows, then only those appended since."""

    def __init__(self, config: Config) -> None:
        self._of_source = f"FROM {cuts_table(config)} WHERE source = {text(config.source.name)}"
        self._since: int | None = None

    def read(self, spark: SparkSession) -> Frontiers:
        """Read the frontiers as of now."""
        try:
            rows = self._newest(spark, self._since)
            if not rows and self._since is not None:  # the control table was replaced
                rows = self._newest(spark, None)
        except AnalysisException as error:
            if not is_missing(error):
                raise
            rows = []
        self._since = rows[:ROWS_READ_AGAIN][-1]["at"] if rows else None
        return frontiers_of(rows)

    def _newest(self, spark: SparkSession, since: int | None) -> list[Row]:
        """Read the rows appended last, the last one first; `since`: from this time on, in microseconds."""
        if since is None:
            since = _newest_since(spark, self._of_source)
        return spark.sql(
            f"SELECT *, unix_micros(merged_at) AS at {self._of_source}"
            f" AND merged_at >= timestamp_micros({since}L)"
            f" ORDER BY merged_at DESC, manifest DESC LIMIT {ROWS_READ}"
        ).collect()


def newest_cuts(spark: SparkSession, config: Config) -> DataFrame | None:
    """Return a source's rows from those on that are appended last now, so that Delta opens no older files.

    The frame shows rows that are appended later, too. None if there is no control table.
    """
    of_source = f"FROM {cuts_table(config)} WHERE source = {text(config.source.name)}"
    try:
        since = _newest_since(spark, of_source)
        return spark.sql(f"SELECT * {of_source} AND merged_at >= timestamp_micros({since}L)")
    except AnalysisException as error:
        if not is_missing(error):
            raise
        return None


def _newest_since(spark: SparkSession, of_source: str) -> int:
    """Return the time of the first of the rows appended last, in microseconds; 0 if there are none.

    Reads only times: Delta then opens no more than the files of these rows.
    """
    select = f"SELECT unix_micros(merged_at) AS at {of_source}"
    times = spark.sql(f"{select} ORDER BY merged_at DESC LIMIT {ROWS_READ}").collect()
    return min((row["at"] for row in times), default=0)


def frontiers_of(rows: list[Row]) -> Frontiers:
    """Combine rows, newest first: of each table, the frontier counts that overtakes the others."""
    if not rows:
        return Frontiers()
    named = [frontiers_in(row) for row in rows]
    by_table: dict[TableName, Frontier] = {}
    for table, at in (entry for each in named for entry in each.items()):
        known = by_table.get(table, at)
        counts = at if table not in by_table or at.overtakes(known) else known
        disputed = known.disputed or (None not in (at.id, known.id) and at.id != known.id)
        by_table[table] = replace(counts, disputed=True) if disputed else counts
    newest = max(rows, key=lambda row: row["manifest"])
    best = max(range(len(rows)), key=lambda n: (rows[n]["manifest"], rows[n]["exact"]))  # as in `cuts`
    ahead = timedelta(microseconds=rows[0]["at"] - to_micros(_now()))
    return Frontiers(
        newest["manifest"],
        newest["epoch"],
        newest["position"],
        newest["exact"],
        newest["merged_at"],
        by_table,
        max(ahead, timedelta()),
        frozenset(frozenset(t for t, at in each.items() if at.error is not None) for each in named),
        any(by_table[table].is_rebuilt_after(at) for table, at in named[best].items()),
    )


def frontiers_in(row: Row) -> dict[TableName, Frontier]:
    """Return the frontiers of the tables that a row names."""
    known = row["built_with"] if "built_with" in row else None  # noqa: SIM401 - a Row has no get

    def built(name: str, version: int | None) -> Built | None:
        if known is None or version is None:
            return None
        return AS_LANDED if name not in known else None if known[name] is None else Built(*known[name])

    return {
        TableName.parse(name): Frontier(**at.asDict(), built=built(name, at["version"]))
        for name, at in row["tables"].items()
    }


def append_cut(
    spark: SparkSession,
    config: Config,
    manifest: Manifest,
    frontiers: Mapping[TableName, Frontier],
    *,
    exact: bool,
    ahead: timedelta = timedelta(),
) -> None:
    """Record a cut in the control table, which must exist; durable on return.

    `ahead`: added to this driver's clock, for the cut's time.

    Delta may compact the table's files after only one in `CUTS_COMPACTED` of such commits. It knows how many
    small files there are only as far as this process has added them, so it would compact a table that another
    process has created after each one.
    """
    # One text: Spark would take seconds to analyze an expression for each value of thousands of tables.
    entries = {
        str(table): {name: getattr(at, name) for name in ENTRY} for table, at in sorted(frontiers.items())
    }
    others = {str(t): at.built for t, at in sorted(frontiers.items()) if at.version is not None}
    built = {name: at and asdict(at) for name, at in others.items() if at != AS_LANDED}
    values = {
        "source": text(config.source.name),
        "manifest": f"{manifest.number}L",
        "epoch": str(manifest.epoch),
        "position": f"{manifest.position}L",
        "source_committed_at": timestamp(manifest.source_committed_at),
        "merged_at": timestamp(_now() + ahead),
        "exact": str(exact).lower(),
        "tables": _map_sql("tables", entries),
        "built_with": _map_sql("built_with", built),
    }
    insert = f"INSERT INTO {cuts_table(config)} ({', '.join(values)}) SELECT {', '.join(values.values())}"
    compacts = sha256(str(manifest.number).encode()).digest()[0] % CUTS_COMPACTED == 0
    with applied_settings(spark, ONE_TASK if compacts else {**ONE_TASK, **UNCOMPACTED}):
        _insert(spark, config, insert)


def _map_sql(column: str, values: Mapping[str, object]) -> str:
    return f"from_json({text(json.dumps(values))}, {text(COLUMNS[column])}, map('mode', 'FAILFAST'))"


def _insert(spark: SparkSession, config: Config, insert: str) -> None:
    """Append to the control table; add the column first that those of earlier releases lack."""
    name = cuts_table(config)

    def attempt() -> None:
        try:
            spark.sql(insert)
        except AnalysisException:
            _add_column(spark, name)
            spark.sql(insert)

    with_retries(attempt, name)


def _add_column(spark: SparkSession, name: str) -> None:
    """Add the column that earlier releases lack, unless it is there; another job may add it meanwhile."""
    try:
        if "built_with" not in spark.table(name).columns:
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS (built_with {COLUMNS['built_with']})")
    except AnalysisException:
        if "built_with" not in spark.table(name).columns:
            raise


def young_versions(spark: SparkSession, config: Config, since: datetime) -> dict[tuple[TableName, str], int]:
    """Return the oldest version of each Delta table, by table and id, that cuts recorded since then name."""
    found = spark.sql(
        "SELECT name, at.id, min(at.version) AS oldest FROM"
        f" (SELECT explode(tables) AS (name, at) FROM {cuts_table(config)}"
        f" WHERE source = {text(config.source.name)} AND merged_at >= {timestamp(since)})"
        " WHERE at.version IS NOT NULL GROUP BY name, at.id"
    ).collect()
    return {(TableName.parse(row["name"]), row["id"]): row["oldest"] for row in found}


def renew_cut(
    spark: SparkSession, config: Config, manifest: int, versions: Mapping[TableName, tuple[Frontier, int]]
) -> None:
    """Append the row that counts for a manifest (see `cuts`) again, with newer versions of the same rows.

    `versions`: by table, the frontier to replace and its version now. An entry that another job has changed
    meanwhile stays.
    """
    cases = " ".join(
        f"WHEN name = {text(str(table))} AND at.id = {text(old.id or '')} AND at.version = {old.version}"
        f" THEN {version}L"
        for table, (old, version) in sorted(versions.items())
    )
    tables = (
        f"transform_values(tables, (name, at) -> named_struct('version', CASE {cases} ELSE at.version END,"
        " 'manifest', at.manifest, 'id', at.id, 'missing', at.missing, 'error', at.error))"
    )
    values = {name: name for name in COLUMNS}
    later = f"greatest({timestamp(_now())}, timestamp_micros(unix_micros(merged_at) + 1))"  # of all clocks
    values |= {"merged_at": later, "tables": tables}
    _insert(
        spark,
        config,
        f"INSERT INTO {cuts_table(config)} ({', '.join(values)}) SELECT {', '.join(values.values())}"
        f" FROM {cuts_table(config)} WHERE source = {text(config.source.name)} AND manifest = {manifest}"
        " ORDER BY exact DESC, merged_at DESC LIMIT 1",
    )


def create_cuts(spark: SparkSession, config: Config) -> None:
    """Create the control table if it does not exist, and no other job creates it now."""
    create_own_table(spark, config, cuts_table(config), CUTS_PATH, COLUMNS)


def left_frontiers(spark: SparkSession, config: Config) -> Frontiers:
    """Return the frontiers in the table of cuts that `create_cuts` found in ``lake.location``.

    A catalog that drops an external table leaves its files; without a location, nothing is read.
    """
    has_folder = lake_folder(config, CUTS_PATH) is not None
    return read_frontiers(spark, config) if has_folder else Frontiers()


def cuts(spark: SparkSession, config: Config) -> DataFrame:
    """Return all cuts of the configured source, newest first; columns as `COLUMNS`, and `gone`.

    There is one row per manifest: an exact one if possible, since an overtaken job may record the same
    manifest later, with tables that are ahead; of these the newest, since older ones may name versions that
    are gone.

    `gone` names the tables whose version in the cut ``deltatide maintain`` has given up. Unless it is empty,
    the cut can't be read anymore.

    An `exact` row was the state of all tables at one position of the source when it was merged: each at
    version ``tables[name].version`` of the Delta table with id ``tables[name].id``, in the columns, masks and
    rows that the job was configured with. A Delta table that was since dropped, replaced or restored from an
    older copy may have other rows in that version, or none: read cuts with `merge.as_of`, which then refuses.
    """
    try:
        frame = spark.table(cuts_table(config))
        frame.schema  # noqa: B018 - Spark Connect looks for the table only now
        of_source = frame.where(f"source = {text(config.source.name)}")
        best_first = Window.partitionBy("manifest").orderBy(F.desc("exact"), F.desc("merged_at"))
        ranked = of_source.withColumn("rank", F.row_number().over(best_first))
        best = ranked.where("rank = 1").drop("rank")
        return with_gone(spark, config, best).orderBy("manifest", ascending=False)
    except AnalysisException as error:
        if is_missing(error):
            columns = COLUMNS | {"gone": "array<string>"}
            return local_rows(spark, columns, [])
        raise


def _now() -> datetime:
    return datetime.now(timezone.utc)
