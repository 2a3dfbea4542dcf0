"""The start of capture, and the start over after a gap: which history, which tables, which dumps.

Invariants:

- A landing zone belongs to one database (system identifier and name), for ever.
- The epoch grows whenever the log between the newest manifest's position and what the source still has is
  not whole. A gap is written into the manifest that begins the new epoch, together with the repair dumps:
  there is no moment at which it could be forgotten.
- A crash after the new slot was made and before that manifest is seen again as a gap, since the slot's
  position is then ahead of the newest manifest's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone

from connector.config import Config
from connector.dump import Dumps
from connector.errors import GapError, PreconditionError
from connector.lander import Lander
from connector.ledger import Ledger
from connector.manifest import Gap, Manifest, UnsettledCommit
from connector.position import format_lsn
from connector.schema import TableSchema
from connector.source import Source
from connector.tables import Tables

log = logging.getLogger(__name__)


def open_history(source: Source, ledger: Ledger, lander: Lander, config: Config) -> tuple[Tables, Dumps]:
    """Go on where the newest manifest ends, or begin a landing zone.

    The first or next manifest is durable on return. `SourceMismatchError` and `PreconditionError` write
    nothing, `GapError` (when configured to stop) leaves no new epoch. After a `TransientError` it can be
    called again.
    """
    identity = source.identity()
    newest = ledger.load(identity)
    started = source.prepare()
    schemas = source.tables()
    if not schemas:
        raise PreconditionError(
            f"no table matches source.tables = {config.source.tables}", hint="name tables as namespace.table"
        )
    for schema in schemas:
        lander.ensure_schema(schema)
    if newest is None:
        return _begin(source, ledger, schemas)
    tables, dumps = _go_on(newest, ledger, lander, schemas, started)
    repair_gap(source, ledger, tables, dumps, config)
    return tables, dumps


def _begin(source: Source, ledger: Ledger, schemas: Sequence[TableSchema]) -> tuple[Tables, Dumps]:
    history = source.begin_history(fresh=False)
    tables, dumps = Tables({}, {}), Dumps([], epoch=1)
    for schema in schemas:
        tables.add(schema)
        dumps.add(str(schema.table), manifest=1, reason="initial")
    ledger.begin(
        source.identity(),
        epoch=1,
        position=history.position,
        unsettled=list(history.unsettled),
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
    )
    log.info("a new history begins at %s, %s tables to dump", format_lsn(history.position), len(schemas))
    return tables, dumps


def _go_on(
    newest: Manifest,
    ledger: Ledger,
    lander: Lander,
    schemas: Sequence[TableSchema],
    started: Sequence[UnsettledCommit],
) -> tuple[Tables, Dumps]:
    tables = Tables(
        {name: state.model_copy() for name, state in newest.tables.items()},
        {name: lander.load_schema(name, state.schema_id) for name, state in newest.tables.items()},
    )
    dumps = Dumps(
        [d.model_copy(deep=True) for d in newest.dumps],
        epoch=newest.epoch,
        last_number=newest.last_dump_number,
    )
    _take_up_and_leave(tables, dumps, schemas, ledger)
    known = {commit.xid for commit in newest.unsettled}
    ledger.commit(
        notices=tables.take_notices(),
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        unsettled=[*newest.unsettled, *(c for c in started if c.xid not in known)],
    )
    log.info("going on after manifest %s at %s", newest.number, format_lsn(newest.position))
    return tables, dumps


def _take_up_and_leave(tables: Tables, dumps: Dumps, schemas: Sequence[TableSchema], ledger: Ledger) -> None:
    named = {str(schema.table): schema for schema in schemas}
    for name in list(tables.states.keys() - named.keys()):
        tables.remove(name)
        for state in dumps.active_of(name):
            dumps.end(state, "cancelled", "the table is no longer captured")
    for name, schema in named.items():
        if name not in tables.states:
            tables.add(schema)
            tables.notice(name, "schema", "is captured from now on")
            floor = ledger.newest.position  # before it, the log may have had this table and did not land
            dumps.add(name, manifest=ledger.next_number, reason="initial", floor=floor)


def repair_gap(source: Source, ledger: Ledger, tables: Tables, dumps: Dumps, config: Config) -> bool:
    """Look whether the log after the newest manifest is whole; begin a new epoch where it is not (True).

    Durable on return: the manifest of the new epoch, with the gap and a repair dump of each table that lands.
    `FencedError` when the log is ahead because another agent has gone on.
    """
    newest = ledger.newest
    reason = source.gap_after(newest.position)
    if reason is None:
        return False
    ledger.verify()  # another agent's progress looks like a gap, and its slot is not ours to drop
    if config.source.on_gap == "stop":
        raise GapError(
            f"the log after {format_lsn(newest.position)} is lost: {reason}",
            hint='set source.on_gap = "repair" to begin a new epoch and dump all tables again',
        )
    log.error(
        "gap: the log after %s is lost: %s; all tables are dumped again", format_lsn(newest.position), reason
    )
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
    ledger.commit(
        notices=tables.take_notices(),
        epoch=epoch,
        position=history.position,
        gaps=[*newest.gaps, gap],
        tables=tables.snapshot(),
        dumps=dumps.snapshot(),
        last_dump_number=dumps.last_number,
        unsettled=list(history.unsettled),
    )
    return True
