"""The data source ``deltatide``: one table's changes as they landed, in streaming and batch queries. Spark 4.

::

    spark.dataSource.register(DeltatideSource)
    changes = spark.readStream.format("deltatide")
    changes.option("config", "shop.toml").option("table", "public.orders").option("consumer", "loader").load()

A row is an event: the columns of the table's newest layout when the frame is created, with the types that a
merge gives them, and `_cdc` as it landed. Spark runs Python data sources in separate Python processes, which
can't use Spark. So only these read the landing zone with `connector.reading` and the store's client.

Offsets, and why each change is read once: `connector.reading.change_log`. The process that plans a query
keeps the rate limits. It learns the query's offset from the ranges that Spark asks it to plan: after a
restart, first the empty one at the end of the last batch. That batch may not be processed yet: then it is
planned next, the first one of all from `initialOffset` on, since Spark keeps only ends. With the trigger
``availableNow``, Spark asks for the end once per run, so each run is one batch: the first within the limits,
a later one with all that has landed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from connector.config import LandingConfig, load
from connector.errors import ConfigurationError, DeltatideError, TableError
from connector.landing.consumers import slot_due
from connector.landing.format import CDC
from connector.reading.change_log import Offset
from connector.reading.table_changes import NEWEST, Files, OpenChanges, TableChanges
from connector.schema import TableSchema, fold
from merge.columns.landed_files import CDC_TYPE, schema_ddl
from merge.lake.schema import wider
from merge.lake.target import check_sections, table_name
from merge.shapes.before_images import CDC_TYPE as OLD_CDC_TYPE
from merge.shapes.before_images import OldRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


IDLE_CHECK_SECONDS = 60.0
"""How often a query that finds nothing new looks whether the landing zone is still the same one."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    config: Path | None = None
    landing: str | None = None
    source: str | None = None
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    dumps: bool = False
    after: str | None = None
    upto: str | None = None
    consumer: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    max_manifests: int | None = Field(default=None, ge=1)
    max_rows: int | None = Field(default=None, ge=1)

    def changes(self) -> TableChanges:
        """Open the changes that a configuration, or a landing zone and a source, name."""
        options = self.model_dump(
            include={"landing", "source", "endpoint", "region", "path_style"}, exclude_none=True
        )
        table = table_name(self.table)
        if self.config is not None and not options:
            config = load(self.config)
            check_sections(config, [table])
            if config.table(table).narrows:
                raise ConfigurationError(
                    f"{table.section} selects, renames, masks or filters, which this data source does not",
                    hint="to read the table as it landed, name landing and source instead of config",
                )
            return TableChanges(config.landing, config.source.name, table, self.dumps)
        if self.config is not None or not {"landing", "source"} <= options.keys():
            raise ConfigurationError(
                "the landing zone is not named", hint="set the option config, or both landing and source"
            )
        source = options.pop("source")
        landing = LandingConfig.model_validate({"url": options.pop("landing"), **options})
        return TableChanges(landing, source, table, self.dumps)

    def refuse(self, *names: str, query: str) -> None:
        """Refuse options that this kind of query does not have."""
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigurationError(f"a {query} query has no option {name}", hint="leave it out")


@contextmanager
def _explained() -> Iterator[None]:
    """Add the hint to our errors' text: Spark shows nothing else of them."""
    try:
        yield
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        option = ".".join(map(str, wrong["loc"]))
        raise ConfigurationError(f"option {option}: {wrong['msg']}") from None
    except DeltatideError as error:
        raise DeltatideError(f"{error}; hint: {error.hint}" if error.hint else str(error)) from error


class DeltatideSource(DataSource):
    """The data source; docs/streaming.md lists its options."""

    _changes: TableChanges
    _layout: TableSchema

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "deltatide"

    @_explained()
    def schema(self) -> str:
        """Return the columns of the table's newest layout, `_cdc`, and `_before` if it lands.

        This frame keeps them.
        """
        self._changes = self._given.changes()
        self._layout = self._changes.open().layout()
        columns = {column.name: column.type for column in self._layout.columns}
        old = OldRows({**columns, CDC: OLD_CDC_TYPE}).landed(self._layout)
        return ", ".join([schema_ddl({**columns, CDC: CDC_TYPE}), *old])

    @_explained()
    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query."""
        self._given.refuse("consumer", "max_manifests", "max_rows", query="batch")
        return BatchReader(self._read, self._given.after, self._given.upto)

    @_explained()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        given = self._given
        given.refuse("upto", query="streaming")
        if given.consumer is None:
            raise ConfigurationError(
                "the option consumer is missing",
                hint="name the query, each by a name of its own, so that what it has yet to read is kept",
            )
        return StreamReader(self._read, given.consumer, given.after, given.max_manifests, given.max_rows)

    @property
    def _given(self) -> _Options:
        return _Options.model_validate({name.lower(): value for name, value in self.options.items()})

    @property
    def _read(self) -> Rows:
        if not hasattr(self, "_layout"):
            raise ConfigurationError("the columns are the table's own", hint="leave out .schema(...)")
        return Rows(self._changes, self._layout)


class Partition(InputPartition):
    """What one task reads."""

    def __init__(self, files: Files) -> None:
        self.files = files


@dataclass(frozen=True)
class Rows:
    """Plans and reads the changes between two offsets, in the columns of one layout."""

    changes: TableChanges
    layout: TableSchema

    def partitions(self, opened: OpenChanges, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide a read among tasks; `TableError` if a layout's types can't become today's."""
        groups = opened.files(start, end)
        for group in groups:
            for landed in group.layouts.values():
                self._require_fit(landed)
        return [Partition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        if isinstance(partition, Partition):  # Spark passes None where there is nothing to read
            with _explained():
                yield from self.changes.rows(partition.files, self.layout)

    def _require_fit(self, landed: TableSchema) -> None:
        wanted = {fold(column.name): column.type for column in self.layout.columns}
        for column in landed.columns:
            type_ = wanted.get(fold(column.name), column.type)
            if wider(column.type, type_) != type_:
                raise TableError(
                    self.changes.table,
                    f"column {column.name!r} landed as {column.type}, and is {type_} in this query",
                    hint="start the query again if its layout is the older one; else start after the change,"
                    " with the option after and a new checkpoint",
                )


class BatchReader(DataSourceReader):
    """Reads the changes after a manifest up to another, by default the newest at each query."""

    def __init__(self, rows: Rows, after: str | None, upto: str | None) -> None:
        self._rows, self._after, self._upto = rows, after, upto

    @_explained()
    def partitions(self) -> list[InputPartition]:
        """Plan what each task reads."""
        opened = self._rows.changes.open()
        start = opened.after(self._after)
        end = opened.after(self._upto) if self._upto else opened.log.end(start)
        if end.manifest < start.manifest:
            raise ConfigurationError(
                f"upto is manifest {end.manifest}, before after, which is manifest {start.manifest}",
                hint="swap the options",
            )
        return self._rows.partitions(opened, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        return self._rows.read(partition)


@dataclass
class StreamReader(DataSourceStreamReader):
    """Reads the changes after an offset, and records in the landing zone how far it is.

    The process that plans the query uses it; stateless copies read in the tasks.
    """

    _rows: Rows
    _consumer: str
    _after: str | None
    _max_manifests: int | None
    _max_rows: int | None
    _at: Offset | None = None
    _checked: bool = False
    _recorded: tuple[datetime, int] | None = None
    _opened: OpenChanges | None = field(default=None, repr=False)
    _idle_checked: float = -math.inf
    _started: Offset | None = None
    _newest: Offset | None = None

    @_explained()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query starts whose first batch was not processed yet, and register it."""
        return self._begin().to_dict()

    @_explained()
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch may read."""
        opened = self._open()
        if self._at is None and self._recorded is None and opened.recorded(self._consumer) is not None:
            return self._newest_at_first().to_dict()
        at = self._at or self._begin()
        newest = opened.log.end(at, self._max_manifests, self._max_rows)
        if newest == at and time.monotonic() - self._idle_checked > IDLE_CHECK_SECONDS:
            opened.log.check_unreplaced(at)  # else it would wait until the new one has as many manifests
            self._idle_checked = time.monotonic()
        return newest.to_dict()

    @_explained()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Plan a batch; the same offsets give the same rows."""
        begin, until = Offset.from_dict(start), Offset.from_dict(end)
        opened = self._open()
        if not self._checked:  # an earlier process may have started the query
            opened.log.check(begin)
            opened.log.check_unreplaced(until)
            self._checked = True
        elif begin != until:  # the landing zone may have been replaced since
            opened.log.check_unreplaced(begin)
        if until.manifest < begin.manifest:  # Spark asked for the end before it said where the query is
            raise ConfigurationError(
                f"the query is at manifest {begin.manifest}, and the consumer {self._consumer!r}, a new or"
                f" forgotten one, at {until.manifest}",
                hint=f"start the query with a new checkpoint, and the option after={begin.manifest}",
            )
        if self._recorded is None and begin != until:  # else the batch up to there may come next
            self._record(begin)
        self._at = until
        return self._rows.partitions(opened, begin, until)

    @_explained()
    def commit(self, end: Mapping[str, Any]) -> None:
        """Record that everything up to an offset was processed."""
        offset = Offset.from_dict(end)
        if self._at is None or self._at.manifest < offset.manifest:
            self._at = offset
        if slot_due(self._recorded, (datetime.now(timezone.utc), offset.manifest)) is not None:
            self._record(offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        return self._rows.read(partition)

    def _begin(self) -> Offset:
        """Return where the query starts; from then on, the landing zone keeps everything after it.

        Spark may ask before and after the first end, and again if the first batch was not processed.
        """
        if self._started is None:
            self._started = self._start()
        if self._recorded is None:
            self._record(self._started)
        return self._started

    def _start(self) -> Offset:
        if self._after != NEWEST:
            return self._open().after(self._after)
        begun = None if self._at is None else self._open().recorded(self._consumer)
        return self._newest_at_first() if begun is None else self._open().log.after(begun)

    def _newest_at_first(self) -> Offset:
        """Return the newest offset as of when it was first asked for: a start must not be after the end."""
        if self._newest is None:
            self._newest = self._open().after(NEWEST)
        return self._newest

    def _record(self, offset: Offset) -> None:
        self._open().record(self._consumer, offset)
        self._recorded = datetime.now(timezone.utc), offset.manifest

    def _open(self) -> OpenChanges:
        if self._opened is None:
            self._opened = self._rows.changes.open()
        return self._opened
