"""Proves that a slot's log is the log that was read before.

A server restored from a disk copy, or a promoted standby, reuses positions for other transactions, and the
slot's name and position may look unchanged.

At each connect, the proof uses the slot's confirmed position C, the manifest's position M and the last commit
L recorded in it:

- *A crash alone loses nothing before M*: a walsender sends only what is flushed.
- *M is at or before the end of the log*, and the timeline is the one that was read, or one that left it at or
  after M, by the server's own timeline history.
- *C is at or before M.* A slot's state is never ahead of the log on the same disk. So everything up to C is
  the log that was read: a disk that lost some of it lost the slot's state, too.
- *What the slot resends, from C to M, ends with L* if L is after C, and is empty otherwise. A commit has the
  same end, xid and time only if it is the same commit. With C = M nothing is resent, and nothing needs to be.

The last rule reads only commits, no rows; the same decoding as before skips the same ones.

Not detected: a slot created by hand on a restored server, at a position between L and M.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from connector.errors import TransientError
from connector.landing.manifest import LastCommit
from connector.position import format_lsn, parse_lsn
from connector.postgres.codec.pgoutput import parse_commit, to_datetime
from connector.postgres.connection import all_rows, literal, one_row, quote
from connector.postgres.slot import BULK, NO_ROOM, awaits_standbys, copy_slot, find_slot

log = logging.getLogger(__name__)

STEP_BYTES = 64 << 20
"""Log that is read again at a time where the server has no room for all of it."""


def timeline(connection: Connection) -> str:
    """Return the timeline the server writes to; `TransientError` on a standby, which writes to none."""
    row = one_row(
        connection, "SELECT pg_walfile_name(pg_current_wal_lsn()) WHERE NOT (SELECT pg_is_in_recovery())"
    )
    if row is None:
        raise TransientError("source.url points to a standby")
    return str(int(row[0][:8], 16))


def end_of_timeline(replication: Connection, ours: str, theirs: str) -> int | None:
    """Return where timeline `theirs` left timeline `ours`; None if it does not descend from it.

    `replication`: a replication connection; only those may read the timeline's history.
    """
    with replication.cursor() as cursor:
        cursor.execute(f"TIMELINE_HISTORY {int(theirs)}")
        row = cursor.fetchone()
    return parse_timeline_history(_text(row[1])).get(ours) if row else None


def parse_timeline_history(text: str) -> dict[str, int]:
    """Parse a timeline's history file: the position where each earlier timeline ended."""
    lines = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {words[0]: parse_lsn(words[1]) for words in lines}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


def why_different(
    connection: Connection,
    slot: str,
    publication: str,
    confirmed: int,
    position: int,
    last: LastCommit | None,
) -> str | None:
    """Return why what the slot resends up to `position` is not what was read before; None if it is.

    `confirmed`: where the slot is. `TransientError` if it was moved meanwhile: a statement of a session that
    was lost may still have been running.
    """
    if confirmed == position:
        return None
    expected = last if last is not None and last.position > confirmed else None
    try:
        found = _last_sent_again(connection, slot, publication, confirmed, position)
    except psycopg2.errors.UndefinedObject as error:
        return f"the log before {format_lsn(position)} can't be read again: {error.diag.message_primary}"
    if found == expected:
        return None
    if (now := find_slot(connection, slot)) is None or now.confirmed != confirmed:
        raise TransientError(f"slot {slot} was moved while what it resends was compared")
    return (
        f"up to {format_lsn(position)} the log now ends with {_format(found)} and not with"
        f" {_format(expected)}: the server was restored or replaced"
    )


def _last_sent_again(
    connection: Connection, slot: str, publication: str, confirmed: int, position: int
) -> LastCommit | None:
    """Return the last commit that the slot would resend and whose record begins before `position`.

    Reads a copy of a slot that waits for standbys, which need not have what has landed.
    """
    if not awaits_standbys(connection, slot, position):
        try:
            return _last_commit(connection, "peek", slot, publication, position, position)
        except psycopg2.OperationalError as error:
            if not (error.pgcode or "").startswith(NO_ROOM):
                raise
            reason = error.diag.message_primary
            log.warning("can't read the log again at once, reading it in steps: %s", reason)
    copy, last = copy_slot(connection, slot, BULK), None
    try:
        for upto in (*range(confirmed + STEP_BYTES, position, STEP_BYTES), position):
            last = _last_commit(connection, "get", copy, publication, upto, position) or last
    finally:
        one_row(connection, f"SELECT pg_drop_replication_slot({literal(copy)})")
    return last


def _last_commit(
    connection: Connection, how: str, slot: str, publication: str, upto: int, position: int
) -> LastCommit | None:
    """Peek at what a slot sends up to `upto`, or get it, and return the last commit before `position`."""
    rows = all_rows(
        connection,
        f"SELECT xid::text, data FROM pg_logical_slot_{how}_binary_changes({literal(slot)},"
        f" {literal(format_lsn(upto))}, NULL, 'proto_version', '1',"
        f" 'publication_names', {literal(quote(publication))})"
        " WHERE get_byte(data, 0) = 67 ORDER BY lsn DESC LIMIT 2",  # C; the last may be after position
    )
    for xid, data in rows:
        commit = parse_commit(bytes(data))
        if commit.commit_lsn < position:
            committed_at = to_datetime(commit.committed_micros)
            return LastCommit(position=commit.end_lsn, txid=xid, committed_at=committed_at)
    return None


def _format(commit: LastCommit | None) -> str:
    if commit is None:
        return "no commit"
    at: datetime = commit.committed_at.astimezone(timezone.utc)
    return f"transaction {commit.txid} of {at:%Y-%m-%d %H:%M:%S}Z"
