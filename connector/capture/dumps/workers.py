"""Dump workers: threads that read chunks alongside the log reader and land them.

Order of durability: a chunk's schema object, then its file, then `DumpQueue.finished`; the capture loop
commits it. A worker that loses its connection gives the task back and retries over a new one. A request that
the database refuses ends that dump with the database's own message. Anything else ends the agent. A dump that
keeps failing temporarily rests in between, and does not keep others waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pyarrow.compute as pc

from connector import failpoint
from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.tasks import FinishedChunk, PlanTask, ReadTask
from connector.capture.lander import Lander
from connector.capture.tables import HINT, key_changed
from connector.checksums.definition import bits_of
from connector.errors import NotYetError, RequestError, TableError, TransientError
from connector.landing.event_batch import CdcColumns, QuarantineNotice, assemble
from connector.landing.format import DELETE, DUMP
from connector.landing.manifest import KEPT_CHARACTERS, DumpState
from connector.position import Position
from connector.schema import TableName
from connector.source import Chunk, ChunkRows, KeyRange, Source, TableReader

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits between attempts of a worker that lost its connection; the last one repeats."""

IDLE_SECONDS = 60.0
"""A worker without a task for this long closes its connections: others may lack them, the load's measurement,
for which dumps wait, among them.
"""

LOST_AT_MOST = 5
"""A condition that ends the connection this many times in a row is considered the cause."""

TURN_SECONDS = 0.1
"""How much longer than its worker a dump waits after a temporary failure."""

REST_SECONDS = 1.0
"""The longest rest of a dump for which the source is not ready yet; others go first."""

CHECKSUM_CHUNKS = 10
"""A chunk of checksums has the rows of this many others: each costs a snapshot and a landing file."""

CHECKSUM_ROWS = 1_000_000
"""Up to this many rows: nothing pauses or slows down a chunk once it is being read."""

FIRST_REST_SECONDS = 0.05
"""The first of these rests; each further one is twice as long. A log just opened is soon ready."""


class DumpWorkers:
    """The threads that carry out the tasks of a `DumpQueue`.

    Call `start` again for more threads: the queue limits the tasks handed out at a time. `failure`: the error
    that ended a worker for good. `quarantined`: tables that can't be read, until `take_quarantined`.
    """

    def __init__(
        self,
        source: Source,
        dumps: DumpQueue,
        lander: Lander,
        key_of: Callable[[TableName], tuple[str, ...]],
    ) -> None:
        self.failure: BaseException | None = None
        self.quarantined: deque[tuple[DumpState, TableError]] = deque()
        self._source, self._dumps, self._lander, self._key_of = source, dumps, lander, key_of
        self._stopping = threading.Event()
        self._reported: set[str] = set()
        self._lost: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._postponed: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start as many threads as the settings ask for, if they don't run yet; idle ones stay."""
        for number in range(len(self._threads), self._dumps.schedule.settings().workers):
            thread = threading.Thread(target=self._run, name=f"dump-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout: float) -> None:
        """Stop the threads, waiting up to `timeout` seconds; an interrupted chunk is read again."""
        self._stopping.set()
        self._dumps.close()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def take_quarantined(self, position: int) -> list[QuarantineNotice]:
        """Hand over the tables that could not be read, as quarantined from a position on.

        Tables whose dump has ended since are left out: they may have been released.
        """
        found = [self.quarantined.popleft() for _ in range(len(self.quarantined))]
        errors = [error for dump, error in found if dump.active]
        return [QuarantineNotice(e.table, position, e.reason, e.hint or HINT) for e in errors]

    def _run(self) -> None:
        tables: TableReader | None = None
        attempt, worked_at = 0, time.monotonic()
        try:
            while not self._stopping.is_set():
                task = self._dumps.next_task(timeout=0.5)
                if task is None:
                    if tables is not None and time.monotonic() - worked_at > IDLE_SECONDS:
                        tables.close()
                        tables = None
                    continue
                try:
                    tables = tables or self._source.open_tables()
                    self._run_task(task, tables)
                    for count in (self._lost, self._failures, self._postponed):
                        count.pop(task.dump.id, None)
                    attempt = 0
                except NotYetError as error:
                    self._postpone(task, error)
                except TransientError as error:
                    self._back_off(task, tables, attempt, error)
                    tables = None
                    attempt += 1
                except (RequestError, TableError) as error:
                    self._fail(task, self._layout_error(task, tables, error) or error)
                worked_at = time.monotonic()
        except BaseException as error:  # handed to the capture loop, which raises it
            self.failure = error
        finally:
            if tables is not None:
                tables.close()

    def _fail(self, task: PlanTask | ReadTask, error: RequestError | TableError) -> None:
        """End a dump. A required dump of some rows (not just requested) becomes a dump of the whole table.

        The source may refuse a condition because its column is gone again, or oddly written keys. If the
        table must be quarantined, the capture loop ends the dump: no manifest may record the failed dump
        without the quarantine.
        """
        dump = task.dump
        log.error("dump %s of %s failed: %s", dump.id, dump.table, error)
        if dump.verifies:  # it changes nothing here: the log or the catalog will show the problem
            self._dumps.end(dump, "failed", str(error))
            self._dumps.give_back(task)
            return
        if isinstance(error, RequestError) and dump.reason != "request" and dump.kind == "full":
            error = TableError(dump.table, f"its dump failed: {error}")
        if isinstance(error, TableError):
            self.quarantined.append((dump, error))
            self._dumps.give_back(task, REST_SECONDS)
            return
        if dump.reason != "request" and dump.active:
            log.error("dumping all of %s instead", dump.table)
            self._dumps.widen(dump, str(error))
        self._dumps.end(dump, "failed", str(error))
        self._dumps.give_back(task)

    def _layout_error(
        self, task: PlanTask | ReadTask, tables: TableReader | None, error: RequestError | TableError
    ) -> TableError | None:
        """Return the cause of a failure if the table's key has changed or is no longer usable, else None.

        If the key is renamed or replaced during the read, the database complains about some column.
        """
        table = task.dump.table
        asked = isinstance(error, RequestError) and (
            task.dump.where is not None or task.dump.keys is not None
        )  # its condition or keys are wrong
        if tables is None or asked:
            return None
        try:
            with tables.open_chunk(table, KeyRange()) as chunk:
                key = self._key_of(table)
                return key_changed(table, key, chunk.schema.key) if chunk.schema.key != key else None
        except TableError as layout_error:
            return layout_error
        except (TransientError, RequestError, NotYetError):
            return None

    def _postpone(self, task: PlanTask | ReadTask, error: NotYetError) -> None:
        rest = min(REST_SECONDS, FIRST_REST_SECONDS * 2 ** min(self._postponed[task.dump.id], 10))
        self._postponed[task.dump.id] += 1
        self._dumps.give_back(task, rest)
        if rest >= REST_SECONDS:
            self._note_waiting(task.dump, str(error))
        if rest >= REST_SECONDS and task.dump.id not in self._reported:
            log.warning("dump of %s waits: %s", task.dump.table, error)
            self._reported.add(task.dump.id)

    def _back_off(
        self, task: PlanTask | ReadTask, tables: TableReader | None, attempt: int, error: TransientError
    ) -> None:
        """Let worker and dump wait, longer with each failure in a row.

        The dump waits longer than the worker, so the next dump gets its turn in case only this one fails.
        """
        if tables is not None:
            tables.close()
            self._lost[task.dump.id] += task.dump.where is not None
        if self._lost[task.dump.id] >= LOST_AT_MOST:
            del self._lost[task.dump.id]
            self._fail(task, RequestError(f"{error}, {LOST_AT_MOST} times while its condition ran"))
            return
        seconds = _retry_seconds(attempt)
        rest = max(seconds, _retry_seconds(self._failures[task.dump.id]))
        self._failures[task.dump.id] += 1
        if self._failures[task.dump.id] >= len(RETRY_SECONDS):
            self._note_waiting(task.dump, str(error))
        self._dumps.give_back(task, rest + TURN_SECONDS)
        why = f"{error} ({error.hint})" if error.hint else str(error)
        log.warning("dump of %s: %s; retrying", task.dump.table, why)
        self._stopping.wait(seconds)

    def _run_task(self, task: PlanTask | ReadTask, tables: TableReader) -> None:
        if isinstance(task, PlanTask):
            self._plan_chunk(task, tables)
            return
        key = self._key_of(task.dump.table)
        with self._lander.progress.chunks.timing():
            chunk = read_chunk(task, tables, self._lander, key, self._stopping.is_set)
        self._note_waiting(task.dump, None)
        self._dumps.finished(chunk)

    def _note_waiting(self, dump: DumpState, why: str | None) -> None:
        """Have manifests say why no chunk of a dump can be read now, as first seen; None: one was read."""
        if (dump.error is None) != (why is None):
            with self._dumps.changing():
                dump.error = (why and why[:KEPT_CHARACTERS]) if dump.active else dump.error

    def _plan_chunk(self, task: PlanTask, tables: TableReader) -> None:
        """Find the end of a dump's next chunk, which has as many rows as its settings say.

        Of checksums, it has `CHECKSUM_CHUNKS` times as many, up to `CHECKSUM_ROWS`.
        """
        table = task.dump.table
        key = self._key_of(table)
        if task.dump.where is None and task.after is None and task.dump.rows_estimate is None:
            task.dump.rows_estimate = tables.estimate_rows(table)
        if task.dump.kind == "checksums" and task.dump.bits is None:
            task.dump.bits = bits_of(*tables.key_span(table, key))
        rows = self._dumps.schedule.settings(task.dump).chunk_rows
        if task.dump.kind == "checksums":
            rows = max(rows, min(CHECKSUM_CHUNKS * rows, CHECKSUM_ROWS))
        try:
            upto = tables.next_boundary(table, key, task.after, rows, task.dump.where)
        except (RequestError, TableError):
            if not _is_reordered(task, tables):
                raise
            upto = None  # it starts over once the rest has been opened
        self._dumps.planned(task, upto, _first_order(task, upto, tables))


def _first_order(task: PlanTask, upto: tuple[str, ...] | None, tables: TableReader) -> str | None:
    """Return the order of a dump's key where it is planned first, before any of its ends may be no key."""
    if upto is None or task.after is not None or task.dump.order is not None:
        return None
    with tables.open_chunk(task.dump.table, KeyRange(None, upto)) as chunk:
        return chunk.order


def _is_reordered(task: PlanTask, tables: TableReader) -> bool:
    """Return whether a dump's key has another order now: where it was planned to may be no key any more."""
    if task.dump.order is None:
        return False
    with tables.open_chunk(task.dump.table, KeyRange(task.after)) as chunk:
        return _has_other_order(task.dump, chunk)


def _has_other_order(dump: DumpState, chunk: Chunk) -> bool:
    return dump.order is not None and chunk.order not in (None, dump.order)


def _retry_seconds(failures: int) -> float:
    return RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]


def read_chunk(
    task: ReadTask,
    tables: TableReader,
    lander: Lander,
    key: tuple[str, ...],
    stopping: Callable[[], bool] = lambda: False,
) -> FinishedChunk:
    """Read one chunk in one snapshot into one landing file, durable on return.

    Holds a few thousand rows in memory, however large the chunk. Raises `TransientError` if `stopping`
    becomes true midway, `TableError` if the table's key is no longer `key`. Nothing is read in another order
    of the key than the dump's, in which its ends may be no keys: the dump starts over.
    """
    with _open(task, tables) as chunk:
        if chunk.schema.key != key and task.dump.kind != "checksums":  # which say of what layout they are
            raise key_changed(task.dump.table, key, chunk.schema.key)
        if task.dump.floor is not None and chunk.low + 1 < task.dump.floor:
            raise NotYetError(
                f"{task.dump.table}: its snapshot does not show every commit before {task.dump.floor} yet"
            )
        if _has_other_order(task.dump, chunk):
            return FinishedChunk(task, chunk.low, chunk.high, 0, chunk.schema, None, order=chunk.order)
        position, count = Position.of_chunk(task.epoch, chunk.low, task.number), 0
        cdc = _cdc_of(task, chunk, position)
        with lander.writer(chunk.schema, position) as writer:
            for rows in chunk.rows():
                if stopping():
                    raise TransientError("the agent is stopping")
                writer.append(assemble(chunk.schema, rows.columns, _with_rows(cdc, rows)))
                count += rows.count
                failpoint.reach("chunk-half-read")
            file = writer.close()
        read_from = chunk.read_from()
    landed = file and file.model_copy(
        update={
            "kind": "verify" if task.dump.verifies else "chunk",
            "dump": task.dump.id,
            "chunk": task.chunk,
            "low": chunk.low,
            "high": chunk.high,
        }
    )
    return FinishedChunk(task, chunk.low, chunk.high, count, chunk.schema, landed, read_from, chunk.order)


def _open(task: ReadTask, tables: TableReader) -> AbstractContextManager[Chunk]:
    table = task.dump.table
    if task.keys is not None:
        return tables.open_keys(table, task.keys)
    if task.dump.kind == "checksums":
        return tables.open_checksums(table, task.range, task.dump.bits or 0)
    return tables.open_chunk(table, task.range, task.dump.where)


def _cdc_of(task: ReadTask, chunk: Chunk, position: Position) -> CdcColumns:
    return CdcColumns(
        op=DUMP,
        epoch=position.epoch,
        lsn=position.lsn,
        seq=position.seq,
        low_lsn=chunk.low,
        high_lsn=chunk.high,
        dump=task.dump.id,
        chunk=task.chunk,
    )


def _with_rows(cdc: CdcColumns, rows: ChunkRows) -> CdcColumns:
    """Return `_cdc` with what differs between these rows; itself if nothing does."""
    if rows.absent is None and rows.raw is None:
        return cdc
    op = cdc.op if rows.absent is None else pc.if_else(rows.absent, DELETE, DUMP)
    return replace(cdc, op=op, raw=rows.raw)
