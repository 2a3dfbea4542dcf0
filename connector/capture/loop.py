"""The capture loop: read -> batch -> land -> commit -> confirm. Read this file first.

One thread reads the log and commits; another decodes and lands segments; the dump workers land chunks
alongside. Further threads renew the lease (`lease_keeper`), fetch requests (`request_intake`), watch the
catalog (`catalog_watcher`) and the source's load (`connector.figures.source_load`).

Invariants, in the order of durability:

1. Data files and schemas are durable before the manifest that names them, and a manifest before its position
   is confirmed to the source. A crash anywhere leaves at most files that no manifest names.
2. Manifests are committed in log order, each at a transaction boundary. Parts of a transaction that is too
   large for memory are landed early and named by the manifest that holds its commit.
3. A chunk is committed by a manifest whose position is at or after its high watermark.
4. After a lost connection everything uncommitted is discarded and read again from the newest manifest's
   position; so are chunks, unless the server provably has not crashed and lost what their snapshots showed.

It does not order, deduplicate or resolve events (`merge` does), and knows no database (`connector.source`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from connector import failpoint
from connector.capture.catalog_changes import (
    capture_named,
    end_dumps_of_quarantined,
    forget_contradicted_checks,
    land_new_comments,
    repair_told,
    repair_unlogged,
    require_some_named,
    settle_traits,
    start_capturing,
    stop_capturing,
)
from connector.capture.catalog_watcher import CatalogWatcher
from connector.capture.column_traits import known_tables
from connector.capture.dumps.tasks import FinishedChunk
from connector.capture.dumps.workers import DumpWorkers
from connector.capture.gaps import check_for_gap, recorded, resume_point_of
from connector.capture.hidden_columns import HiddenColumns
from connector.capture.lander import LandedSegment, Lander, Landings
from connector.capture.manifest_history import ManifestHistory
from connector.capture.request_intake import RequestIntake
from connector.capture.retry import reconnecting
from connector.capture.startup import begin_or_resume
from connector.capture.tables import Repair
from connector.config import Config
from connector.errors import ConfigurationError, LogOffError, RequestError
from connector.figures.progress import Progress
from connector.figures.source_load import LoadGauge, LoadWatcher
from connector.landing.manifest import DumpKind, LandedFile, Manifest
from connector.schema import TableName
from connector.signals import SignalEvent
from connector.source import CatalogSnapshot, LogReader, Source
from connector.store.protocol import Store

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.2
"""The longest wait: signals, requests and finished chunks should be noticed soon."""

LANDING_SECONDS = 0.02
"""The wait while files or last chunks are landing: they should be committed at once."""

LARGE_FLUSHES = 2
"""A row larger than this many flushes lands before the next one is read, so memory holds one such row."""

UNBLOCK_SECONDS = 0.5
"""How often to ask whether the transactions that dumps wait for have ended."""


class Capture:
    """One source's capture, from start to stop. `run` blocks; `stop` may be called from a signal handler.

    `open_gauge` opens the gauge of the source's load; without one, only a slow store holds dumps back.
    `closes_fence`: the agent of an earlier term may still commit (`ManifestHistory`). `hands_over`: standbys
    may be waiting. `load_config` reads the configuration again, for `reload`. `config`: the one in effect.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        config: Config,
        *,
        term: int = 1,
        closes_fence: bool = False,
        open_gauge: Callable[[], LoadGauge] | None = None,
        load_config: Callable[[], Config] | None = None,
        hands_over: bool = False,
    ) -> None:
        self.progress, self.handed_over, self.hands_over = Progress(), False, hands_over
        self._source, self._store, self.config = source, store, config
        self._stopping = SignalEvent()
        self._open_gauge, self._load_config = open_gauge, load_config
        self._reload_asked = self._names_changed = False
        self._manifest_history = ManifestHistory(store, term, self._stopping, closes_fence=closes_fence)
        self._lander = Lander(store, self.progress)
        self._failure: BaseException | None = None
        self._pending_since: float | None = None
        self._tables_to_start: set[TableName] = set()
        self._last_commit, self._checked_at, self._unblocked_at = time.monotonic(), 0, 0.0
        self._unfit_before: set[TableName] = set()
        self._dropped: dict[TableName, int] = {}

    @property
    def newest(self) -> Manifest | None:
        """Return the newest manifest, which is never modified; None before the history is loaded."""
        return self._manifest_history.newest if self._manifest_history.next_number > 1 else None

    @property
    def in_doubt(self) -> bool:
        """Return whether a commit was given up that may still take effect."""
        return self._manifest_history.in_doubt

    def stop(self) -> None:
        """Ask for a graceful end: what has been read is landed, committed and confirmed first."""
        self._stopping.set()

    def hand_over(self) -> None:
        """Ask for a graceful end in favor of a standby; `RequestError` if there can be none."""
        if not self.hands_over:
            raise RequestError("the active agent was not started with --standby")
        self.handed_over = True
        self._stopping.set()

    def reload(self) -> None:
        """Ask to reload the configuration; may be called from a signal handler."""
        self._reload_asked = True

    def fail(self, error: BaseException) -> None:
        """End at once with this error and without another commit: the lease is lost."""
        self._failure = self._manifest_history.ended_by = error
        self._stopping.set()

    def run(self) -> None:
        """Capture until `stop`, or until an error that is not transient (raised)."""
        try:
            if self._open():
                self._capture()
        except LogOffError as error:
            self._manifest_history.note_log_off(self._source.identity, error.gap)
            raise
        finally:
            self._lander.close()
        if self._failure is not None:
            raise self._failure

    def _open(self) -> bool:
        """Begin or resume the history, retrying as long as it takes; False if asked to stop meanwhile."""

        def begin() -> bool:
            self._tables, self._dumps = begin_or_resume(
                self._source, self._manifest_history, self._lander, self.config
            )
            return True

        return reconnecting(self._stopping, self.progress.lose)(begin) or False

    def _capture(self) -> None:
        on_agent = {"reload": self._take_config, "handover": self.hand_over}
        self._intake = RequestIntake(self._store, self._source, self._dumps, self._tables, on_agent)
        self._workers = DumpWorkers(self._source, self._dumps, self._lander, self._tables.key)
        self._watch = CatalogWatcher(self._source, self._tables.fingerprints)
        busy = lambda: any(dump.active for dump in self._dumps.states)  # noqa: E731
        self._load = LoadWatcher(self._open_gauge, self._store, self.config.limits, busy, self._note_load)
        self._hidden_columns = HiddenColumns(self._source, self._tables, self._dumps)
        self._dumps.await_log()
        try:
            self._load.start()
            self._workers.start()
            self._intake.start()
            self._watch.start()
            self._follow_until_stopped()
        finally:
            self._load.stop()
            self._watch.stop()
            self._intake.stop(2)
            self._workers.stop(5)

    def _note_load(self, load: Mapping[str, float], reason: str | None) -> None:
        self.progress.load, self.progress.dumps_held_back = load, reason
        self._dumps.hold_back(reason)

    def _follow_until_stopped(self) -> None:
        """Follow the log, over a new connection after each transient error; pauses grow until one commits."""
        committed = self._manifest_history.newest.number

        def has_committed() -> bool:
            nonlocal committed
            before, committed = committed, self._manifest_history.newest.number
            return committed > before

        again = reconnecting(self._stopping, self.progress.lose, has_committed)
        while not self._stopping.is_set():
            again(self._follow)

    def _follow(self) -> None:
        """Follow the log over one connection, from the newest manifest's position."""
        self._source.ensure_logging()
        check_for_gap(self._source, self._manifest_history, self._tables, self._dumps, self.config)
        if self._names_changed:
            self._tables_to_start |= capture_named(self._source, self._tables, self._dumps, self.config)
            self._names_changed = False
        self._prepare_new_and_released()
        newest = self._manifest_history.newest
        known = known_tables(self._tables.schemas, newest)
        reader = self._source.open_log(newest.epoch, resume_point_of(newest), known)
        if not reader.unbroken:
            self._dumps.requeue_uncommitted(newest.position, self._checked_at)
        self._dumps.log_opened()
        self._hidden_columns.log_opened()
        self._pending_since = None
        with self._lander.landings(newest.position) as landings:
            try:
                while not (self._stopping.is_set() or self._tables_to_start or self._names_changed):
                    self._step(reader, landings)
                self._raise_failure()
                self._finish(reader, landings)
            finally:
                self._dumps.await_log()
                reader.close()

    def _prepare_new_and_released(self) -> None:
        """Check the catalog before the log is reopened, and discard the watcher's older results."""
        self._dumps.await_log()
        history, wanted = self._manifest_history, self._tables_to_start
        self._checked_at = start_capturing(
            self._source, history, self._lander, self._tables, self._dumps, self.config, wanted
        )
        self._watch.forget()
        self._tables_to_start = set()

    def _take_config(self) -> None:
        """Apply a changed configuration; reopen the log if other tables are to be captured."""
        if self._load_config is None:
            raise RequestError("this agent has no configuration file to reload")
        try:
            new, differ = self.config.reloaded(self._load_config())
        except ConfigurationError as error:
            raise RequestError(str(error)) from error
        require_some_named(self._tables, new)
        level = logging.INFO if differ or new != self.config else logging.DEBUG
        self._names_changed |= (new.source, new.tables) != (self.config.source, self.config.tables)
        self.config = self._tables.config = new
        self._load.limits = new.limits
        with self._dumps.changing() as schedule:
            schedule.config = new.dump
        log.log(level, "reloaded the configuration; needs a restart: %s", ", ".join(differ) or "nothing")

    def _reload_if_asked(self) -> None:
        if self._reload_asked:
            self._reload_asked = False
            try:
                self._take_config()
            except RequestError as error:
                log.error("keeping the configuration as it was: %s", error)

    def _step(self, reader: LogReader, landings: Landings) -> None:
        self._raise_failure()
        self._reload_if_asked()
        started = time.monotonic()
        read_seconds = self._read_seconds(started, landings)
        before = reader.position, reader.buffered_bytes
        reader.read(read_seconds, self.config.landing.flush_bytes)
        held = reader.buffered_bytes
        caught_up = not (reader.behind_bytes or held or landings.in_flight)
        self.progress.turn(more=before != (reader.position, held), caught_up=caught_up)
        self.progress.lag.sample(self._manifest_history.newest, reader.position, reader.behind_bytes, held)
        batch_complete = time.monotonic() - started < read_seconds - min(0.01, read_seconds / 2)
        if batch_complete or self._flush_due(reader, landings, started):
            self._land(reader, landings)
        self._commit_landed(reader, landings)
        self._intake.serve(self._manifest_history.next_number, self._manifest_history.newest.position)
        self._tables_to_start |= self._intake.take_released()
        self._workers.start()
        if not self._tables_to_start:  # else a check from before their release would quarantine them again
            self._apply_catalog_changes(self._watch.take())
        if time.monotonic() - self._unblocked_at >= UNBLOCK_SECONDS:
            self._dumps.start_unblocked(self._source.position_past_barrier)
            self._unblocked_at = time.monotonic()

    def _apply_catalog_changes(self, catalog_snapshot: CatalogSnapshot | None) -> None:
        """Act on the watcher's check: dump unlogged changes, stop capturing dropped tables.

        Reopens the log to capture new tables, and tables that it does not carry as it should.
        """
        if catalog_snapshot is None or catalog_snapshot.begun < self._checked_at:
            return
        self._stop_capturing_dropped(catalog_snapshot)
        number = self._manifest_history.next_number
        repair_unlogged(self._source, self._tables, self._dumps, catalog_snapshot, number, self.config)
        land_new_comments(self._tables, self._lander, catalog_snapshot, number)
        new = catalog_snapshot.tables.keys() - self._tables.states.keys()
        fit = {n for n in self._unfit_before & catalog_snapshot.tables.keys() if self._tables.lacks_layout(n)}
        self._tables_to_start |= new | fit | catalog_snapshot.unprepared
        self._unfit_before = set(catalog_snapshot.unfit)

    def _stop_capturing_dropped(self, catalog_snapshot: CatalogSnapshot) -> None:
        """Stop capturing tables that two checks missed (a RENAME may hide one), once their log has landed."""
        landed = self._manifest_history.newest.position
        gone = self._tables.states.keys() - catalog_snapshot.existing
        left = {n for n in gone if self._dropped.get(n, landed + 1) <= landed}
        stop_capturing(self._tables, self._dumps, left)
        seen = catalog_snapshot.position  # less than before if a crash took log back
        self._dropped = {n: min(self._dropped.get(n, seen), seen) for n in gone}

    def _read_seconds(self, now: float, landings: Landings) -> float:
        """Return how many seconds to read: until the next thing is due."""
        flush_seconds = self.config.landing.flush_seconds
        if landings.in_flight or self._dumps.reads_the_last():
            return min(LANDING_SECONDS, flush_seconds)
        pending = now - self._pending_since if self._pending_since is not None else 0.0
        return min(PATIENCE_SECONDS, max(flush_seconds - pending, 0.001))

    def _raise_failure(self) -> None:
        threads = (self._workers, self._intake, self._watch, self._load)
        if error := next((e for e in (self._failure, *(t.failure for t in threads)) if e), None):
            raise error
        self._watch.raise_if_blind()

    def _flush_due(self, reader: LogReader, landings: Landings, read_since: float) -> bool:
        """Return whether to land what is buffered, by the time since it was first read."""
        large_ended = landings.holds_open and reader.position > landings.position
        if not (reader.buffered_rows or large_ended):
            self._pending_since = None
        elif self._pending_since is None:
            self._pending_since = read_since
        if reader.buffered_bytes >= self.config.landing.flush_bytes:
            return True
        waited = time.monotonic() - self._pending_since if self._pending_since is not None else 0.0
        return waited >= self.config.landing.flush_seconds or self._state_due(reader)

    def _state_due(self, reader: LogReader) -> bool:
        """Return whether the next manifest should not wait for changes: chunks, news, or a heartbeat."""
        waited = time.monotonic() - self._last_commit
        chunk_ready = bool(self._dumps.committable(reader.position))
        moved_idly = reader.position > self._manifest_history.newest.position and not reader.buffered_rows
        settings = self.config.landing
        return (
            ((chunk_ready or self._has_news()) and waited >= min(1.0, settings.flush_seconds))
            or (chunk_ready and self._dumps.all_read())
            or bool(self._tables.notices)
            or (moved_idly and waited >= settings.heartbeat_seconds)
        )

    def _has_news(self) -> bool:
        news = self._intake.news or self._dumps.news or bool(self._workers.quarantined)
        return news or self._tables.has_news(self._manifest_history.newest.position)

    def _land(self, reader: LogReader, landings: Landings) -> None:
        """Hand what was read to the landing thread: whole transactions, and parts of one too large."""
        large = reader.buffered_bytes > LARGE_FLUSHES * self.config.landing.flush_bytes
        segment = reader.take()
        self._pending_since = None
        if segment.position > landings.position or segment.rows:
            landings.submit(segment)
        if reader.buffered_bytes >= self.config.landing.flush_bytes // 2 and (part := reader.take_open()):
            landings.submit_part(part)
        if large:
            landings.wait()

    def _commit_landed(self, reader: LogReader, landings: Landings, *, wait: bool = False) -> None:
        """Commit what has landed; if nothing has, commit chunks and news when they are due."""
        landed = landings.take_landed(wait=wait)
        if landed is None:
            if landings.in_flight or reader.buffered_rows or not self._state_due(reader):
                return
            landed = LandedSegment(resume_point_of(self._manifest_history.newest))
        if not self._commit(landed, reader):
            landings.give_back(landed)

    def _commit(self, landed: LandedSegment, reader: LogReader) -> bool:
        """Commit what has landed, and confirm it, unless it has to wait; return whether it is committed."""
        number = self._manifest_history.next_number
        not_yet_visible = reader.not_yet_visible(landed.position)  # may fail: before anything is counted
        newest, chunks = self._manifest_history.newest, self._dumps.committable(landed.position)
        self._tables.note_redefined(landed.redefined, self.config)
        if not self._hidden_columns.withhold(landed, chunks, newest, self.config):
            return False
        last = landed.end.last_commit or newest.last_commit
        end = replace(landed.end, not_yet_visible=tuple(not_yet_visible), last_commit=last)
        for found in [*landed.quarantined, *self._workers.take_quarantined(landed.position)]:
            self._tables.quarantine(found)
        for schema, changed in landed.layouts:
            self._repair(self._tables.adopt(schema, changed), number, changed)
        repair_told(self._tables, self._dumps, landed.unlogged, number, landed.position)
        self._tables.note_before_images(landed.before_images)
        self._tables_to_start |= settle_traits(self._tables, self._dumps, number, landed.position)
        end_dumps_of_quarantined(self._tables, self._dumps)
        files = [*self._tables.landing(landed.files), *self._claim_chunks(landed, chunks, number)]
        tables, dumps = self._tables, self._dumps
        if forget_contradicted_checks(self._source, tables, dumps, landed.logged, landed.position):
            self._checked_at = max(self._checked_at, landed.position)
        failpoint.reach("files-landed")
        with self.progress.commits.timing():
            manifest = self._manifest_history.commit(
                **recorded(end),
                source_committed_at=landed.committed_at or newest.source_committed_at,
                files=files,
                notices=self._tables.take_notices(),
                **self._tables.recorded(number, self._dumps.needs.copy()),
                **self._dumps.recorded(),
            )
        failpoint.reach("manifest-committed")
        self._last_commit = time.monotonic()
        self._intake.committed()
        self.progress.committed(manifest, landed.events)
        reader.confirm(landed.position)
        return True

    def _repair(self, repair: Repair | None, number: int, changed: int) -> None:
        """Queue a dump that is certain to see the layout change: earlier rows would lack values."""
        if repair is None:
            return
        where = None if repair.columns is None else self._source.any_not_null(repair.columns)
        kind: DumpKind = "full" if where is None else "where"
        self._dumps.add(repair.table, manifest=number, kind=kind, where=where, reason="repair", floor=changed)

    def _claim_chunks(
        self, landed: LandedSegment, judged: Sequence[FinishedChunk], number: int
    ) -> list[LandedFile]:
        """Name the chunks' files. Without one of them, no dump ends complete: merges sweep by its chunks."""
        for chunk in sorted((c for c in judged if c.task.dump.active), key=lambda c: c.high):
            if not chunk.task.dump.verifies:
                self._repair(self._tables.adopt(chunk.schema, chunk.low), number, chunk.high)
            self._tables.quarantine_unmasked(chunk.schema, chunk.low)
        end_dumps_of_quarantined(self._tables, self._dumps)
        chunks = self._dumps.take_committable(landed.position, number, judged)
        landed.logged += [each for c in chunks if not c.task.dump.verifies for each in c.read_from]
        for state in self._dumps.finished_in(number):
            if state.kind == "full" and state.table in self._tables.captured():
                self._tables.dumped_by(state)
        return self._tables.landing(c.file for c in chunks if c.file is not None)

    def _finish(self, reader: LogReader, landings: Landings) -> None:
        """End gracefully: land, commit and confirm every whole transaction that was read."""
        self._land(reader, landings)
        while landings.in_flight:
            self._commit_landed(reader, landings, wait=True)
        history = self._manifest_history
        if self._has_news() or self._tables.notices or self._dumps.committable(history.newest.position):
            self._commit(LandedSegment(resume_point_of(history.newest)), reader)
        did = "stopped at" if self._stopping.is_set() else "reading the log anew from"
        log.info("%s %s, manifest %s", did, history.newest.position_text, history.newest.number)
