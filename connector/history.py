"""The start of capture, and the start over after a gap: which history, which tables, which dumps.

Invariants:

- A landing zone belongs to one database (system identifier and name), for ever.
- The epoch grows whenever the log between the newest manifest's position and what the source still has is
  not whole, and when it goes on in another server's log (a failover), where positions mean something else.
- A gap is written into the manifest that begins the new epoch, together with the repair dumps:
  there is no moment at which it could be forgotten.
- A crash after the new slot was made and before that manifest is seen again as a gap, since the slot's
  position is then ahead of the newest manifest's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from connector.config import Config
from connector.dump import Dumps
from connector.errors import GapError, PreconditionError, TransientError
from connector.lander import Lander
from connector.ledger import Ledger, check_identity
from connector.manifest import Gap, Manifest, UnsettledCommit
from connector.schema import TableSchema
from connector.source import Failover, History, Outlook, Prepared, Source
from connector.tables import Tables

log = logging.getLogger(__name__)


def open_history(source: Source, ledger: Ledger, lander: Lander, config: Config) -> tuple[Tables, Dumps]:
    """Go on where the newest manifest ends, or begin a landing zone.

    The first or next manifest is durable on return. `SourceMismatchError` and `PreconditionError` write
    nothing, `GapError` (when configured to stop) leaves no new epoch. After a `TransientError` it can be
    called again.
    """
    newest = ledger.load(source.identity)
    prepared = source.prepare()
    schemas = source.tables()
    if not schemas:
        nothing = f"no table matches source.tables = {config.source.tables}"
        if newest is not None and newest.tables:
            raise TransientError(f"{nothing} any more")  # in the middle of a RENAME, a restore, a deployment
        raise PreconditionError(nothing, hint="name tables as namespace.table")
    for schema in schemas:
        lander.ensure_schema(schema)
    if newest is None:
        return _begin(source, ledger, schemas)
    tables, dumps = _resume(newest, lander)
    leave_tables(tables, dumps, tables.states.keys() - {str(schema.table) for schema in schemas})
    _take_up(source, ledger, tables, dumps, schemas, prepared)
    log.info("going on after manifest %s at %s", newest.number, newest.place)
    repair_gap(source, ledger, tables, dumps, config)
    return tables, dumps


def _begin(source: Source, ledger: Ledger, schemas: Sequence[TableSchema]) -> tuple[Tables, Dumps]:
    history = source.begin_history(fresh=False)
    tables, dumps = Tables({}, {}), Dumps([], epoch=1)
    for schema in schemas:
        tables.add(schema)
        dumps.add(str(schema.table), manifest=1, reason="initial")
    repair_untold(source, tables, dumps, source.look(), 1)
    ledger.begin(
        source.identity().model_copy(update={"server": history.server}),
        epoch=1,
        position=history.position,
        gtids=history.gtids,
        unsettled=list(history.unsettled),
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
    )
    log.info("a new history begins at %s, %s tables to dump", ledger.newest.place, len(schemas))
    return tables, dumps


def _resume(newest: Manifest, lander: Lander) -> tuple[Tables, Dumps]:
    tables = Tables(
        {name: state.model_copy() for name, state in newest.tables.items()},
        {name: lander.load_schema(name, state.schema_id) for name, state in newest.tables.items()},
    )
    states = [d.model_copy(deep=True) for d in newest.dumps]
    return tables, Dumps(states, epoch=newest.epoch, last_number=newest.last_dump_number)


def take_up_tables(
    source: Source, ledger: Ledger, lander: Lander, tables: Tables, dumps: Dumps, names: Collection[str]
) -> None:
    """Begin to capture tables that came into being, while no log is open.

    Durable on return: the manifest with the tables and their first dumps.
    """
    prepared = source.prepare()
    schemas = source.tables(names)
    for schema in schemas:
        lander.ensure_schema(schema)
    _take_up(source, ledger, tables, dumps, schemas, prepared)


def leave_tables(tables: Tables, dumps: Dumps, names: Iterable[str]) -> None:
    """Stop capturing tables: dropped ones, and those that the configuration no longer names."""
    for name in names:
        tables.remove(name)
        for state in dumps.active_of(name):
            dumps.end(state, "cancelled", "the table is no longer captured")


def _take_up(
    source: Source,
    ledger: Ledger,
    tables: Tables,
    dumps: Dumps,
    schemas: Sequence[TableSchema],
    prepared: Prepared,
) -> None:
    """Capture the tables that are new, and dump again those that the log did not carry for a time."""
    floor = ledger.newest.position  # before it, the log may have had these tables and did not land
    known = {commit.xid for commit in ledger.newest.unsettled}
    running: list[UnsettledCommit] = []
    for schema in schemas:
        name = str(schema.table)
        if name not in tables.states:
            tables.add(schema)
            tables.notice(name, "schema", "is captured from now on")
            dumps.add(name, manifest=ledger.next_number, reason="initial", floor=floor)
            running = [c for c in prepared.running if c.xid not in known]
        elif name in prepared.added:
            tables.notice(name, "gap", "was not in the publication for a time")
            dumps.add(name, manifest=ledger.next_number, reason="repair", floor=floor)
            running = [c for c in prepared.running if c.xid not in known]
    repair_untold(source, tables, dumps, source.look(), ledger.next_number)
    ledger.commit(
        notices=tables.take_notices(),
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        unsettled=[*ledger.newest.unsettled, *running],
    )


def repair_untold(source: Source, tables: Tables, dumps: Dumps, outlook: Outlook, next_number: int) -> None:
    """Queue a full dump of each table that changed without a trace in the log, and remember what was seen.

    The dump begins when the log has been read up to the look: what the log still tells of rows that are gone
    must be older than the dump.
    """
    for name, seen in outlook.tables.items():
        state = tables.states.get(name)
        if state is None or state.fingerprint == seen:
            continue
        before, state.fingerprint = state.fingerprint, seen
        if before is not None and state.state == "captured" and source.untold(before, seen):
            tables.notice(name, "gap", "it changed without a trace in the log, and is dumped again")
            for older in dumps.active_of(name):
                if older.kind == "full":
                    dumps.end(older, "cancelled", "a later dump of the table takes its place")
            dumps.add(name, manifest=next_number, reason="repair", floor=outlook.position)


def repair_gap(source: Source, ledger: Ledger, tables: Tables, dumps: Dumps, config: Config) -> bool:
    """Look whether the log after the newest manifest is whole; begin a new epoch where it is not (True).

    Durable on return: the manifest of the new epoch; with the gap and a repair dump of each table that lands,
    or, after a failover, going on with what there was to do.
    `FencedError` when the log is ahead because another agent has gone on.
    """
    newest = ledger.newest
    reason = source.gap_after(newest.position, newest.gtids, newest.source.server, newest.gtids_needed)
    if reason is None:
        return False
    ledger.verify()  # another agent's progress looks like a gap, and its slot is not ours to drop
    check_identity(newest.source, source.identity(newest))  # the address may lead to another database now
    if isinstance(reason, Failover):
        _go_on_elsewhere(ledger, tables, dumps, reason)
        return True
    if config.source.on_gap == "stop":
        raise GapError(
            f"the log after {newest.place} is lost: {reason}",
            hint='set source.on_gap = "repair" to begin a new epoch and dump all tables again',
        )
    log.error("gap: the log after %s is lost: %s; all tables are dumped again", newest.place, reason)
    history = source.begin_history(fresh=True)
    epoch = newest.epoch + 1
    dumps.begin_epoch(epoch)
    for name in tables.captured():
        dumps.add(name, manifest=ledger.next_number, reason="repair")
    gap = Gap(
        epoch=epoch,
        after=newest.position,
        before=history.position,
        reason=reason,
        found_at=datetime.now(timezone.utc),
    )
    tables.notice(None, "gap", reason)
    _commit_epoch(ledger, tables, dumps, history, gaps=[*newest.gaps, gap])
    return True


def _go_on_elsewhere(ledger: Ledger, tables: Tables, dumps: Dumps, failover: Failover) -> None:
    """Begin the epoch of another server's log, in which nothing is missing."""
    log.warning("failover: %s", failover.reason)
    dumps.change_epoch(ledger.newest.epoch + 1, manifest=ledger.next_number)
    tables.notice(None, "failover", failover.reason)
    _commit_epoch(ledger, tables, dumps, failover.history)


def _commit_epoch(ledger: Ledger, tables: Tables, dumps: Dumps, history: History, **changes: Any) -> None:
    ledger.commit(
        notices=tables.take_notices(),
        source=ledger.newest.source.model_copy(update={"server": history.server}),
        epoch=dumps.epoch,
        position=history.position,
        gtids=history.gtids,
        gtids_needed=history.gtids_needed,
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        unsettled=list(history.unsettled),
        **changes,
    )
