"""Reads the landing zone with Spark: manifests, schemas, and the events of exactly named files.

Invariants:

- The manifests after a frontier are of one source and have no holes; none has a newer format. With nothing
  merged yet, old ones may be gone; then a table starts at a full dump (`merge.plan`), or fails, naming one.
- Data is never listed: a file is read only because a manifest names it, with the schema named there.
- Cached manifests may have been compacted since: they expire long before the files they name are removed.
- A file is read exactly as it was written, or not at all: its size is compared first, since Spark silently
  skips an empty file, and the checksums of its pages are verified.
"""

from __future__ import annotations

import re
import threading
import time
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import ConfigurationError, FormatError, GapError, TableError
from connector.landing.column_names import ColumnNames
from connector.landing.format import (
    BEFORE,
    CDC,
    COMPACTION,
    DATA,
    MANIFESTS,
    MANIFESTS_PER_FOLDER,
    RETENTION,
    block_of,
    compacted_path,
    manifest_folder,
    manifest_path,
    schema_path,
    state_path,
)
from connector.landing.manifest import LandedFile, Manifest, TableState
from connector.landing.manifest_object import (
    CompactionProgress,
    LandingState,
    Retained,
    first_missing,
    parse_compacted,
    require_one_source,
)
from connector.schema import TableName, TableSchema
from merge.columns.landed_files import (
    CDC_TYPE,
    NAMED_CDC_TYPE,
    WHOLE,
    Columns,
    in_columns,
    no_events,
    read_files,
    types_of,
)
from merge.columns.projection import Projection, projections_of
from merge.lake.retry import UNEXPECTED, UNREAD, unread_hint
from merge.reading.stored_manifests import Folder, States, merged_files, state_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from merge.shapes.before_images import OldRows

MISSING = (
    *("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE"),
    *("DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND"),
)
"""Conditions by which Spark and Delta report that a path or table does not exist."""

CACHED_SECONDS: float = 6 * 3600
"""How long manifests are cached; files that were compacted stay for a day."""

DAMAGED_HINT = "restore it from a copy; or dump the table in full: the merge after that reads no older file"

COMPARED_AT_ONCE = 1000
"""Up to this many files, sizes are compared once for all tables; beyond, table by table."""

_MANIFEST = re.compile(r"\d{15}\.json")
_READ = r"^\d{15}(\.compacted)?\.json$"


def spark_url(url: str) -> str:
    """Format a url for Spark's file systems: S3 is ``s3a``."""
    return "s3a://" + url.removeprefix("s3://") if url.startswith("s3://") else url


class LandingZone:
    """One source's folder in the landing zone. Caches what it has read, since none of it changes soon.

    Threads may share it. Keys, layouts and events of tables are as their targets have them (`projections`).
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        source: str,
        projections: Mapping[TableName, Projection] | None = None,
    ) -> None:
        self.root = f"{spark_url(url).rstrip('/')}/{source}"
        self._projections = projections or {}
        self._column_names: dict[TableName, tuple[int, ColumnNames | None]] = {}
        self._spark = spark
        self._manifests: dict[int, Manifest] = {}
        self._damaged: dict[int, FormatError] = {}
        self._first_read: list[Manifest] = []  # one; all others are of the same database
        self._cached_at = time.monotonic()
        self._states_read: dict[str, LandingState] = {}
        self._intact: set[str] = set()
        self.first_kept = 0
        """The first manifest from which all are kept, known once one was missing; else 0."""
        self._schemas: dict[str, TableSchema] = {}
        self._reading = threading.RLock()

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> LandingZone:
        """Return the configured landing zone."""
        return cls(spark, config.landing.url, config.source.name, projections_of(config))

    def projection(self, table: TableName) -> Projection | None:
        """Return a table's projection; None: its target has all rows and columns as they are."""
        return self._projections.get(table)

    def read_by(self, spark: SparkSession) -> LandingZone:
        """Return this landing zone for another session; both share the cache."""
        other = copy(self)
        other._spark = spark
        return other

    def newest(self, after: int, until: int | None = None) -> int:
        """Read the manifests after number `after`, up to `until` at most, and return the last one's number.

        Returns `after` if there is none. `GapError` if one is missing, `FormatError` if one is damaged, or of
        a newer format. From 0, those before the last hole are not read.
        """
        if time.monotonic() - self._cached_at > CACHED_SECONDS:
            self._manifests, self._cached_at = {}, time.monotonic()
        first = after or max(self._begin_of_last_run(until), self._read_first_kept())
        found = self._read(first, until)
        if first_missing(found, first, after):
            # Listing a local folder while two manifests are added may show only the later one.
            found = self._read(first, until)
        if (hole := first_missing(found, first, after)) is not None and hole < self._read_first_kept():
            found = self._read(self.first_kept, until)  # `merge.plan` begins with the last full dump
            hole = first_missing(found, self.first_kept, self.first_kept)
        if damaged := [n for n in self._damaged if n >= first and (until is None or n <= until)]:
            raise self._damaged[min(damaged)]
        if hole is not None:
            raise GapError(
                f"manifest {hole} is missing in {self.root}",
                hint="restore it: without the files it lists, no table can be merged further",
            )
        self._manifests.update(found)
        return max(found, default=after)

    def is_removed(self, number: int) -> bool:
        """Return whether a manifest is older than those kept; read the record if that is unknown."""
        return number < (self.first_kept or self._read_first_kept())

    def is_known_removed(self, number: int) -> bool:
        """Return whether a manifest is known to be removed, without reading anything."""
        return number < self.first_kept

    def _read_first_kept(self) -> int:
        """Read the number of the first manifest from which all are kept."""
        for file, text in self.texts([f"{self.root}/{RETENTION}"]):
            self.first_kept = Retained.from_json(text, file).first
        return self.first_kept

    def _begin_of_last_run(self, until: int | None) -> int:
        """Return the first manifest after the last hole up to `until`; 1 if there is none."""
        numbers = {n for n in self._numbers() if until is None or n <= until}
        return max((n for n in numbers if n - 1 not in numbers), default=1)

    def _numbers(self) -> set[int]:
        """List the numbers of all manifests."""
        names = (name.rpartition("/")[2] for name in self._names(f"{MANIFESTS}/*/"))
        return {int(name.removesuffix(".json")) for name in names if _MANIFEST.fullmatch(name)}

    def get(self, number: int) -> Manifest:
        """Return one manifest that must exist; reads its whole block, since plans go back and forth.

        `GapError` if it is gone, or damaged.
        """
        if number not in self._manifests:  # try without the lock first: every plan gets every manifest
            with self._reading:
                if number not in self._manifests:
                    self._manifests.update(self._read(*block_of(number)))
        try:
            return self._manifests[number]
        except KeyError:
            raise GapError(
                str(self._damaged.get(number, f"manifest {number} is missing in {self.root}")),
                hint="restore it, since its log must be read again; or dump the tables that need it in full:"
                " once the dump has ended, they continue from it",
            ) from None

    def load(self, first: int, last: int) -> None:
        """Read the manifests that will be needed, folder by folder, except for cached ones."""
        with self._reading:
            unknown = [number for number in range(first, last + 1) if number not in self._manifests]
            if unknown:
                self._manifests.update(self._read(unknown[0], unknown[-1]))

    def check_end(self, upto: int | None) -> None:
        """Refuse to read up to a manifest within a compacted block whose original files are removed.

        None: up to the newest, which is never within such a block.
        """
        if upto is None:
            return
        first, last = block_of(upto)
        texts = self.texts([f"{self.root}/{COMPACTION}"]) if upto < last else []
        removing = [CompactionProgress.from_json(text, file).removing for file, text in texts]
        if max(removing, default=0) < last:
            return
        path = f"{self.root}/{compacted_path(last)}"
        if any(parse_compacted(text, path).tables for _, text in self.texts([path])):
            raise ConfigurationError(
                f"manifests {first} to {last} of {self.root} were compacted:"
                f" the state after manifest {upto} can no longer be read",
                hint=f"choose manifest {last} or a later one",
            )

    def forget(self, before: int) -> None:
        """Drop from memory the manifests that are rarely needed again."""
        self._manifests = {n: m for n, m in self._manifests.items() if n >= before}
        self._intact.clear()
        older = sorted(path for path in self._states_read if path < state_path(before + 1, ""))
        for path in older[:-1]:  # manifests that are kept may name the last one
            del self._states_read[path]

    def _read(self, first: int, last: int | None) -> dict[int, Manifest]:
        found: dict[int, Manifest] = {}
        folder = first // MANIFESTS_PER_FOLDER
        while last is None or folder * MANIFESTS_PER_FOLDER <= last:
            found.update(self._read_folder(folder, first, last))
            if max(found, default=first - 1) < (folder + 1) * MANIFESTS_PER_FOLDER - 2:
                break  # if only its last one is missing, the next folder shows whether that is a hole
            folder += 1
        return found

    def _read_folder(self, folder: int, first: int, last: int | None) -> dict[int, Manifest]:
        """Read the wanted manifests of one folder by name, without opening the others.

        Also read the records of compacted blocks.
        """
        name = F.col("_metadata.file_name")
        wanted = (name >= f"{first:015d}") & name.rlike(_READ)
        if last is not None:
            wanted &= name <= manifest_path(last).rpartition("/")[2]
        path = f"{self.root}/{manifest_folder(folder * MANIFESTS_PER_FOLDER)}"
        read = Folder.parsed(dict(self.texts([path], wanted)))
        found = {number: self._named(manifest) for number, manifest in read.whole(self._states).items()}
        for number in found.keys() & self._damaged.keys():  # it was restored
            del self._damaged[number]
        self._damaged.update(read.damaged)
        require_one_source([*self._first_read, *found.values()], self.root)
        self._first_read = self._first_read or [*found.values()][:1]
        return found

    def _named(self, manifest: Manifest) -> Manifest:
        """Rename key columns to their targets' names; note columns' names, of which the newest knows all."""
        renamed: dict[TableName, TableState] = {}
        for table, projection in self._projections.items():
            if (known := manifest.tables.get(table)) is not None:
                if manifest.number >= self._column_names.get(table, (0, None))[0]:
                    self._column_names[table] = manifest.number, known.column_names
                renamed[table] = known.changed(key=list(projection.key(known.key)))
        tables = ChainMap(renamed, manifest.tables)  # type: ignore[arg-type]
        return manifest.model_copy(update={"tables": tables}) if renamed else manifest

    def _states(self, paths: Sequence[str]) -> States:
        """Read state objects that manifests name, all at once."""
        with self._reading:
            new = [path for path in paths if path not in self._states_read]
            texts = dict(self.texts([f"{self.root}/{path}" for path in new])) if new else {}
            if len(texts) < len(new):  # one that is gone keeps Spark from reading any
                texts = dict(text for path in new for text in self.texts([f"{self.root}/{path}"]))
            read = {path: state_of(texts.get(path.rpartition("/")[2]), path, self.root) for path in new}
            self._states_read.update({p: s for p, s in read.items() if isinstance(s, LandingState)})
            return {**read, **{p: self._states_read[p] for p in paths if p not in read}}

    def texts(self, paths: Sequence[str], wanted: Column | None = None) -> list[tuple[str, str]]:
        """Return file names and contents of whole files; nothing if the folder does not exist."""
        try:
            frame = self._spark.read.options(**WHOLE).text(list(paths), wholetext=True)
            frame = frame.select(F.col("_metadata.file_name").alias("file"), "value", "_metadata")
            frame = frame if wanted is None else frame.where(wanted)
            return [(row["file"], row["value"]) for row in frame.select("file", "value").collect()]
        except AnalysisException as error:
            if is_missing(error):
                return []
            raise

    def exists(self, pattern: str) -> bool:
        """Return whether an object, or a folder with objects, matches a name with ``*`` in it.

        Opens none of them: they may be removed at any moment.
        """
        return bool(self._names(pattern))

    def _names(self, pattern: str) -> list[str]:
        """Return the urls of the objects that match a pattern, or are in a folder that does."""
        try:
            return self._spark.read.text(f"{self.root}/{pattern}").inputFiles()
        except AnalysisException as error:
            if is_missing(error):
                return []
            raise

    def write(self, path: str, text: str, *, overwrite: bool = False) -> None:
        """Write one line of text to an object of this name, as Spark does: a folder with one part."""
        frame = self._spark.range(1, numPartitions=1).select(F.lit(text).alias("value"))
        mode = "overwrite" if overwrite else "error"
        # The agent reads plain text; a cluster may compress by default.
        frame.write.mode(mode).option("compression", "none").text(f"{self.root}/{path}")

    def schemas(self, wanted: Iterable[tuple[TableName, str]]) -> dict[str, TableSchema]:
        """Read the schema objects of ``(table, schema id)`` at once; return layouts by these ids.

        `TableError` for a layout that does not fit the configuration.
        """
        ids = self._read_schemas(wanted)
        for table, id_ in ids:
            if id_ not in self._schemas:
                raise TableError(table, f"schema {id_} is missing in {self.root}")
        return {id_: self._projected(self._schemas[id_]) for _, id_ in ids}

    def _read_schemas(self, wanted: Iterable[tuple[TableName, str]]) -> Collection[tuple[TableName, str]]:
        ids = dict.fromkeys(wanted)
        with self._reading:
            paths = dict.fromkeys(self._schema_path(*pair) for pair in ids if pair[1] not in self._schemas)
            read = self.texts(list(paths)) if paths else []
            # All or none: masks are checked against all layouts of a table.
            self._schemas.update({f.removesuffix(".json"): TableSchema.from_json(text) for f, text in read})
        return ids

    def check_settings(self, table: TableName, schema_id: str | None) -> None:
        """Refuse settings that don't fit a table's layout, before anything is built with them."""
        if schema_id is not None and (projection := self._projections.get(table)) is not None:
            self.schemas([(table, schema_id)])
            landed = self._schemas[schema_id]
            projection.check_names(self._layouts(table))
            projection.frame(no_events(self._spark, {**types_of(landed), CDC: CDC_TYPE}), landed, landed)

    def _schema_path(self, table: TableName, id_: str) -> str:
        """Return the path of a layout; of a table with a projection, the folder of all its layouts."""
        path = schema_path(table, id_)
        return f"{self.root}/{path.rpartition('/')[0] if table in self._projections else path}"

    def _layouts(self, table: TableName) -> list[TableSchema]:
        return [schema for schema in list(self._schemas.values()) if schema.table == table]

    def _projected(self, schema: TableSchema) -> TableSchema:
        table, projection = schema.table, self._projections.get(schema.table)
        _, names = self._column_names.get(table, (0, None))
        return schema if projection is None else projection.schema(schema, self._layouts(table), names)

    def events(
        self,
        files: Sequence[LandedFile],
        schemas: Mapping[str, TableSchema],
        columns: Columns,
        *,
        named: bool = False,
        old: OldRows | None = None,
    ) -> DataFrame:
        """Read events as `columns` and the landed `_cdc`; a column that a file lacks is null.

        `schemas`: layouts by id, the newest first. Rows are in no particular order. Without files the frame
        is empty. `named`: `_cdc.file` is the name of the event's file. `old`: with before-images.
        `TableError` for a file that is not as it was written.
        """
        self._require_intact(files)
        groups: dict[str, list[str]] = {}
        for file in files:
            groups.setdefault(file.schema_id, []).append(f"{self.root}/{file.path}")
        if not groups:
            before = {} if old is None else {BEFORE: old.type}
            return no_events(self._spark, {**columns, CDC: NAMED_CDC_TYPE if named else CDC_TYPE, **before})

        def events_of(id_: str) -> DataFrame:
            projection = self._projections.get(schemas[id_].table)
            if projection is None:
                found = read_files(self._spark, groups[id_], schemas[id_], named=named, old=old)
                return in_columns(found, schemas[id_], columns, old)
            landed, newest = (self._schemas[known] for known in (id_, next(iter(schemas))))
            found = read_files(self._spark, groups[id_], landed, named=named)
            return in_columns(projection.frame(found, landed, newest), schemas[id_], columns, old)

        return reduce(lambda one, other: one.unionByName(other), map(events_of, groups))

    def read_ahead(self, after: int) -> None:
        """Compare sizes and read layouts of the files in manifests after `after`; `schemas` reads others."""
        files = merged_files(m for number, m in sorted(self._manifests.items()) if number > after)
        with suppress(AnalysisException):
            self._intact.update(self._of_known_size(files if len(files) <= COMPARED_AT_ONCE else []))
        with suppress(AnalysisException, FormatError, *UNEXPECTED):
            self._read_schemas((file.table, file.schema_id) for file in files)

    def _require_intact(self, files: Sequence[LandedFile]) -> None:
        unknown = [file for file in files if file.path not in self._intact]
        if not unknown:
            return
        try:
            self._intact.update(self._of_known_size(unknown))
            damaged = [file for file in unknown if file.path not in self._intact]
        except AnalysisException as error:
            if not is_missing(error):
                raise
            damaged = [file for file in unknown if not self.exists(file.path)]
        if damaged:
            raise TableError(
                unknown[0].table,
                f"landing file {self.root}/{damaged[0].path} is missing or not as it was written",
                hint="verify again" if damaged[0].kind == "verify" else DAMAGED_HINT,
            )

    def hint_for(self, error: Exception) -> str | None:
        """Return a hint if an error is about a landing file that Spark could not read, else None."""
        text, folder = str(error), f"{self.root.removeprefix('file://')}/{DATA}/"
        return unread_hint(error, DAMAGED_HINT) if UNREAD.search(text) and folder in text else None

    def _of_known_size(self, files: Collection[LandedFile]) -> set[str]:
        """Return the paths of the files whose size is the one in their manifest."""
        if not files:
            return set()
        read = self._spark.read.format("binaryFile").options(**WHOLE)
        rows = read.load([f"{self.root}/{file.path}" for file in files]).select("path", "length").collect()
        sizes = {row["path"].rpartition("/")[2]: row["length"] for row in rows}
        return {file.path for file in files if sizes.get(file.path.rpartition("/")[2]) == file.bytes}


def is_missing(error: AnalysisException) -> bool:
    """Return whether Spark reports that a path or table does not exist."""
    before_spark_4 = not hasattr(error, "getCondition")
    condition = error.getErrorClass if before_spark_4 else error.getCondition
    return (condition() or "") in MISSING
