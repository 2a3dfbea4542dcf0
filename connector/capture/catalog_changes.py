"""Acts on catalog checks: decides which tables are captured, dumped, and quarantined.

New tables are dumped. Tables that changed without row events are dumped again; the log may tell of them, too.
Tables that can't be captured (anymore) are quarantined. Dropped tables are no longer captured. Changed
comments land; they change nothing else.

Invariants:

- A dump's floor is a position after the check that asked for it. If a transaction from before the change was
  still running, the floor is after its end: its events may be older in effect.
- The manifest that queues a dump also records the fingerprint that asked for it.
- A dump needs a fingerprint: without one, unlogged changes during the dump would go unseen.
- When the log begins to carry a table, it may lack writes of transactions that were running then.
  `Tables.joined` remembers such tables until a check has seen them and queued dumps: opening the log may fail
  before that, and the next attempt finds the tables in the log. A captured table without a fingerprint counts
  as one of them, whatever has become of its dump.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from connector.capture.dumps.queue import DumpQueue
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestHistory
from connector.capture.tables import HINT, Tables
from connector.config import Config, TableConfig
from connector.errors import GapError, RequestError, TableError
from connector.findings import checked_tables
from connector.landing.event_batch import UnloggedNotice
from connector.landing.format import comments_id
from connector.landing.manifest import DumpNeed, DumpState, TableState
from connector.logged_table import LoggedTable
from connector.schema import TableComments, TableName
from connector.source import (
    CatalogSnapshot,
    PreparedSource,
    Source,
    TableListing,
    UnloggedChange,
)

log = logging.getLogger(__name__)


def start_capturing(
    source: Source,
    manifest_history: ManifestHistory,
    lander: Lander,
    tables: Tables,
    dumps: DumpQueue,
    config: Config,
    names: Collection[TableName],
) -> int:
    """Make the log carry all tables, start capturing new ones (`names`), and repair, while no log is open.

    Call it after `check_for_gap`. Returns the position of its catalog check. Durable on return: the manifest
    with the queued dumps, if there are any.
    """
    prepared = prepare(source, tables)
    listed = checked_tables(source, names) if names else TableListing([], [])
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    catalog_snapshot = queue_initial_and_repair_dumps(source, manifest_history, tables, dumps, listed, config)
    land_new_comments(tables, lander, catalog_snapshot, manifest_history.next_number)
    if tables.notices or dumps.news:
        commit_queued(manifest_history, tables, dumps, prepared)
    return catalog_snapshot.position


def prepare(source: Source, tables: Tables) -> PreparedSource:
    """Make the log carry all tables, and remember which ones it lacked."""
    prepared = source.prepare()
    tables.joined.update(prepared.added)
    return prepared


def stop_capturing(tables: Tables, dumps: DumpQueue, names: Iterable[TableName]) -> None:
    """Stop capturing tables: dropped ones, and those that the configuration no longer names."""
    for name in names:
        tables.remove(name)
        _end_dumps(dumps, name, "the table is no longer captured")


def _end_dumps(dumps: DumpQueue, name: TableName, why: str) -> None:
    """End the dumps of a table that needs none."""
    for state in dumps.active_of(name):
        dumps.end(state, "cancelled", why)
    dumps.needs.forget(name)


def end_dumps_of_quarantined(tables: Tables, dumps: DumpQueue) -> None:
    """End the dumps of quarantined tables: a full dump releases them."""
    for dump in [state for state in dumps.states if state.active]:
        table = tables.states.get(dump.table)
        if table is not None and table.state == "quarantined":
            dumps.end(dump, "failed", f"the table is quarantined: {table.reason}")


def require_some_named(tables: Tables, config: Config) -> None:
    """Raise `RequestError` if a changed configuration names no captured table: probably a mistake."""
    if tables.states and not any(map(config.source.captures, tables.states)):
        raise RequestError(
            f"source.tables = {config.source.tables} matches none of the captured tables;"
            " to capture only others, restart the agent"
        )


def capture_named(source: Source, tables: Tables, dumps: DumpQueue, config: Config) -> set[TableName]:
    """Capture the tables that a changed configuration names, while no log is open; return the new ones.

    Stops capturing tables that it no longer names, and ends their dumps; other dumps go on. `start_capturing`
    makes this durable; an agent that starts before that derives the same from the configuration.
    """
    source.reconfigure(config.source, config.tables)
    stop_capturing(tables, dumps, [name for name in tables.states if not config.source.captures(name)])
    changed = {
        n for n, its in tables.states.items() if its.schema_id and _changes_its_key(its, config.table(n))
    }
    return source.tables().existing - (tables.states.keys() - changed)


def _changes_its_key(state: TableState, settings: TableConfig) -> bool:
    """Return whether a table is no longer to be captured with, or without, a key."""
    return state.state == "captured" and settings.only_changes == bool(state.key)


def queue_initial_and_repair_dumps(
    source: Source,
    manifest_history: ManifestHistory,
    tables: Tables,
    dumps: DumpQueue,
    listed: TableListing,
    config: Config,
) -> CatalogSnapshot:
    """Queue dumps of new tables, and of those that changed without row events.

    Quarantines tables that can't be captured (anymore). A dump of a released table begins only where the log
    has the table. A new table that other sessions keep locked waits for a later check, because its dump needs
    its first fingerprint.

    The check comes after `prepare`, so a dump's floor is after the point from which the log has its table.
    Floors and barriers are assigned before the source has made them durable. A crash may undo them, and the
    log may take long to reach them again, so any beyond the current position are lowered.
    A new table may have been in the log all along, with rows from before the check. So its dump also begins
    after all transactions that were running then.
    """
    catalog_snapshot = source.check_catalog(tables.fingerprints())
    for schema in filter(tables.keep_only_changes, listed.schemas):
        _end_dumps(dumps, schema.table, "only its changes are captured")
    dumps.lower_unreachable_floors(source.take_xid_barrier, catalog_snapshot.position)
    dumps.carry_gaps(tables.states, catalog_snapshot.position)
    for problem in listed.unfit:
        tables.quarantine_unfit(problem, catalog_snapshot.position)
    _quarantine_busy(tables, catalog_snapshot)
    undumped = _awaiting_publication(tables)
    passed_over = catalog_snapshot.unfit.keys() | catalog_snapshot.busy
    new = [s for s in listed.schemas if tables.begins_with(s) and s.table not in passed_over]
    barrier = source.take_xid_barrier() if undumped or new else None
    unbegun = {
        name
        for name in undumped
        if not _only_dump_has_begun(dumps, name) and dumps.require(name, catalog_snapshot.position, barrier)
    }
    # first seen in the publication: it may have joined during an attempt or run that did not get this far
    unseen = {n for n in tables.captured() if tables.states[n].fingerprint is None}
    begun = {n for n in unseen if tables.states[n].dumped or _only_dump_has_begun(dumps, n)}
    added = (tables.joined | begun) - unbegun - {n for n in unseen if not tables.has_key(n)}
    repair_unlogged(
        source, tables, dumps, catalog_snapshot, manifest_history.next_number, config, added=added
    )
    tables.joined -= catalog_snapshot.tables.keys()
    for schema in new:
        name, floor = schema.table, catalog_snapshot.position
        tables.add(schema)
        tables.update(name, fingerprint=catalog_snapshot.tables.get(name))
        tables.notice(name, "schema", "capture begins")
        if tables.has_key(name):
            number = manifest_history.next_number
            dumps.needs.note_gap(name, dumps.epoch, manifest_history.newest.position)  # it may be back
            dumps.add(name, manifest=number, reason="initial", floor=floor, xid_barrier=barrier)
        else:
            tables.update(name, reported_upto=(dumps.epoch, floor))
    tables.note_names(catalog_snapshot.look)
    dumps.start_unblocked(source.position_past_barrier)
    return catalog_snapshot


def _only_dump_has_begun(dumps: DumpQueue, table: TableName) -> bool:
    """Return whether a table has a full dump that has begun, and none waiting to begin."""
    return {dump.state for dump in dumps.active_of(table) if dump.kind == "full"} == {"running"}


def _awaiting_publication(tables: Tables) -> set[TableName]:
    """Return the tables whose first dump must not begin before the log is certain to have them.

    These are tables added to the log lately, and released tables without a fingerprint, which an earlier
    attempt that did not get this far may have added.
    """
    return {
        name
        for name, state in tables.states.items()
        if state.state == "captured"
        and not state.dumped
        and (name in tables.joined or state.fingerprint is None)
    }


def commit_queued(
    manifest_history: ManifestHistory, tables: Tables, dumps: DumpQueue, prepared: PreparedSource
) -> None:
    """Commit what was queued; durable on return. An xid barrier counts only if a dump was queued."""
    began = any(dump.started_in == manifest_history.next_number for dump in dumps.states)
    barrier = prepared.not_yet_visible if began else ()
    manifest_history.commit(
        notices=tables.take_notices(),
        **tables.recorded(manifest_history.next_number, dumps.needs.copy()),
        **dumps.recorded(),
        not_yet_visible=[*manifest_history.newest.not_yet_visible, *barrier],
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
    """Queue a full dump of each table that changed without row events, and record the new fingerprints.

    The dump begins once the log has been read up to the check, and up to the end of all transactions running
    then: remaining log events of deleted rows must precede the dump. Tables that the log does not carry yet
    (`unprepared`) wait for `start_capturing`. `added`: tables that the log lacked until now.
    `GapError`, and nothing is recorded, if log is lost and the configuration says to stop.
    """
    quarantine_unfit(tables, catalog_snapshot)
    tables.note_names(catalog_snapshot.look)
    tables.traits.note_check(catalog_snapshot, tables.states)
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
    barrier = source.take_xid_barrier() if found else None  # may fail, so before anything is recorded
    reported = (dumps.epoch, catalog_snapshot.position)
    for name, fingerprint in seen.items():
        if tables.states[name].fingerprint is None and not tables.has_key(name):
            tables.update(name, reported_upto=reported)
        _remember(source, tables, catalog_snapshot, name, fingerprint)
    for name, what in found.items():
        if not tables.has_key(name):
            tables.notice(name, "gap", f"{what.reason}: row changes that this made did not land")
            tables.update(name, reported_upto=reported)
            continue
        tables.notice(name, "gap", f"{what.reason}: dumping it again")
        _queue_repair(dumps, name, next_number, catalog_snapshot.position, barrier)
    dumps.start_unblocked(source.position_past_barrier)


def repair_told(
    tables: Tables, dumps: DumpQueue, told: Iterable[UnloggedNotice], number: int, position: int
) -> None:
    """Queue a full dump of each table that changed without row events by what the log up to a position says.

    The next manifest, `number`, has both that log and the dump, so no crash or failover leaves one without
    the other. The dump begins at the position, so it sees what the statement did.
    """
    reasons = {notice.table: notice.reason for notice in told}
    for name in [name for name in tables.captured() if name in reasons]:
        if not tables.has_key(name):
            tables.notice(name, "gap", f"{reasons[name]}: row changes that this made did not land")
            tables.update(name, reported_upto=(dumps.epoch, position))
        elif not dumps.needs.will_show(name, dumps.active_of(name), position):
            tables.notice(name, "gap", f"{reasons[name]}: dumping it again")
            _queue_repair(dumps, name, number, position, None)


def settle_traits(tables: Tables, dumps: DumpQueue, number: int, position: int) -> set[TableName]:
    """Record the traits of columns that count at a position; return tables for which to open the log anew.

    Those changed without a statement in the log, which may have been misread since: they are dumped again.
    """
    changed = set()
    for name, traits in tables.traits.take(position, tables.states).items():
        if tables.states[name].traits is not None and tables.states[name].state == "captured":
            log.warning("%s: %s", name, _TRAITS_CHANGED)
            changed.add(name)
            if tables.has_key(name):
                tables.notice(name, "gap", f"{_TRAITS_CHANGED}: dumping it again")
                _queue_repair(dumps, name, number, position, None)
            else:
                tables.notice(name, "gap", f"{_TRAITS_CHANGED}: changes since then may have been misread")
        tables.update(name, traits=dict(traits))
    return changed


_TRAITS_CHANGED = "its definition changed without a statement in the log"


def _queue_repair(dumps: DumpQueue, table: TableName, manifest: int, floor: int, barrier: int | None) -> None:
    """Queue a full dump that sees every commit before `floor`; it replaces all active dumps except repairs.

    A repair that has begun continues, and the next one waits for it; otherwise, if changes come faster than
    dumps finish, no repair would ever end. One that has not begun is postponed instead.
    """
    active = [state for state in dumps.active_of(table) if state.kind == "full"]
    for state in active:
        if state.reason != "repair":
            dumps.end(state, "cancelled", "replaced by a later dump of the table")
    if not dumps.require(table, floor, barrier):
        dumps.add(table, manifest=manifest, reason="repair", floor=floor, xid_barrier=barrier)


def land_new_comments(
    tables: Tables, lander: Lander, catalog_snapshot: CatalogSnapshot, manifest: int
) -> None:
    """Land the comments that have changed, for manifest number `manifest`, the next one, to name.

    Tables that the check could not examine keep theirs.
    """
    seen = catalog_snapshot.tables.keys() & tables.states.keys()
    found = (catalog_snapshot.comments.get(name, TableComments(name)) for name in seen)
    new = {comments_id(manifest, its.digest): its for its in found if not tables.has_comments(its)}
    if new:
        lander.land_comments(new)
        tables.note_comments(new)


def quarantine_unfit(tables: Tables, catalog_snapshot: CatalogSnapshot) -> None:
    """Quarantine the tables that can't be captured, and forget their fingerprints."""
    for name, unfit in catalog_snapshot.unfit.items():
        tables.quarantine_unfit(TableError(name, unfit.reason, hint=unfit.hint), catalog_snapshot.position)
        tables.update(name, fingerprint=None)


def _quarantine_busy(tables: Tables, catalog_snapshot: CatalogSnapshot) -> None:
    """Quarantine released tables that are now locked: a dump without a fingerprint is not safe."""
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


def forget_contradicted_checks(
    source: Source, tables: Tables, dumps: DumpQueue, logged: Sequence[LoggedTable], landed: int
) -> bool:
    """Forget what checks found of tables that the log describes differently; return whether there are any.

    A later check repairs them, and the caller must not apply an older one. Until they are dumped again, no
    cut with the log up to `landed` is exact. Tables without a key can't be repaired: that is reported.
    """
    if not logged:
        return False
    contradicted_by_log = source.contradicted_by_log(
        tables.fingerprints(), logged, lambda *one: _repaired_upto(tables, dumps, *one)
    )
    is_renamed = any(each.former for each in logged)
    for table, fingerprint in contradicted_by_log.items():
        is_new = fingerprint != tables.states[table].fingerprint
        tables.update(table, fingerprint=fingerprint)
        if tables.has_key(table):
            dumps.require(table, landed, None)
        elif is_renamed and is_new:
            log.warning("%s: %s", table, _MISPLACED)
            tables.notice(table, "gap", _MISPLACED)
    return bool(contradicted_by_log)


_MISPLACED = (
    "tables were renamed, or may have been before they were dropped, and the server logs their changes under"
    " former names: changes that land from here on may be another table's, or land as another table's, until"
    " the log is opened again"
)
"""Said of tables without a key, which no dump repairs."""


def _repaired_upto(tables: Tables, dumps: DumpQueue, name: TableName, logged: LoggedTable) -> int:
    """Return the position before which log does not matter: a full dump sees, or saw, all commits there.

    One that waits for transactions to end sees all log so far: its floor will be after their end. For a table
    without a key, it is where capture began, or where a check reported a gap; but under a former name its
    changes are misplaced all the same.
    """
    state = tables.states[name]
    if not tables.has_key(name):
        epoch, upto = state.reported_upto or (dumps.epoch, 0)
        return upto if epoch == dumps.epoch and not logged.former else 0
    need, ended = dumps.needs.by_table.get(name), state.full_dump
    awaited: list[DumpState | DumpNeed] = [d for d in dumps.active_of(name) if d.kind == "full"]
    awaited += [need] if need is not None else []
    if any(each.xid_barrier is not None for each in awaited):
        return sys.maxsize
    floors = [each.floor or 0 for each in awaited]
    if ended is not None and ended.epoch == dumps.epoch:
        floors.append(ended.low + 1)
    return max(floors, default=0)


def _columns_back(
    tables: Tables, catalog_snapshot: CatalogSnapshot, seen: Collection[TableName]
) -> dict[TableName, UnloggedChange]:
    landing = [n for n in tables.captured() if n in seen and n in catalog_snapshot.columns]
    landing = [name for name in landing if tables.has_key(name)]  # else no row holds the old values
    back = [name for name in landing if tables.readds_dropped_column(name, catalog_snapshot.columns[name])]
    return {name: UnloggedChange("a column was added under the name of a dropped one") for name in back}


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
