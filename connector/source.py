"""What a database must offer to be captured: the contract between `connector.capture` and its sources.

Flow: `check` -> `prepare` -> `begin_history` (first start, or after a gap) -> `open_log` and, for each dump
worker, `open_tables`. Errors are `TransientError` (the capture loop opens again, from the last committed
position), `OperatorError` (stops), anything else is a bug.

Threads: the log reader is used by one thread. `LogReader.position` may be read by any. Each `TableReader` has
a connection of its own and is used by one thread. `Segment.decode` may run in another thread than `read`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import pyarrow as pa

from connector.event import EventBatch, SetAside
from connector.manifest import Manifest, SourceIdentity, UnsettledCommit
from connector.schema import TableName, TableSchema


@dataclass(frozen=True)
class Finding:
    """One result of a check: what was looked at, whether it holds, and the SQL or setting that mends it."""

    name: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    mend: str | None = None


@dataclass(frozen=True)
class History:
    """Where a log history begins: everything after `position` will be read, nothing before it.

    `gtids`: the transactions executed up to there, where another server's log can be told by them, in words
    of the source. `server`: whose log it is, where a source has several. `gtids_needed`: what another server
    must have executed of them, all but our own writes at their end; None: all.
    """

    position: int
    unsettled: tuple[UnsettledCommit, ...]
    gtids: str | None = None
    server: str | None = None
    gtids_needed: str | None = None


@dataclass(frozen=True)
class Failover:
    """The log goes on in another one, of the server at hand, and nothing is missing.

    From `history` on it has every transaction that is not in `history.gtids`. It may have some that are:
    those are passed over when it is read. Every snapshot from now on sees all of `history.gtids`.
    """

    history: History
    reason: str


@dataclass(frozen=True)
class Prepared:
    """What was added to a log that is already kept, and the transactions running after that (lsn 0).

    Those may have written to a table and committed before the log began to carry it. They are given even
    when nothing was added now: it may have been just before a crash.
    """

    added: tuple[str, ...] = ()
    running: tuple[UnsettledCommit, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """The tables that can be captured, each with its fingerprint, and a position in the log after the look.

    A fingerprint is of all that changes a table's rows or its capture without a trace in the log.
    `existing`: these tables, and those that are named and there but can't be captured.
    """

    tables: Mapping[str, str]
    position: int
    existing: frozenset[str]


class Segment(Protocol):
    """A run of raw log, taken from the reader and not yet decoded."""

    @property
    def position(self) -> int:
        """The boundary behind its last whole transaction."""

    @property
    def committed_at(self) -> datetime | None:
        """The commit time of that transaction; None when it holds none."""

    @property
    def gtids(self) -> str | None:
        """The transactions executed up to `position`, see `History`."""

    @property
    def gtids_needed(self) -> str | None:
        """What a server must have executed of these, see `History`."""

    @property
    def rows(self) -> int:
        """How many messages of changes it holds."""

    def decode(self) -> Iterator[EventBatch | SetAside]:
        """Decode into batches, for each table in position order. A table that fails yields one `SetAside`."""


class LogReader(Protocol):
    """Reads the log from a position on, into memory, transaction by transaction."""

    @property
    def position(self) -> int:
        """A transaction boundary: all up to it has been read. It moves in idle stretches too."""

    @property
    def buffered_bytes(self) -> int:
        """Raw bytes held, of whole transactions and of the open one."""

    @property
    def buffered_rows(self) -> int:
        """Messages held of *whole* transactions."""

    @property
    def behind_bytes(self) -> int:
        """How far the source's end of log is ahead, as last heard."""

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read until so many seconds have passed or the buffer holds so many bytes.

        Returns early when a bite of the backlog is complete, which the caller is to commit.
        """

    def take(self) -> Segment:
        """Take all whole transactions out of the buffer; with none there, an empty segment at `position`."""

    def take_open(self) -> Segment | None:
        """Take what is buffered of the transaction that is still open (a huge one); None for nothing.

        Only right after `take`. Its rows become visible with the segment that holds the commit.
        """

    def confirm(self, position: int) -> None:
        """Tell the source that everything up to `position` is durable here."""

    def unsettled(self, position: int) -> list[UnsettledCommit]:
        """Give the commits at or before `position` that a fresh snapshot does not show yet (may query)."""

    def close(self) -> None:
        """Let go of the connection; never raises."""


@dataclass(frozen=True)
class KeyRange:
    """Keys after `after` (exclusive) up to `upto` (inclusive), as the source's text; None: the end."""

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ChunkRows:
    """Some rows of a chunk: the table's columns in the schema's order, and `raw` (a map, or None for none).

    For given keys `absent` tells which have no row (a boolean array): there only the key columns hold.
    """

    columns: list[pa.Array]
    raw: pa.Array | None = None
    absent: pa.Array | None = None


class Chunk(Protocol):
    """An open chunk: one snapshot."""

    @property
    def schema(self) -> TableSchema:
        """The table's layout in the snapshot."""

    @property
    def low(self) -> int:
        """The low watermark: the snapshot sees every commit at or before it."""

    @property
    def high(self) -> int:
        """The high watermark: the snapshot sees no commit after it."""

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows, some thousands at a time; memory does not grow with the chunk."""


class TableReader(Protocol):
    """Reads tables in chunks, beside the log, without locks beyond those of a SELECT."""

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Give the key of the row that is `rows` rows after `after` in key order; None: fewer are left."""

    def estimate_rows(self, table: TableName) -> int | None:
        """Give the source's own estimate of a table's rows; None when it has none."""

    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> AbstractContextManager[Chunk]:
        """Open a snapshot and the rows of a key range in it (order not promised)."""

    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> AbstractContextManager[Chunk]:
        r"""Open a snapshot and the rows of the given keys; keys without a row come as `absent`.

        A key value's text is the source's own, or what a merge makes of the landed value: numbers with or
        without an exponent, ``true`` and ``false``, bytes as ``\x`` and hexadecimal digits, moments as
        ``2026-11-21 10:00:00.5`` (a timestamp in UTC, with ``+00`` behind it), arrays as ``{"1",NULL}``, all
        else as it lands. `RequestError` for a text that is no value of the column.
        """

    def close(self) -> None:
        """Let go of the connection; never raises."""


class Source(Protocol):
    """A database that can be captured."""

    def check(self) -> list[Finding]:
        """Look at every precondition and report all; raises only when the database can't be reached."""

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Tell which database this is; `landed`: what may be that of this one, by another server."""

    def tables(self, among: Collection[str] | None = None) -> list[TableSchema]:
        """List the tables that the configuration names, as they are now; `among`: only these."""

    def prepare(self) -> Prepared:
        """Create or extend what the source lacks and the role may create: the publication.

        Leaves out tables that can't be captured, whose writers it would stop.
        """

    def look(self) -> Outlook:
        """Look for what no log tells. May be called by another thread than the rest."""

    def untold(self, before: str, now: str) -> bool:
        """Tell whether rows may have come or gone untold between two fingerprints of one table."""

    def begin_history(self, *, fresh: bool) -> History:
        """Make the log kept from now on (a slot) and tell where it begins.

        `fresh`: drop what is left of an older one first. Otherwise an unused one of the same name is adopted.
        """

    def gap_after(
        self,
        position: int,
        gtids: str | None = None,
        server: str | None = None,
        gtids_needed: str | None = None,
    ) -> str | Failover | None:
        """Tell why the log after `position` can't be read whole, or where it goes on; None: right there.

        The rest: what is known of the position, see `History`.
        """

    def open_log(
        self,
        epoch: int,
        position: int,
        unsettled: Sequence[UnsettledCommit],
        gtids: str | None = None,
        gtids_needed: str | None = None,
    ) -> LogReader:
        """Open the log behind `position`; transactions in `gtids` that come after it are passed over."""

    def open_tables(self) -> TableReader:
        """Open a connection for dumps; low watermarks follow the log reader that was opened last."""

    def holds_any(self, columns: Sequence[str]) -> str:
        """Give the predicate, for dumps, that is true for rows in which one of these columns is not null."""

    def close(self) -> None:
        """Let go of all connections; never raises."""
