"""What a database must offer to be captured: the contract between `connector.capture.loop` and its sources.

Flow: `check` -> `prepare` and `begin_log` (first start), or `check_resumable` and `prepare` (each later
connect) -> `check_catalog` -> `open_log` and, for each dump worker, `open_tables`. Errors are
`TransientError` (the capture loop reopens from the last committed position) or `OperatorError` (stops);
anything else is a bug.

Threads: the log reader is used by one thread. `LogReader.position` may be read by any. Each `TableReader` has
its own connection and is used by one thread. `Segment.decode` may run in another thread than `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from connector.config import SourceConfig, TableConfig
from connector.errors import TableError
from connector.landing.event_batch import Decoded
from connector.landing.manifest import InvisibleCommit, LastCommit, Manifest, SourceIdentity
from connector.logged_table import ColumnLook, LoggedTable, Positions
from connector.schema import KnownTables, TableComments, TableName, TableSchema, Traits


@dataclass(frozen=True)
class Finding:
    """One result of a check: what was checked, whether it holds, and the SQL or setting that fixes it.

    `table`: set if the failure concerns only this table; every other table can still be captured. `dropped`:
    the configured table may have been dropped; everything else can continue.
    """

    name: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    fix: str | None = None
    table: TableName | None = None
    dropped: bool = False


@dataclass(frozen=True)
class ResumePoint:
    """Where a log history begins or resumes: everything after `position` will be read, nothing before it.

    `gtids`: the transactions executed up to `position`, in the source's notation, if they can locate it in
    another server's log. `server`: whose log it is, if a source has several. `gtids_needed`: the subset of
    `gtids` that another server must have executed: all but our own writes at their end; None: all.
    `last_commit`: the last one read before `position` in this epoch.
    """

    position: int
    not_yet_visible: tuple[InvisibleCommit, ...] = ()
    gtids: str | None = None
    server: str | None = None
    gtids_needed: str | None = None
    last_commit: LastCommit | None = None


@dataclass(frozen=True)
class Failover:
    """The log continues in another log, on the current server, with nothing missing.

    `same_positions`: the new log agrees with the old one up to the same position, and continues the same
    epoch. Then only `resume_point.server` is new, and the rest of this does not apply.

    From `resume_point` on, the new log has every transaction that is not in `resume_point.gtids`. It may also
    have some that are, which the reader skips. Every snapshot from now on sees all of `resume_point.gtids`.
    """

    resume_point: ResumePoint
    reason: str
    same_positions: bool = False


@dataclass(frozen=True)
class PreparedSource:
    """What was added to an existing log, and the xid barrier (lsn 0) for earlier transactions.

    Those may have written to a table and committed before the log carried it. The barrier is set even if
    nothing was added now, since it may have been just before a crash.
    """

    added: tuple[TableName, ...] = ()
    not_yet_visible: tuple[InvisibleCommit, ...] = ()


@dataclass(frozen=True)
class UnfitTable:
    """Why an existing table can't be captured, and what to do."""

    reason: str
    hint: str


@dataclass(frozen=True)
class UnloggedChange:
    """What changed a table's rows without row events.

    `lost`: the log should have carried the change but did not, which is a gap of that table.
    """

    reason: str
    lost: bool = False


class TableListing(NamedTuple):
    """The tables that the configuration names: layouts, and why the others are unfit.

    `busy`: tables that other sessions keep locked, so they can't be examined now; a later check finds them.
    """

    schemas: list[TableSchema]
    unfit: list[TableError]
    busy: frozenset[TableName] = frozenset()

    @property
    def existing(self) -> set[TableName]:
        """Return all tables that exist."""
        known = {*(schema.table for schema in self.schemas), *(problem.table for problem in self.unfit)}
        return known | self.busy

    def without(self, problems: Iterable[TableError]) -> TableListing:
        """Return the listing with the tables that a check found unfit moved from `schemas` to `unfit`."""
        found = {problem.table: problem for problem in problems}
        unfit = [found[schema.table] for schema in self.schemas if schema.table in found]
        fit = [schema for schema in self.schemas if schema.table not in found]
        return self._replace(schemas=fit, unfit=[*self.unfit, *unfit])


@dataclass(frozen=True)
class CatalogSnapshot:
    """The tables that can be captured, each with its fingerprint, and a position in the log after the check.

    `begun`: a position before the check, which may not show what changed after that. A fingerprint covers
    everything that changes a table's rows or its capture without a trace in the log. `existing`: these tables
    and configured ones that exist but can't be captured (`unfit`), or that other sessions have locked
    (`busy`; nothing is known of these). `unprepared`: those whose changes the log carries only after
    `Source.prepare`. `columns`: those that land, if the log does not show every layout change. `comments`: of
    those in `tables` that have any; as they are no part of a layout or a fingerprint, nothing else follows
    from them. `look`: their columns. `traits`: of those of which they matter, as of a moment of the check.
    """

    tables: Mapping[TableName, str]
    position: int
    existing: frozenset[TableName]
    unfit: Mapping[TableName, UnfitTable] = field(default_factory=dict)
    unprepared: frozenset[TableName] = frozenset()
    columns: Mapping[TableName, frozenset[str]] = field(default_factory=dict)
    busy: frozenset[TableName] = frozenset()
    begun: int = 0
    comments: Mapping[TableName, TableComments] = field(default_factory=dict)
    look: ColumnLook = field(default_factory=ColumnLook)
    traits: Mapping[TableName, Traits] = field(default_factory=dict)


class Segment(Protocol):
    """A stretch of raw log, taken from the reader and not yet decoded."""

    @property
    def position(self) -> int:
        """The boundary after its last whole transaction."""

    @property
    def committed_at(self) -> datetime | None:
        """The commit time of that transaction; None when it holds none."""

    @property
    def end(self) -> ResumePoint:
        """Where reading resumes after it, at `position`; knows only commits since the log was opened."""

    @property
    def logged(self) -> Sequence[LoggedTable]:
        """Tables as the log names them, for `Source.contradicted_by_log`."""

    @property
    def rows(self) -> int:
        """The number of change messages it holds."""

    def decode(self) -> Iterator[Decoded]:
        """Decode into batches, by table in position order; a failing table yields a `QuarantineNotice`.

        Columns that the log renames come first, whatever becomes of their table.
        """


class LogReader(Protocol):
    """Reads the log into memory from a position on, transaction by transaction."""

    @property
    def position(self) -> int:
        """A transaction boundary: everything up to it has been read. It moves while idle, too."""

    @property
    def unbroken(self) -> bool:
        """Whether the server provably has not crashed since this source's previous log reader was opened.

        If so, everything that snapshots have shown since then is in the log that this one reads.
        """

    @property
    def buffered_bytes(self) -> int:
        """Raw bytes held, of whole transactions and of the open one."""

    @property
    def buffered_rows(self) -> int:
        """Messages held of *whole* transactions."""

    @property
    def behind_bytes(self) -> int:
        """How far ahead the source's end of log is, as last reported."""

    def read(self, seconds: float, upto_bytes: int) -> None:
        """Read for `seconds`, or until the buffer holds `upto_bytes` bytes.

        While catching up, returns early when a batch is complete, which the caller must then commit.
        """

    def take(self) -> Segment:
        """Take all whole transactions out of the buffer; an empty segment at `position` if there are none."""

    def take_open(self) -> Segment | None:
        """Take what is buffered of the transaction that is still open (a huge one); None if nothing is.

        Only right after `take`. Its rows become visible with the segment that holds the commit.
        """

    def confirm(self, position: int) -> None:
        """Confirm to the source that everything up to `position` is durable here."""

    def not_yet_visible(self, position: int) -> list[InvisibleCommit]:
        """Return the commits at or before `position` that a fresh snapshot does not show yet (may query)."""

    def close(self) -> None:
        """Close the connection; never raises."""


@dataclass(frozen=True)
class KeyRange:
    """Keys after `after` (exclusive) up to `upto` (inclusive), as the source's text; None: unbounded.

    `of_prefix`: the bounds may have values for only the key's first columns; then only these are compared.
    """

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    of_prefix: bool = False

    def fits(self, columns: int) -> bool:
        """Return whether the bounds are values of a key with this many columns."""
        lengths = {len(end) for end in (self.after, self.upto) if end is not None}
        return max(lengths) <= columns if self.of_prefix and lengths else lengths <= {columns}


@dataclass(frozen=True)
class ChunkRows:
    """Some rows of a chunk: the table's columns in the schema's order, and `raw` (a map, or None for none).

    For given keys, `absent` (a boolean array) marks those without a row: there only the key columns are
    valid. `summed`: these rows are checksums that cover this many rows of the table.
    """

    columns: list[pa.Array]
    raw: pa.Array | None = None
    absent: pa.Array | None = None
    summed: int | None = None

    @property
    def count(self) -> int:
        """Return how many of the table's rows these represent."""
        return len(self.columns[0]) if self.summed is None else self.summed


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

    @property
    def order(self) -> str | None:
        """A hash of what the order of keys depends on; None if the range ends at none or has no whole key."""

    def rows(self) -> Iterator[ChunkRows]:
        """Read the rows, a few thousand at a time; memory does not grow with the chunk."""

    def read_from(self) -> Sequence[LoggedTable]:
        """Return, once all rows are read, the table and partitions they are from that a check may miss."""


class TableReader(Protocol):
    """Reads tables in chunks alongside the log, without locks beyond those of a SELECT."""

    def next_boundary(
        self,
        table: TableName,
        key: Sequence[str],
        after: tuple[str, ...] | None,
        rows: int,
        where: str | None,
    ) -> tuple[str, ...] | None:
        """Return the key of the row `rows` rows after `after` in key order; None if fewer are left."""

    def estimate_rows(self, table: TableName) -> int | None:
        """Return the source's own estimate of a table's rows; None if it has none."""

    def open_chunk(
        self, table: TableName, key_range: KeyRange, where: str | None = None
    ) -> AbstractContextManager[Chunk]:
        """Open a snapshot and the rows of a key range in it, in no particular order."""

    def key_span(self, table: TableName, key: Sequence[str]) -> tuple[int, int]:
        """Return the least and greatest value of the key's first column; (0, 0) if the table is empty.

        `RequestError` if that column is not an integer.
        """

    def open_checksums(
        self, table: TableName, key_range: KeyRange, bits: int
    ) -> AbstractContextManager[Chunk]:
        """Open a snapshot and the checksums of a key range's rows in it, computed by the database.

        They are summed by buckets of 2 ** `bits` keys (`connector.checksums.definition`). `RequestError` if
        the table's rows have no checksums.
        """

    def open_keys(self, table: TableName, keys: Sequence[Sequence[str]]) -> AbstractContextManager[Chunk]:
        r"""Open a snapshot and the rows of the given keys; keys without a row come as `absent`.

        So does, beside that row, another text that the source considers equal to its key (``A`` to ``a``).
        A key value's text is the source's own, or what a merge makes of the landed value: numbers with or
        without an exponent, ``true`` and ``false``, bytes as ``\x`` and hexadecimal digits, date-times as
        ``2026-11-21 10:00:00.5`` (with ``+00`` appended for a timestamp in UTC), arrays as ``{"1",NULL}``,
        everything else as it lands. `RequestError` if a text is not a value of the column.
        """

    def close(self) -> None:
        """Close the connection; never raises."""


class Source(Protocol):
    """A database that can be captured."""

    @property
    def keeps_column_order(self) -> bool:
        """Whether a table's columns never move: another order then means renamed or replaced columns."""

    def ensure_logging(self) -> None:
        """Raise `LogOffError` if the database changes rows without logging them, which no later log shows.

        Called first at a start and at each connect, so that no other failure hides it.
        """

    def reconfigure(self, config: SourceConfig, tables: Mapping[TableName, TableConfig]) -> None:
        """Change which tables are captured, while no log is open; nothing else in `config` may differ."""

    def check(self) -> list[Finding]:
        """Check every precondition and return all findings; raises only if the database can't be reached."""

    def identity(self, landed: Manifest | None = None) -> SourceIdentity:
        """Return which database this is; `landed` may be the same database's, read from another server."""

    def tables(self, among: Collection[TableName] | None = None) -> TableListing:
        """List the tables that the configuration names, as they are now; `among`: only these.

        A table that can't be captured is in `unfit`, and does not affect the others.
        """

    def evict_former_agent(self) -> None:
        """Release what a former agent still holds of the log, if anything; it can no longer commit."""

    def prepare(self) -> PreparedSource:
        """Create or extend what the source lacks and the role may create: the publication.

        Leaves out tables that can't be captured: publishing them would make their writers fail. If the
        address now leads to another server than the log's, `check_catalog` raises `TransientError`
        afterwards.
        """

    def check_catalog(self, known: Mapping[TableName, str] | None = None) -> CatalogSnapshot:
        """Check for changes that no log shows. May be called from another thread than the other methods.

        `known`: the remembered fingerprints. For what can't be judged yet, the known one is returned.
        """

    def look_at_columns(self, tables: Collection[TableName]) -> ColumnLook:
        """Check the columns of these tables alone; quick. Empty if columns have no ids."""

    def unlogged(self, before: str, now: str) -> UnloggedChange | None:
        """Return what may have changed rows without row events between two fingerprints of one table."""

    def remember(self, before: str | None, now: str) -> str:
        """Return the fingerprint to remember: the new one, plus what still counts of the previous one."""

    def contradicted_by_log(
        self, known: Mapping[TableName, str], logged: Sequence[LoggedTable], repaired_upto: Positions
    ) -> dict[TableName, str]:
        """Return new fingerprints for tables that the log describes differently than their fingerprints do.

        They differ from what any check will find, so each such table is dumped again. A table's log from
        before `repaired_upto` does not count: a dump sees its effect, or it was of a check's report.
        """

    def take_xid_barrier(self) -> int | None:
        """Return a transaction id above those of all running transactions; None if none can matter.

        A transaction that began before an unlogged change may commit older row events after it.
        """

    def position_past_barrier(self, barrier: int) -> int | None:
        """Return a position after every commit below the barrier; None while one of them is running."""

    def begin_log(self, *, fresh: bool, stopping: Callable[[], bool] = lambda: False) -> ResumePoint:
        """Make the source keep its log from now on (a slot) and return where it begins.

        `fresh`: first drop what is left of an older one. Otherwise adopt an unused one of the same name.
        `TransientError` if the session that answered `identity` is lost, since a new one may reach another
        server; and once the agent is `stopping`, if it would take long.
        """

    def check_resumable(self, resume_point: ResumePoint) -> str | Failover | None:
        """Return why the log after `resume_point` is incomplete, or a failover; None if it can be read."""

    def open_log(self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None) -> LogReader:
        """Open the log after a resume point; later transactions that are in its `gtids` are skipped.

        `known`: as of there; it may tell what a log lacks of a column, and the catalog no longer has.
        """

    def open_tables(self) -> TableReader:
        """Open a connection for dumps; low watermarks follow the log reader that was opened last."""

    def any_not_null(self, columns: Sequence[str]) -> str:
        """Return the dump predicate that is true for rows where any of these columns is not null."""

    def close(self) -> None:
        """Close all connections; never raises."""
