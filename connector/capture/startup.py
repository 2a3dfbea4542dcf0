"""The start of capture, and the restart after a gap: which history, which tables, which dumps.

Invariants:

- A landing zone belongs to one database (system identifier and name), forever.
- Nothing that a server says of its log, tables or running transactions becomes durable before that server's
  log is known to continue what has landed. Until then the address may lead to another server, by whose
  positions and ids dumps would begin too early or never.
- The epoch grows whenever the log between the newest manifest's position and what the source still has is
  not whole, and when it continues in another server's log (a failover), where positions mean something else.
- A gap is written into the manifest that begins the new epoch, together with the repair dumps,
  so it can never be forgotten.
- A crash after the new slot was made and before that manifest is detected again as a gap, since the slot's
  position is then ahead of the newest manifest's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from connector.capture.dump_queue import DumpQueue
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestLog, check_identity
from connector.capture.tables import HINT, Tables
from connector.config import Config
from connector.errors import GapError, PreconditionError, TableError, TransientError
from connector.landing.manifest import Gap, Manifest
from connector.schema import TableName
from connector.source import (
    CatalogSnapshot,
    Failover,
    PreparedSource,
    ResumePoint,
    Source,
    TableListing,
    UnloggedChange,
    checked_tables,
)

log = logging.getLogger(__name__)


def resume_point_of(manifest: Manifest) -> ResumePoint:
    """Return the point after a manifest where the log resumes."""
    return ResumePoint(
        manifest.position,
        tuple(manifest.not_yet_visible),
        manifest.gtids,
        manifest.source.server,
        manifest.gtids_needed,
        manifest.last_commit,
    )


def open_history(
    source: Source,
    manifest_log: ManifestLog,
    lander: Lander,
    config: Config,
    unfit: Sequence[TableError] = (),
) -> tuple[Tables, DumpQueue]:
    """Resume where the newest manifest ends, or begin a landing zone.

    The first or next manifest is durable on return. `SourceMismatchError` and `PreconditionError` write
    nothing, nor does `GapError` for a log that is lost (when configured to stop). After a `TransientError` it
    can be called again. `LogOffError` is for the caller to record (`ManifestLog.note_log_off`).
    """
    newest = manifest_log.load(source.identity)
    source.ensure_logging()
    listed = source.tables().without(unfit)
    _require_some(listed, newest, config)
    if newest is None:
        return _begin(source, manifest_log, lander, listed)
    tables, dumps = _resume(newest, lander, listed)
    stop_capturing(tables, dumps, tables.states.keys() - listed.existing)
    ensure_log_continues(source, manifest_log, tables, dumps, config)
    prepared = source.prepare()
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    _queue_initial_and_repair_dumps(source, manifest_log, tables, dumps, listed, prepared, config)
    _commit_queued(manifest_log, tables, dumps, prepared)
    log.info("resuming after manifest %s at %s", newest.number, newest.position_text)
    return tables, dumps


def _require_some(listed: TableListing, newest: Manifest | None, config: Config) -> None:
    """Raise if no table can be captured. One that can't be captured does not affect the others."""
    if listed.schemas:
        return
    if listed.busy:
        raise TransientError(f"{min(listed.busy)} is locked by other sessions")
    if listed.unfit:
        problems = "; ".join(map(str, listed.unfit))
        only = listed.unfit[0].hint if len(listed.unfit) == 1 else None
        raise PreconditionError(
            f"no table can be captured: {problems}",
            hint=only or "`deltatide check` shows how to fix each of them",
        )
    nothing = f"no table matches source.tables = {config.source.tables}"
    if newest is not None and newest.tables:
        raise TransientError(f"{nothing} at the moment")  # during a RENAME, a restore, a deployment
    raise PreconditionError(nothing, hint="set source.tables to names like namespace.table")


def _begin(
    source: Source, manifest_log: ManifestLog, lander: Lander, listed: TableListing
) -> tuple[Tables, DumpQueue]:
    source.prepare()
    resume_point = source.begin_log(fresh=False)
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    catalog_snapshot = source.check_catalog()
    barrier = source.take_xid_barrier()
    tables, dumps = Tables({}, {}), DumpQueue([], epoch=1)
    _quarantine_unfit(tables, catalog_snapshot)
    passed_over = catalog_snapshot.unfit.keys() | catalog_snapshot.busy
    for schema in (s for s in listed.schemas if s.table not in passed_over):
        tables.add(schema)
        tables.update(schema.table, fingerprint=catalog_snapshot.tables.get(schema.table))
        dumps.add(
            schema.table, manifest=1, reason="initial", floor=catalog_snapshot.position, xid_barrier=barrier
        )
    for problem in listed.unfit:
        tables.quarantine_unfit(problem, resume_point.position)
    dumps.start_unblocked(source.position_past_barrier)
    manifest_log.begin(
        source.identity().model_copy(update={"server": resume_point.server}),
        epoch=1,
        position=resume_point.position,
        gtids=resume_point.gtids,
        not_yet_visible=list(resume_point.not_yet_visible),
        last_commit=resume_point.last_commit,
        tables=tables.snapshot(1),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        notices=tables.take_notices(),
    )
    log.info(
        "beginning a new history at %s, %s tables to dump",
        manifest_log.newest.position_text,
        len(listed.schemas),
    )
    return tables, dumps


def _resume(newest: Manifest, lander: Lander, listed: TableListing) -> tuple[Tables, DumpQueue]:
    """Restore the state of the newest manifest; reads only the layouts that are no longer the source's."""
    lander.assume_landed(newest)
    known = {(schema.table, schema.id): schema for schema in listed.schemas}
    tables = Tables(
        dict(newest.tables),
        {
            name: known.get((name, state.schema_id)) or lander.load_schema(name, state.schema_id)
            for name, state in newest.tables.items()
            if state.schema_id is not None
        },
    )
    states = [d.model_copy(deep=True) for d in newest.dumps]
    return tables, DumpQueue(states, epoch=newest.epoch, last_number=newest.last_dump_number)


def start_capturing(
    source: Source,
    manifest_log: ManifestLog,
    lander: Lander,
    tables: Tables,
    dumps: DumpQueue,
    config: Config,
    names: Collection[TableName],
) -> int:
    """Let the log carry all tables, start capturing new ones (`names`), and repair, while no log is open.

    To be called after `ensure_log_continues`. Returns the position of its catalog check. Durable on return:
    the manifest with what was queued, if anything was.
    """
    prepared = source.prepare()
    listed = checked_tables(source, names) if names else TableListing([], [])
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    catalog_snapshot = _queue_initial_and_repair_dumps(
        source, manifest_log, tables, dumps, listed, prepared, config
    )
    if tables.notices or dumps.news:
        _commit_queued(manifest_log, tables, dumps, prepared)
    return catalog_snapshot.position


def stop_capturing(tables: Tables, dumps: DumpQueue, names: Iterable[TableName]) -> None:
    """Stop capturing tables: dropped ones, and those that the configuration no longer names."""
    for name in names:
        tables.remove(name)
        for state in dumps.active_of(name):
            dumps.end(state, "cancelled", "the table is no longer captured")


def _queue_initial_and_repair_dumps(
    source: Source,
    manifest_log: ManifestLog,
    tables: Tables,
    dumps: DumpQueue,
    listed: TableListing,
    prepared: PreparedSource,
    config: Config,
) -> CatalogSnapshot:
    """Queue dumps of new tables, and of those that changed without row events.

    Tables that can't be captured (any more) are quarantined. A dump of a released table begins only where the
    log has the table. A new table that others keep locked is left to a later check, because its dump relies
    on its first fingerprint.

    The check comes after `prepare`, so a dump's floor is after the moment from which the log has its table.
    Floors and barriers are assigned before the source has made them durable. A crash may undo them, and the
    log may take long to reach them again, so any beyond the current position are lowered.
    A new table may have been in the log all along, with rows as they were before the check, so its dump also
    begins after what was running at that time.
    """
    catalog_snapshot = source.check_catalog(tables.fingerprints())
    dumps.lower_unreachable_floors(source.take_xid_barrier, catalog_snapshot.position)
    for problem in listed.unfit:
        tables.quarantine_unfit(problem, catalog_snapshot.position)
    _quarantine_busy(tables, catalog_snapshot)
    undumped = _awaiting_publication(tables, prepared)
    passed_over = catalog_snapshot.unfit.keys() | catalog_snapshot.busy
    new = [s for s in listed.schemas if tables.lacks_layout(s.table) and s.table not in passed_over]
    barrier = source.take_xid_barrier() if undumped or new else None
    postponed = {name for name in undumped if dumps.postpone(name, catalog_snapshot.position, barrier)}
    added = [name for name in prepared.added if name not in postponed]
    repair_unlogged(source, tables, dumps, catalog_snapshot, manifest_log.next_number, config, added=added)
    for schema in new:
        name, floor = schema.table, catalog_snapshot.position
        tables.add(schema)
        tables.update(name, fingerprint=catalog_snapshot.tables.get(name))
        tables.notice(name, "schema", "capture begins")
        dumps.add(name, manifest=manifest_log.next_number, reason="initial", floor=floor, xid_barrier=barrier)
    dumps.start_unblocked(source.position_past_barrier)
    return catalog_snapshot


def _awaiting_publication(tables: Tables, prepared: PreparedSource) -> set[TableName]:
    """Return the tables whose first dump must not begin before the log is certain to have them.

    Those that were added to it now, and those without a fingerprint: they were released, and may have been
    added by an earlier attempt that did not get this far.
    """
    return {
        name
        for name, state in tables.states.items()
        if state.state == "captured"
        and not state.dumped
        and (name in prepared.added or state.fingerprint is None)
    }


def _commit_queued(
    manifest_log: ManifestLog, tables: Tables, dumps: DumpQueue, prepared: PreparedSource
) -> None:
    began = any(dump.started_in == manifest_log.next_number for dump in dumps.states)
    barrier = prepared.not_yet_visible if began else ()
    manifest_log.commit(
        notices=tables.take_notices(),
        tables=tables.snapshot(manifest_log.next_number),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        not_yet_visible=[*manifest_log.newest.not_yet_visible, *barrier],
    )


def repair_unlogged(
    source: Source,
    tables: Tables,
    dumps: DumpQueue,
    catalog_snapshot: CatalogSnapshot,
    next_number: int,
    config: Config,
    *,
    added: Collection[TableName] = (),
) -> None:
    """Queue a full dump of each table that changed without row events, and remember what was seen.

    The dump begins when the log has been read up to the check, and to the end of what was running then:
    remaining log events for deleted rows must precede the dump. Tables that the log does not carry
    yet (`unprepared`) wait for `start_capturing`. `added`: tables that the log lacked until now.
    `GapError`, and nothing is remembered, if log is lost and the configuration says to stop.
    """
    _quarantine_unfit(tables, catalog_snapshot)
    seen = {
        name: fingerprint
        for name, fingerprint in catalog_snapshot.tables.items()
        if name in tables.states and name not in catalog_snapshot.unprepared
    }
    found = _columns_back(tables, catalog_snapshot, seen) | _unlogged_changes(source, tables, seen, added)
    lost = [f"{name}: {what.reason}" for name, what in found.items() if what.lost]
    if lost and config.source.on_gap == "stop":
        raise GapError(
            f"changes of these tables are not in the log: {'; '.join(lost)}",
            hint='set source.on_gap = "repair" to dump these tables again',
        )
    barrier = source.take_xid_barrier() if found else None  # may fail: before anything is remembered
    for name, fingerprint in seen.items():
        _remember(source, tables, catalog_snapshot, name, fingerprint)
    for name, what in found.items():
        tables.notice(name, "gap", f"{what.reason}: dumping it again")
        _queue_repair(dumps, name, next_number, catalog_snapshot.position, barrier)
    dumps.start_unblocked(source.position_past_barrier)


def _queue_repair(dumps: DumpQueue, table: TableName, manifest: int, floor: int, barrier: int | None) -> None:
    """Queue a full dump that sees every commit before `floor`; it replaces all active dumps except repairs.

    A repair that has begun continues, and the next one waits for its end; otherwise no repair would ever end
    when changes come more often than a dump takes. One that has not begun is postponed instead.
    """
    active = [state for state in dumps.active_of(table) if state.kind == "full"]
    for state in active:
        if state.reason != "repair":
            dumps.end(state, "cancelled", "replaced by a later dump of the table")
    if not dumps.postpone(table, floor, barrier):
        dumps.add(table, manifest=manifest, reason="repair", floor=floor, xid_barrier=barrier)


def _quarantine_unfit(tables: Tables, catalog_snapshot: CatalogSnapshot) -> None:
    for name, unfit in catalog_snapshot.unfit.items():
        tables.quarantine_unfit(TableError(name, unfit.reason, hint=unfit.hint), catalog_snapshot.position)
        tables.update(name, fingerprint=None)


def _quarantine_busy(tables: Tables, catalog_snapshot: CatalogSnapshot) -> None:
    """Quarantine again what was released but is now locked: a dump without a fingerprint is not safe."""
    for name in catalog_snapshot.busy & tables.states.keys():
        state = tables.states[name]
        if state.state == "captured" and state.fingerprint is None:
            tables.quarantine_unfit(
                TableError(name, "other sessions keep it locked", hint=HINT), catalog_snapshot.position
            )


def _unlogged_changes(
    source: Source, tables: Tables, seen: Mapping[TableName, str], added: Collection[TableName]
) -> dict[TableName, UnloggedChange]:
    found = {}
    for name, now in seen.items():
        state = tables.states[name]
        if state.state != "captured":
            continue  # a dump follows on release
        before = state.fingerprint
        what = source.unlogged(before, now) if before not in (None, now) else None
        if name in added:
            what = UnloggedChange("it was missing from the publication for a time", lost=True)
        if what is not None:
            found[name] = what
    return found


def _remember(
    source: Source, tables: Tables, catalog_snapshot: CatalogSnapshot, name: TableName, fingerprint: str
) -> None:
    state = tables.states[name]
    if state.state != "captured":
        tables.update(name, fingerprint=None)
        return
    tables.update(name, fingerprint=source.remember(state.fingerprint, fingerprint))
    if name in catalog_snapshot.columns:
        tables.note_columns(name, catalog_snapshot.columns[name])


def _columns_back(
    tables: Tables, catalog_snapshot: CatalogSnapshot, seen: Collection[TableName]
) -> dict[TableName, UnloggedChange]:
    landing = [name for name in tables.captured() if name in seen and name in catalog_snapshot.columns]
    back = [name for name in landing if tables.readds_dropped_column(name, catalog_snapshot.columns[name])]
    return {name: UnloggedChange("a column was added under the name of a dropped one") for name in back}


def ensure_log_continues(
    source: Source, manifest_log: ManifestLog, tables: Tables, dumps: DumpQueue, config: Config
) -> bool:
    """Check whether the log after the newest manifest is whole; if not, begin a new epoch and return True.

    Durable on return: the manifest of the new epoch, with the gap and a repair dump of each table that lands;
    after a failover, with the unfinished work going on instead.
    `FencedError` if the log is ahead because another agent has gone on.
    """
    newest = manifest_log.newest
    reason = newest.pending_gap or source.check_resumable(resume_point_of(newest))
    if reason is None:
        return False
    manifest_log.verify()  # another agent's progress looks like a gap, and its slot is not ours to drop
    check_identity(newest.source, source.identity(newest))  # the address may now lead to another database
    if isinstance(reason, Failover):
        _resume_after_failover(source, manifest_log, tables, dumps, reason)
        return True
    if config.source.on_gap == "stop":
        raise GapError(
            f"the log after {newest.position_text} is lost: {reason}",
            hint='set source.on_gap = "repair" to begin a new epoch and dump all tables again',
        )
    log.error("gap: the log after %s is lost: %s; dumping all tables again", newest.position_text, reason)
    resume_point = source.begin_log(fresh=True)
    epoch = newest.epoch + 1
    dumps.begin_epoch(epoch)
    for name in tables.captured():
        dumps.add(name, manifest=manifest_log.next_number, reason="repair")
    gap = Gap(
        epoch=epoch,
        after=newest.position,
        before=resume_point.position,
        reason=reason,
        found_at=datetime.now(timezone.utc),
    )
    tables.notice(None, "gap", reason)
    _commit_epoch(manifest_log, tables, dumps, resume_point, gaps=[*newest.gaps, gap], pending_gap=None)
    return True


def _resume_after_failover(
    source: Source, manifest_log: ManifestLog, tables: Tables, dumps: DumpQueue, failover: Failover
) -> None:
    """Begin the epoch of another server's log, in which nothing is missing, or stay in the old epoch."""
    log.warning("failover: %s", failover.reason)
    if failover.same_positions:
        tables.notice(None, "failover", failover.reason)
        manifest_log.commit(
            notices=tables.take_notices(),
            source=manifest_log.newest.source.model_copy(update={"server": failover.resume_point.server}),
        )
        return
    dumps.continue_in_epoch(manifest_log.newest.epoch + 1, manifest=manifest_log.next_number)
    tables.notice(None, "failover", failover.reason)
    _commit_epoch(manifest_log, tables, dumps, failover.resume_point)


def _commit_epoch(
    manifest_log: ManifestLog, tables: Tables, dumps: DumpQueue, resume_point: ResumePoint, **changes: Any
) -> None:
    tables.begin_epoch()
    manifest_log.commit(
        notices=tables.take_notices(),
        source=manifest_log.newest.source.model_copy(update={"server": resume_point.server}),
        epoch=dumps.epoch,
        position=resume_point.position,
        gtids=resume_point.gtids,
        gtids_needed=resume_point.gtids_needed,
        tables=tables.snapshot(manifest_log.next_number),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        not_yet_visible=list(resume_point.not_yet_visible),
        last_commit=resume_point.last_commit,
        **changes,
    )
