"""Decides whether a server's log continues another's, and finds where in it what we lack begins.

This distinguishes a failover from a gap: another server's log continues ours if the server has executed
everything that has landed, and still has the log of everything else, which it executed later. Nothing here
keeps state, except that `Comparison` asks for a second attempt.

Our own writes at the end of what has landed (`connector.mysql.gtid`) are not required: a replica usually
lacks some if its primary dies during a dump, and they change nothing that is captured. Those it has are
skipped with the rest, so a set never contains what its server has not executed.

Only another server's ids prove anything. The same server assigns the same ids to other transactions after a
reset, or when restored from a copy: there, a purged file is a gap even if nothing in it was missing. If that
server's replica takes over, its ids are the same ones again. So the last commit that was read must not have a
later timestamp there (`why_unproven`): a replica logs the time of the original commit, or an earlier one.
MariaDB logs whole seconds, so a server that was restored and caught up within one second looks the same. And
the commit must be in that server's log: a replica that wrote no log for a while has the ids, but not the
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from connector.errors import TransientError
from connector.landing.manifest import LastCommit, Manifest
from connector.mysql import log_identity
from connector.mysql.connection import close, code_of, literal, raw_rows, row, text_of
from connector.mysql.gtid import Gtid, Gtids, MariadbGtids, MysqlGtids
from connector.mysql.log.events import Begin
from connector.mysql.log.packet import FILE_START
from connector.mysql.log.scan import begins, transactions
from connector.mysql.log.stream import BinlogStream, UnreadableLogError
from connector.mysql.log_identity import to_datetime
from connector.mysql.server import LogFile, Server, end_of_log
from connector.position import pack_binlog_position, unpack_binlog_position
from connector.schema import TableName
from connector.source import ResumePoint

_UNREADABLE = 1220
"""ER_ERROR_WHEN_EXECUTING_COMMAND, which SHOW BINLOG EVENTS returns if it can't read a file."""

AnyGtids = TypeVar("AnyGtids", MysqlGtids, MariadbGtids)
_Found = TypeVar("_Found")


class Comparison:
    """Compares a server's log with what has landed; log that can't be read twice in a row never can.

    A file may be purged while it is read; but a crash of MariaDB may leave half an event at a file's end.
    """

    def __init__(self) -> None:
        self._has_failed = False

    def attempt(self, compare: Callable[[], _Found]) -> _Found | str:
        """Return what `compare` returns, or why the log can't be read."""
        try:
            found = compare()
        except UnreadableLogError as error:
            self._has_failed = not self._has_failed
            if self._has_failed:
                raise
            return f"its log can't be read, which must be compared: {error}"
        self._has_failed = False
        return found


def continuation(
    connection: Connection[Any],
    server: Server,
    files: Mapping[int, LogFile],
    known: ResumePoint,
    *,
    missing_gtids: Callable[[str], str],
    open_file: Callable[[LogFile], BinlogStream],
    captured: Callable[[TableName], bool],
) -> tuple[LogFile, ResumePoint] | str:
    """Return where this server's log continues another's after `known`, or why it does not.

    That is the file to begin with, preceded only by transactions that have landed, and the point at its
    start. `missing_gtids` returns the part of a set that the server has not executed, empty if none;
    `open_file` opens its log from a file on; `captured` returns whether a table is to land.
    """
    gtids, needed = known.gtids, known.gtids_needed
    if gtids is None or not has_gtids(connection, server):
        return "no GTIDs exist to compare"
    must = gtids if needed is None else needed
    if lacking := missing_gtids(must):
        return f"it never executed {lacking}"
    if unproven := why_unproven(connection, server, files, known.last_commit, open_file):
        return unproven
    if must != gtids:
        gtids = executed_of(connection, server, gtids)
    parse = _kind_of(server).parse
    landed, needed_there = parse(gtids), parse(must)
    file = first_file_after(connection, server, files, landed, needed_there)
    if isinstance(file, str):
        return file
    with closing(begins(open_file(file))) as found:
        next(found, None)  # raises if its list may be damaged: it was chosen by that
    before = parse(_executed_before(connection, server, file))
    if diverged := why_diverged(before, landed, needed_there, partial(open_file, file), captured):
        return diverged
    return file, ResumePoint(pack_binlog_position(file.number, 4), (), gtids, server.uuid, needed)


def why_diverged(
    before: AnyGtids,
    landed: AnyGtids,
    needed: AnyGtids,
    open_log: Callable[[], BinlogStream],
    captured: Callable[[TableName], bool],
) -> str | None:
    """Return why landing what a server executed besides `landed` would not give its rows; None if it would.

    Somebody may have written on a replica, or a former primary kept what no replica got. Of rows that such a
    transaction and a later one changed, the server has the later one's values; but if the later one has
    landed, it will not land again. So what has not landed must follow all that has, unless it can't matter to
    captured tables, or the server merely reordered independent transactions. In MariaDB, a transaction by a
    writer of whom nothing landed may be from before its domain was deleted, so it is not taken for reordered.

    `before`: all that precedes the log to be opened, at most what has landed; modified here. `needed`: the
    part of `landed` that may be anybody's but ours. Reads the log up to the last transaction of `needed`, or
    to its end if later numbers may show that a domain had been deleted.
    """
    unread: dict[tuple[str, int | None] | None, Begin] = {}
    seen = before.parse(str(before))
    if before.contains(needed) and not landed.retired:
        return None
    is_unread = lambda begin: begin.gtid is None or not landed.includes(begin.gtid)  # noqa: E731
    with closing(transactions(open_log(), captured, is_unread)) as found:
        for begin, matters in found:
            gtid = begin.gtid
            if gtid is not None and (ambiguous := landed.why_ambiguous(gtid, seen)):
                return ambiguous
            if gtid is None or not landed.includes(gtid):
                if matters:
                    unread.setdefault(gtid and (gtid.origin, gtid.server), begin)
            elif needed.includes(gtid):
                for other in unread.values():
                    if not _is_independent(other.gtid, gtid, landed):
                        return f"before {gtid}, it executed {other.txid or 'a change'}, which was never read"
                before.add(gtid)
                may_show_more = landed.retired or (unread and gtid.server is not None)
                if before.contains(needed) and not may_show_more:
                    return None
    return None if before.contains(needed) else f"its log lacks some of {needed}"


def _is_independent(unread: Gtid | None, landed_later: Gtid, landed: Gtids) -> bool:
    """Return whether a server merely reordered a transaction that has not landed and one that has."""
    return unread is not None and landed.knows(unread) and unread.may_be_reordered_with(landed_later)


def has_gtids(connection: Connection[Any], server: Server) -> bool:
    """Return whether every transaction gets a GTID."""
    if server.mariadb:
        return True
    found = row(connection, "SELECT @@global.gtid_mode")
    return found is not None and found[0] == "ON"


def executed_at(
    connection: Connection[Any], server: Server, stream: Connection[Any], file: str, offset: int
) -> str | None:
    """Return the transactions in the log up to an offset; None if some have no GTID, or can't be read.

    `stream`: a separate connection, which is closed. No function of the server returns this, and neither its
    `gtid_executed` nor its `gtid_binlog_state` is read atomically with the end of the log, so the file is
    read up to the offset.
    """
    parse, gtids = _kind_of(server).parse, None
    try:
        listed = _gtids_before(connection, file)
        for begin in begins(BinlogStream(stream, server, file, FILE_START, 0), offset):
            if begin.gtid is None:
                return None
            gtids = gtids or parse(listed)  # now the list is known to be intact
            gtids.add(begin.gtid)
    except UnreadableLogError:  # damaged before the offset: the log goes on after it all the same
        return None
    finally:
        close(stream)
    return str(gtids or parse(listed))


def _kind_of(server: Server) -> Any:
    """Return the class of a server's sets of GTIDs."""
    return MariadbGtids if server.mariadb else MysqlGtids


def why_unproven(
    connection: Connection[Any],
    server: Server,
    files: Mapping[int, LogFile],
    last: LastCommit | None,
    open_file: Callable[[LogFile], BinlogStream],
) -> str | None:
    """Return why another server's transaction with the id of `last` proves nothing; None if it is the same.

    It is a different one, or the server has not logged it. None also if the server never executed it (a write
    of ours), has purged it, or if `last` has no id. Reads the log from the start of one file up to it.
    """
    if last is None or not log_identity.is_named(last) or missing(connection, server, last.txid):
        return None
    for number in sorted(files, reverse=True):
        if _is_before_file(server, last.txid, _gtids_before(connection, files[number].name)):
            continue
        found = next((b for b in begins(open_file(files[number])) if b.txid == last.txid), None)
        if found is None:
            return f"its log lacks {last.txid}: it logged nothing for a while, or skipped that transaction"
        if to_datetime(found.original or found.micros) <= last.committed_at:
            return None
        at = to_datetime(found.original or found.micros)
        return (
            f"its {last.txid} is of {at:%Y-%m-%d %H:%M:%S}Z, not of {last.committed_at:%Y-%m-%d %H:%M:%S}Z:"
            " the former server had been restored or reset"
        )
    return None


def _is_before_file(server: Server, txid: str, before: str) -> bool:
    """Return whether a transaction is among those before a file."""
    kind = _kind_of(server)
    return bool(kind.parse(before).contains(kind.parse(txid)))


def missing(connection: Connection[Any], server: Server, gtids: str) -> str:
    """Return the part of a set that the server has not executed; the rest is in its log, if it logged that.

    It may not be visible yet, but is to each chunk, whose snapshot shows all that was in the log before. In
    MariaDB, only the last transaction of each writer counts. A server that was set up from a copy, without
    the binlog state of the original, lacks writers that no longer write.
    """
    if not server.mariadb:
        found = row(connection, f"SELECT GTID_SUBTRACT({literal(gtids)}, @@global.gtid_executed)")
        return str(MysqlGtids.parse(str(found[0]))) if found else gtids
    lacking = MariadbGtids.parse(gtids).without(_state(connection))
    if not lacking:
        end_of_log(connection, server)  # waits for what is being written, which the state already has
    return ",".join(map(str, lacking))


def executed_of(connection: Connection[Any], server: Server, gtids: str) -> str:
    """Return the part of a set that a server has executed."""
    if server.mariadb:
        return str(MariadbGtids.parse(gtids).common(_state(connection)))
    lacking = f"GTID_SUBTRACT({literal(gtids)}, @@global.gtid_executed)"
    found = row(connection, f"SELECT GTID_SUBTRACT({literal(gtids)}, {lacking})")
    return str(MysqlGtids.parse(str(found[0]) if found else ""))


def _state(connection: Connection[Any]) -> MariadbGtids:
    """Return everything that a MariaDB server has executed."""
    found = row(connection, "SELECT @@global.gtid_binlog_state")
    return MariadbGtids.parse(str(found[0]) if found else "")


def first_file_after(
    connection: Connection[Any],
    server: Server,
    files: Mapping[int, LogFile],
    landed: AnyGtids,
    needed: AnyGtids,
) -> LogFile | str:
    """Return the newest file preceded only by transactions that have landed, or why there is none."""
    reason = landed.why_not_after(landed.parse(_purged(connection, server)), needed)
    if reason is not None:
        return reason
    for number in sorted(files, reverse=True):
        listed = landed.parse(_gtids_before(connection, files[number].name))
        reason = landed.why_not_after(listed, needed)
        if reason is None:
            return files[number]
    return reason or "it has no log"


def _executed_before(connection: Connection[Any], server: Server, file: LogFile) -> str:
    return f"{_purged(connection, server)},{_gtids_before(connection, file.name)}"


def _purged(connection: Connection[Any], server: Server) -> str:
    """Return what a MySQL server executed but has no log of: purged, or never logged."""
    found = None if server.mariadb else row(connection, "SELECT @@global.gtid_purged")
    return str(found[0]) if found else ""


def _gtids_before(connection: Connection[Any], file: str) -> str:
    """Return the GTIDs before a file, as listed by the event at its start.

    The server does not verify that event's checksum. `UnreadableLogError` if it can't read the file. What
    follows may be a statement in any character set.
    """
    try:
        listed = raw_rows(connection, f"SHOW BINLOG EVENTS IN {_quote_file(file)} LIMIT 4")
    except pymysql.Error as error:
        if code_of(error) != _UNREADABLE:
            raise
        raise UnreadableLogError(f"the start of log file {file} can't be read: {text_of(error)}") from error
    for found in listed:
        if found[2] in (b"Previous_gtids", b"Gtid_list"):
            return str(found[5].decode()).strip("[]")
    return ""


def _quote_file(file: str) -> str:
    """Quote a file's name (from the server) where SQL allows no character set introducer."""
    return "'" + file.replace("\\", "\\\\").replace("'", "''") + "'"


def is_known(connection: Connection[Any], server: Server, landed: Manifest, shared: str | None) -> bool:
    """Return whether a landing zone was provably read from this server or a replica of it.

    `shared`: the identity in our own table, which replicas copy.
    """
    if landed.source.system_id in (shared, server.uuid):
        return True
    if landed.gtids is None or landed.source.kind != server.kind:
        return False
    return shares_history(connection, server, landed.gtids)


def shares_history(connection: Connection[Any], server: Server, gtids: str) -> bool:
    """Return whether the server has executed any of these transactions, by globally unique ids.

    MariaDB's ids are small numbers, which prove nothing.
    """
    if server.mariadb:
        return False
    lacking = MysqlGtids.parse(missing(connection, server, gtids))
    return not lacking.contains(MysqlGtids.parse(gtids))


def gtids_at(
    connection: Connection[Any],
    server: Server,
    resume_point: ResumePoint,
    file: str,
    *,
    may_be_ahead: bool,
    executed: Callable[[], str | None],
) -> Gtids | None:
    """Return a resume point's set, if it has one, for the log reader that begins there.

    `may_be_ahead`: the position may be before some of the set. In MariaDB, where a number may be used twice,
    the log up to there decides: `executed`, which reads the file, returns what it has; `UnreadableLogError`
    if that is None. The server's own function is only faster; it returns NULL for what it can't read.
    """
    gtids, needed = resume_point.gtids, resume_point.gtids_needed
    if gtids is None:
        return None
    if not server.mariadb:
        return MysqlGtids.parse(gtids, needed)
    landed = MariadbGtids.parse(gtids, needed=needed)
    if not may_be_ahead:
        return landed
    offset = unpack_binlog_position(resume_point.position)[1]
    here = row(connection, f"SELECT BINLOG_GTID_POS({literal(file)}, {offset})")
    if here is not None and here[0] is not None and MariadbGtids.parse(str(here[0])).ends == landed.ends:
        return landed
    if (before := executed()) is None:  # what has landed would be taken for new
        raise UnreadableLogError(
            f"the log up to {file} {offset} can't be read, which tells what follows from there"
        )
    return MariadbGtids.parse(gtids, before, needed)


class ResumeGtids:
    """Resolves the set of a resume point; one that can't be resolved twice in a row never can be."""

    def __init__(self) -> None:
        self._comparison = Comparison()
        self._unknown: tuple[ResumePoint, str] | None = None

    def resolve(
        self,
        connection: Connection[Any],
        server: Server,
        resume_point: ResumePoint,
        file: str,
        *,
        may_be_ahead: bool,
        executed: Callable[[], str | None],
    ) -> Gtids | None:
        """Return what `gtids_at` returns; `TransientError` if that is unknown."""
        resolve = partial(gtids_at, connection, server, resume_point, file)
        found = self._comparison.attempt(lambda: resolve(may_be_ahead=may_be_ahead, executed=executed))
        if isinstance(found, str):
            self._unknown = resume_point, found
            raise TransientError(found)
        return found

    def why_unknown(self, resume_point: ResumePoint) -> str | None:
        """Return why the log can't be read on at a resume point, since its set can't be resolved, or None."""
        return self._unknown[1] if self._unknown and self._unknown[0] == resume_point else None
