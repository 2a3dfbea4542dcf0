"""A source some of whose tables land only in part: wraps another source, and shows only what may land.

Invariant: every layout, batch and row of a table passes through `LandedColumns` here, so nothing downstream
can land, report or compare a value that is left out or masked. The conditions and keys of dumps are evaluated
by the source itself, and so can reveal such values: whoever may write requests could find one by trial.

Each class here forwards what it does not define to the object that it wraps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, cast

from connector.config import Config, SourceConfig, TableConfig
from connector.errors import RequestError, TableError, TransientError
from connector.landing.event_batch import Decoded, EventBatch, QuarantineNotice
from connector.logged_table import LoggedTable
from connector.masking.columns import LandedColumns
from connector.schema import KnownTables, TableComments, TableName, TableSchema
from connector.source import (
    CatalogSnapshot,
    Chunk,
    ChunkRows,
    Finding,
    KeyRange,
    LogReader,
    ResumePoint,
    Segment,
    Source,
    TableListing,
    TableReader,
)


class MaskedTables:
    """The tables that land only in part, by the newest configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def reconfigure(self, tables: Mapping[TableName, TableConfig]) -> None:
        """Replace the settings of tables; the salt stays."""
        self._config = self._config.model_copy(update={"tables": dict(tables)})

    def of(self, table: TableName) -> LandedColumns | None:
        """Return which columns of a table land; None: all."""
        return LandedColumns.of(self._config, table)

    def names(self) -> list[TableName]:
        """List the tables."""
        return [table for table in self._config.tables if self.of(table) is not None]

    def layout(self, schema: TableSchema) -> TableSchema:
        """Return the layout that lands; `TableError` if the settings don't fit it."""
        landed = self.of(schema.table)
        return schema if landed is None else landed.layout(schema)


def masked_source(source: Source, config: Config) -> Source:
    """Wrap a source if any of its tables is masked before landing."""
    return cast(Source, _MaskedSource(source, MaskedTables(config)))


class _Wrapper:
    def __init__(self, inner: Any, masked: MaskedTables) -> None:
        self._inner, self._masked = inner, masked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _MaskedSource(_Wrapper):
    def reconfigure(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        self._inner.reconfigure(config, tables)
        self._masked.reconfigure(tables)

    def check(self) -> list[Finding]:
        findings: list[Finding] = self._inner.check()
        known = {finding.table for finding in findings if finding.state == "failed"}
        if self._masked.names():
            try:
                listed = self.tables()
            except TransientError:  # a standby, as the findings say; a start checks again
                return findings
            concerned = [e for e in listed.unfit if self._masked.of(e.table) is not None]
            unfit = [problem for problem in concerned if problem.table not in known]
            findings += [Finding("masks", "failed", str(e), e.hint, e.table) for e in unfit]
        return findings

    def tables(self, among: Collection[TableName] | None = None) -> TableListing:
        listing: TableListing = self._inner.tables(among)
        schemas, unfit = [], list(listing.unfit)
        for schema in listing.schemas:
            try:
                schemas.append(self._masked.layout(schema))
            except TableError as error:
                unfit.append(error)
        return listing._replace(schemas=schemas, unfit=unfit)

    def check_catalog(self, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        found: CatalogSnapshot = self._inner.check_catalog(known)
        columns = {table: self._selected(table, names) for table, names in found.columns.items()}
        comments = {table: self._without_others(its) for table, its in found.comments.items()}
        return replace(found, columns=columns, comments=comments)

    def _without_others(self, found: TableComments) -> TableComments:
        """Leave out the comments of columns that don't land."""
        landed = self._masked.of(found.table)
        if landed is None:
            return found
        kept = {name: text for name, text in found.columns.items() if landed.settings.selects(name)}
        return replace(found, columns=kept)

    def _selected(self, table: TableName, names: frozenset[str]) -> frozenset[str]:
        landed = self._masked.of(table)
        return names if landed is None else frozenset(filter(landed.settings.selects, names))

    def open_log(self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None) -> LogReader:
        """Open the log. A layout as it landed names the source's types of masked columns, too.

        And traits are of all columns, also of those that don't land: the log has them.
        """
        log = self._inner.open_log(epoch, resume_point, known)
        return cast(LogReader, _MaskedLog(log, self._masked))

    def open_tables(self) -> TableReader:
        return cast(TableReader, _MaskedTableReader(self._inner.open_tables(), self._masked))


class _MaskedLog(_Wrapper):
    def take(self) -> Segment:
        return cast(Segment, _MaskedSegment(self._inner.take(), self._masked))

    def take_open(self) -> Segment | None:
        segment = self._inner.take_open()
        return None if segment is None else cast(Segment, _MaskedSegment(segment, self._masked))


class _MaskedSegment(_Wrapper):
    def decode(self) -> Iterator[Decoded]:
        """Decode; a table whose layout no longer fits its settings is quarantined from that event on."""
        quarantined: set[TableName] = set()
        for found in self._inner.decode():
            landed = self._masked.of(found.schema.table) if isinstance(found, EventBatch) else None
            if landed is None or not isinstance(found, EventBatch):
                yield found
            elif landed.table not in quarantined:
                try:
                    yield landed.batch(found)
                except TableError as error:
                    quarantined.add(landed.table)
                    yield QuarantineNotice(landed.table, found.first.lsn, error.reason, error.hint or "")


class _MaskedTableReader(_Wrapper):
    @contextmanager
    def open_chunk(self, table: TableName, key_range: KeyRange, where: str | None = None) -> Iterator[Chunk]:
        with self._inner.open_chunk(table, key_range, where) as chunk:
            yield self._chunk(chunk)

    @contextmanager
    def open_keys(self, table: TableName, keys: Any) -> Iterator[Chunk]:
        with self._inner.open_keys(table, keys) as chunk:
            yield self._chunk(chunk)

    def open_checksums(
        self, table: TableName, key_range: KeyRange, bits: int
    ) -> AbstractContextManager[Chunk]:
        if self._masked.of(table) is not None:
            raise RequestError(
                f"{table}: no checksums of columns that don't land as they are",
                hint="verify it by rows: leave out --checksums",
            )
        return cast(AbstractContextManager[Chunk], self._inner.open_checksums(table, key_range, bits))

    def _chunk(self, chunk: Chunk) -> Chunk:
        landed = self._masked.of(chunk.schema.table)
        return chunk if landed is None else cast(Chunk, _MaskedChunk(chunk, landed))


class _MaskedChunk:
    """A chunk under the settings that its table had when it was opened; `TableError` if they don't fit it."""

    def __init__(self, inner: Chunk, landed: LandedColumns) -> None:
        self.schema = landed.layout(inner.schema)
        self.low, self.high, self.order = inner.low, inner.high, inner.order
        self._inner, self._landed = inner, landed

    def rows(self) -> Iterator[ChunkRows]:
        for rows in self._inner.rows():
            yield self._landed.rows(self._inner.schema, rows)

    def read_from(self) -> Sequence[LoggedTable]:
        return self._inner.read_from()
