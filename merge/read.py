"""Reads the landing zone with Spark: manifests, schemas, and the events of exactly named files.

Invariants:

- The manifests it gives form a chain without a hole, none of a newer format.
- Data is never listed: a file is read because a manifest names it, with the schema that the manifest names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from connector.errors import GapError, TableError
from connector.landing import (
    CDC,
    CDC_FIELDS,
    MANIFESTS_PER_FOLDER,
    manifest_folder,
    manifest_path,
    schema_path,
)
from connector.manifest import LandedFile, Manifest
from connector.schema import TableName, TableSchema
from merge.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CDC_TYPE = "struct<" + ",".join(f"{name}:{type_}" for name, type_ in CDC_FIELDS) + ">"

BLOCK = 100
"""Manifests read at once when walking back; a merge with chunks seldom needs more."""

Columns = Mapping[str, str]
"""Names of a table's columns in order, with their Spark SQL types."""


def spark_url(url: str) -> str:
    """Spell a place as Spark's file systems do: S3 is ``s3a``."""
    return "s3a://" + url.removeprefix("s3://") if url.startswith("s3://") else url


class LandingZone:
    """One source's folder in the landing zone. Keeps what it has read, as none of it ever changes."""

    def __init__(self, spark: SparkSession, url: str, source: str) -> None:
        self.root = f"{spark_url(url).rstrip('/')}/{source}"
        self._spark = spark
        self._manifests: dict[int, Manifest] = {}
        self._schemas: dict[str, TableSchema] = {}

    def newest(self, after: int, until: int | None = None) -> int:
        """Read the manifests after number `after`, at most up to `until`, and give the last one's number.

        Gives `after` when there is none. `GapError` when one is missing, `FormatError` for a newer format.
        """
        found = self._read(max(after, 1), until)
        if _hole(found, max(after, 1)):
            # A local folder may be listed while two manifests are being added: the later one, not the former.
            found = self._read(max(after, 1), until)
        if (hole := _hole(found, max(after, 1))) is not None:
            raise GapError(
                f"manifest {hole} is missing in {self.root}",
                hint="bring it back; nothing is merged past it, as what it names can't be known",
            )
        self._manifests.update(found)
        return max(found, default=after)

    def get(self, number: int) -> Manifest:
        """Give one manifest that is known to exist; reads some before it along with it."""
        if number not in self._manifests:
            self._manifests.update(self._read(max(1, number - BLOCK + 1), number))
        try:
            return self._manifests[number]
        except KeyError:
            raise GapError(
                f"manifest {number} is missing in {self.root}", hint="bring it back, its log is needed again"
            ) from None

    def forget(self, before: int) -> None:
        """Drop manifests that are seldom needed again from memory."""
        self._manifests = {n: m for n, m in self._manifests.items() if n >= before}

    def _read(self, first: int, last: int | None) -> dict[int, Manifest]:
        found: dict[int, Manifest] = {}
        folder = first // MANIFESTS_PER_FOLDER
        while last is None or folder * MANIFESTS_PER_FOLDER <= last:
            found.update(self._read_folder(folder, first, last))
            if (folder + 1) * MANIFESTS_PER_FOLDER - 1 not in found:
                break
            folder += 1
        return found

    def _read_folder(self, folder: int, first: int, last: int | None) -> dict[int, Manifest]:
        """Read the wanted manifests of one folder; by name, so that the others are not opened."""
        name = F.col("_metadata.file_name")
        wanted = (name >= _file_name(first)) & name.rlike(r"^\d{15}\.json$")
        if last is not None:
            wanted &= name <= _file_name(last)
        path = f"{self.root}/{manifest_folder(folder * MANIFESTS_PER_FOLDER)}"
        texts = self._texts([path], wanted)
        read = (Manifest.from_json(text, f"manifest {file}") for file, text in texts)
        return {manifest.number: manifest for manifest in read}

    def _texts(self, paths: Sequence[str], wanted: Column | None = None) -> list[tuple[str, str]]:
        """Give file names and contents of whole files; nothing for a folder that is not there."""
        try:
            frame = self._spark.read.text(list(paths), wholetext=True)
            frame = frame.select(F.col("_metadata.file_name").alias("file"), "value", "_metadata")
            frame = frame if wanted is None else frame.where(wanted)
            return [(row["file"], row["value"]) for row in frame.select("file", "value").collect()]
        except AnalysisException as error:
            if is_missing(error):
                return []
            raise

    def exists(self, pattern: str) -> bool:
        """Tell whether there is an object, or a folder with objects, of a name with ``*`` in it."""
        try:
            return not self._spark.read.text(f"{self.root}/{pattern}").isEmpty()
        except AnalysisException as error:
            if is_missing(error):
                return False
            raise

    def schemas(self, wanted: Iterable[tuple[str, str]]) -> dict[str, TableSchema]:
        """Read the schema objects of ``(table, schema id)``, all in one go; give them by id."""
        ids = dict.fromkeys(wanted)
        new = [pair for pair in ids if pair[1] not in self._schemas]
        if new:
            paths = [f"{self.root}/{schema_path(TableName.parse(table), id_)}" for table, id_ in new]
            for file, text in self._texts(paths):
                self._schemas[file.removesuffix(".json")] = TableSchema.from_json(text)
        for table, id_ in ids:
            if id_ not in self._schemas:
                raise TableError(table, f"schema {id_} is missing in {self.root}")
        return {id_: self._schemas[id_] for _, id_ in ids}

    def events(
        self, files: Sequence[LandedFile], schemas: Mapping[str, TableSchema], columns: Columns
    ) -> DataFrame:
        """Read events, as `columns` and the landed `_cdc`; a column that a file does not have is null there.

        Rows come in no order. Without files the frame is empty.
        """
        groups: dict[str, list[str]] = {}
        for file in files:
            groups.setdefault(file.schema_id, []).append(f"{self.root}/{file.path}")
        if not groups:
            return self._spark.createDataFrame([], ddl({**columns, CDC: CDC_TYPE}))
        frames = [self._group(paths, schemas[id_], columns) for id_, paths in groups.items()]
        joined = frames[0]
        for frame in frames[1:]:
            joined = joined.unionByName(frame)
        return joined

    def _group(self, paths: list[str], schema: TableSchema, columns: Columns) -> DataFrame:
        landed = {column.name: column.type for column in schema.columns}
        frame = self._spark.read.schema(ddl({**landed, CDC: CDC_TYPE})).parquet(*paths)
        return frame.select(*_selected(landed, columns), CDC)


def _selected(landed: Columns, columns: Columns) -> Iterator[Column]:
    for name, type_ in columns.items():
        if landed.get(name) == type_:
            yield F.col(quoted(name))
        else:
            value = F.col(quoted(name)) if name in landed else F.lit(None)
            yield value.cast(type_).alias(name)


def ddl(columns: Columns) -> str:
    """Spell columns as the schema of a frame."""
    return ", ".join(f"{quoted(name)} {type_}" for name, type_ in columns.items())


def is_missing(error: AnalysisException) -> bool:
    """Tell whether Spark complains that a path or table is not there."""
    return (error.getCondition() or "") in (
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_NOT_FOUND",
    )


def _file_name(number: int) -> str:
    return manifest_path(number).rpartition("/")[2]


def _hole(found: Mapping[int, object], first: int) -> int | None:
    return next((n for n in range(first, max(found, default=first - 1) + 1) if n not in found), None)
