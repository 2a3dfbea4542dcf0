"""Starts capture: begins a landing zone, or resumes where the newest manifest ends.

Invariants:

- A landing zone belongs to one database (system identifier and name), forever.
- The source is checked under the lease, against the newest manifest. If there is one, a named table that is
  missing was dropped, and a server that writes no log is a gap.
- Nothing that a server says about its log, tables or running transactions becomes durable until its log is
  known to continue what has landed (`gaps`). Before that the address may lead to another server, whose
  positions and ids would start dumps too early or never.
"""

from __future__ import annotations

import logging

from connector.capture.catalog_changes import (
    commit_queued,
    land_new_comments,
    prepare,
    quarantine_unfit,
    queue_initial_and_repair_dumps,
    stop_capturing,
)
from connector.capture.dumps.needs import DumpNeeds
from connector.capture.dumps.queue import DumpQueue
from connector.capture.dumps.schedule import DumpSchedule
from connector.capture.gaps import check_for_gap, recorded
from connector.capture.lander import Lander
from connector.capture.manifest_history import ManifestHistory
from connector.capture.tables import Tables
from connector.config import Config
from connector.errors import PreconditionError, TransientError
from connector.findings import never_dropped, require_fit, unfit_tables
from connector.landing.manifest import Manifest
from connector.source import Source, TableListing

log = logging.getLogger(__name__)


def begin_or_resume(
    source: Source,
    manifest_history: ManifestHistory,
    lander: Lander,
    config: Config,
) -> tuple[Tables, DumpQueue]:
    """Resume where the newest manifest ends, or begin a landing zone.

    The first or next manifest is durable on return. `SourceMismatchError` and `PreconditionError` write
    nothing, nor does `GapError` for a log that is lost (when configured to stop). Tables that a check finds
    unfit are quarantined. After a `TransientError` it can be called again. `LogOffError` is for the caller to
    record (`ManifestHistory.note_log_off`).
    """
    newest = manifest_history.load(source.identity)
    if manifest_history.closes_fence:
        source.evict_former_agent()
    source.ensure_logging()
    findings = source.check() if newest is not None else never_dropped(source.check())
    require_fit(findings)
    listed = source.tables().without(unfit_tables(findings))
    _require_some(listed, newest, config)
    if newest is None:
        return _begin(source, manifest_history, lander, listed, config)
    tables, dumps = _resume(source, newest, lander, listed, config)
    tables.note_landed(newest.position)  # before a check sees others
    stop_capturing(tables, dumps, tables.states.keys() - listed.existing)
    check_for_gap(source, manifest_history, tables, dumps, config)
    prepared = prepare(source, tables)
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    seen = queue_initial_and_repair_dumps(source, manifest_history, tables, dumps, listed, config)
    land_new_comments(tables, lander, seen, manifest_history.next_number)
    commit_queued(manifest_history, tables, dumps, prepared)
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
    source: Source, manifest_history: ManifestHistory, lander: Lander, listed: TableListing, config: Config
) -> tuple[Tables, DumpQueue]:
    source.prepare()
    resume_point = source.begin_log(fresh=False, stopping=manifest_history.is_stopping)
    for schema in listed.schemas:
        lander.ensure_schema(schema)
    catalog_snapshot = source.check_catalog()
    barrier = source.take_xid_barrier()
    tables = Tables({}, {}, columns_keep_order=source.keeps_column_order, config=config)
    dumps = DumpQueue([], epoch=1, schedule=DumpSchedule(config.dump))
    quarantine_unfit(tables, catalog_snapshot)
    passed_over = catalog_snapshot.unfit.keys() | catalog_snapshot.busy
    for schema in (s for s in listed.schemas if s.table not in passed_over):
        tables.add(schema)
        tables.update(schema.table, fingerprint=catalog_snapshot.tables.get(schema.table))
        floor = catalog_snapshot.position
        if tables.has_key(schema.table):
            dumps.add(schema.table, manifest=1, reason="initial", floor=floor, xid_barrier=barrier)
        else:
            tables.update(schema.table, reported_upto=(1, floor))
    for problem in listed.unfit:
        tables.quarantine_unfit(problem, resume_point.position)
    dumps.start_unblocked(source.position_past_barrier)
    tables.note_names(catalog_snapshot.look)
    tables.traits.note_check(catalog_snapshot, tables.states)
    land_new_comments(tables, lander, catalog_snapshot, 1)
    manifest_history.begin(
        source.identity().model_copy(update={"server": resume_point.server}),
        epoch=1,
        **recorded(resume_point),
        **tables.recorded(1, dumps.needs.copy()),
        **dumps.recorded(),
        notices=tables.take_notices(),
    )
    log.info(
        "beginning a new history at %s, %s tables to dump",
        manifest_history.newest.position_text,
        len(listed.schemas),
    )
    return tables, dumps


def _resume(
    source: Source, newest: Manifest, lander: Lander, listed: TableListing, config: Config
) -> tuple[Tables, DumpQueue]:
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
        columns_keep_order=source.keeps_column_order,
        former_names=dict(newest.former_names),
        config=config,
    )
    states = [d.model_copy(deep=True) for d in newest.dumps]
    schedule = DumpSchedule(config.dump, newest.dump_control)
    needs = DumpNeeds.of(newest.tables)
    return tables, DumpQueue(states, newest.epoch, newest.last_dump_number, schedule, needs)
