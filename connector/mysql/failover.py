"""Decide whether a server's log continues another's, and find where in it what we lack begins.

This distinguishes a failover from a gap: another server's log continues ours if the server has executed all
that has landed, and still has the log of everything else. Nothing here keeps state.

Our own writes at the end of what has landed (`connector.mysql.gtid`) are not required: a replica usually
lacks some when its primary dies during a dump, and they change nothing that is captured. Those it has are
skipped with the rest; so a set never names what its server has not executed.

Only another server's ids prove anything. The same server gives the same ids to other transactions after a
reset, or restored from a copy: there, a purged file is a gap even if nothing of it was missing. If that
server's replica takes over, its ids are the same ones again. So the last commit that was read must not have
a later timestamp there (`why_unproven`): a replica logs the time of the original commit, or one before it.
And it must be in that server's log: a replica that wrote no log for a while has the ids, but not the changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pymysql.connections import Connection

from connector.errors import TransientError
from connector.landing.manifest import LastCommit, Manifest
from connector.mysql import continuity
from connector.mysql.codec.segment import pack_position, unpack_position
from connector.mysql.connection import literal, query, row, rows
from connector.mysql.continuity import to_datetime
from connector.mysql.gtid import Gtid, Gtids, MariadbGtids, MysqlGtids
from connector.mysql.log import events
from connector.mysql.log.packet import BASE, BODY, FILE_START, FLAGS, TYPE, header_of, size_of
from connector.mysql.log.stream import BinlogStream, LogEndedError
from connector.mysql.server import LogFile, Server, end_of_log, position_of
from connector.source import ResumePoint


def continuation(
    connection: Connection[Any],
    server: Server,
    files: Mapping[int, LogFile],
    known: ResumePoint,
    *,
    missing_gtids: Callable[[str], str],
    open_file: Callable[[LogFile], BinlogStream],
) -> tuple[LogFile, ResumePoint] | str:
    """Return where this server's log continues another's after `known`, or why it does not.

    The file to begin with, preceded only by transactions that have landed, and the point at its start.
    `missing_gtids` returns what the server has not executed of a set, empty if nothing; `open_file` opens a
    file of its log.
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
        gtids = executed_of(connection, server, gtids, must)
    file = first_file_after(connection, server, files, gtids)
    if file is None:
        return f"its log of what follows {gtids} is purged"
    return file, ResumePoint(pack_position(file.number, 4), (), gtids, server.uuid, needed)


def has_gtids(connection: Connection[Any], server: Server) -> bool:
    """Return whether every transaction gets a GTID."""
    if server.mariadb:
        return True
    found = row(connection, "SELECT @@global.gtid_mode")
    return found is not None and found[0] == "ON"


def executed_at(
    connection: Connection[Any], server: Server, stream: Connection[Any], file: str, offset: int
) -> str | None:
    """Return the transactions in the log up to an offset; None if some have no GTID.

    `stream`: a connection of its own, which is closed. MySQL has no function for this, and its
    `gtid_executed` is not read atomically with the end of the log, so the file is read up to the offset.
    """
    if server.mariadb:
        stream._force_close()
        found = row(connection, f"SELECT BINLOG_GTID_POS({literal(file)}, {offset})")
        return None if found is None or found[0] is None else str(found[0])
    gtids = MysqlGtids.parse(_gtids_before(connection, file))
    for begin in _begins(BinlogStream(stream, server, file, FILE_START, 0), offset):
        if begin.gtid is None:
            return None
        gtids.add(begin.gtid)
    return str(gtids)


def _begins(stream: BinlogStream, upto: float = math.inf) -> Iterator[events.Begin]:
    """Read the begins of transactions, from a file's start up to an offset in it, or to the end of the log.

    No time limit: the stream detects a silent server, and a large row is slow to arrive.
    """
    at, tail = FILE_START, 0
    left = 0  # of a compressed transaction that arrives in pieces
    try:
        while at < upto:
            for packet in stream.fetch(1.0):
                if left:
                    at, left = at + len(packet), left - len(packet)
                    continue
                if packet[TYPE] == events.FORMAT:
                    tail = events.checksum_bytes(packet)
                if packet[FLAGS] & events.ARTIFICIAL or at >= upto:
                    continue
                at += len(packet) - BASE
                left = size_of(packet) - (len(packet) - BASE)
                if packet[TYPE] in events.BEGINS:
                    seconds, kind, server_id, *_ = header_of(packet)
                    body = packet[BODY : len(packet) - tail]
                    yield events.parse_begin(kind, seconds, server_id, body)
    except LogEndedError:
        pass
    finally:
        stream.close()
    if at < upto < math.inf:
        raise TransientError(f"the log ended at {at}, before {upto}")


def why_unproven(
    connection: Connection[Any],
    server: Server,
    files: Mapping[int, LogFile],
    last: LastCommit | None,
    open_file: Callable[[LogFile], BinlogStream],
) -> str | None:
    """Return why another server's transaction with the id of `last` proves nothing; None if it is the same.

    It is another one, or the server executed it while it wrote no log. None also if the server never executed
    it (a write of ours), has purged it, or if `last` has no id. Reads the log from the start of one file up
    to it.
    """
    if last is None or not continuity.is_named(last) or missing(connection, server, last.txid):
        return None
    for number in sorted(files, reverse=True):
        if _is_before_file(server, last.txid, _gtids_before(connection, files[number].name)):
            continue
        found = next((b for b in _begins(open_file(files[number])) if b.txid == last.txid), None)
        if found is None:
            return f"it executed {last.txid} without logging it"
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
    if not server.mariadb:
        return MysqlGtids.parse(before).contains(MysqlGtids.parse(txid))
    (gtid,) = _parse_gtid_list(txid)
    return _newest(_parse_gtid_list(before)).get((gtid.origin, gtid.server), 0) >= gtid.number


def missing(connection: Connection[Any], server: Server, gtids: str) -> str:
    """Return the part of a set that the server has not executed; if empty, all of it is visible."""
    if not server.mariadb:
        found = row(connection, f"SELECT GTID_SUBTRACT({literal(gtids)}, @@global.gtid_executed)")
        return str(MysqlGtids.parse(str(found[0]))) if found else gtids
    state = _state(connection)
    ours = MariadbGtids.parse(gtids).last.values()
    lacking = [gtid for gtid in ours if state.get((gtid.origin, gtid.server), 0) < gtid.number]
    if not lacking:
        _see_all(connection, server)
    return ",".join(map(str, lacking))


def executed_of(connection: Connection[Any], server: Server, gtids: str, needed: str) -> str:
    """Return the part of a set that a server has executed; it has all that is needed.

    In MariaDB everything between the needed one and the last one is ours. If one server assigned both, so are
    all its numbers between them; otherwise the needed one is returned: less is also correct.
    """
    if not server.mariadb:
        lacking = f"GTID_SUBTRACT({literal(gtids)}, @@global.gtid_executed)"
        found = row(connection, f"SELECT GTID_SUBTRACT({literal(gtids)}, {lacking})")
        return needed if found is None else str(MysqlGtids.parse(str(found[0])))
    state, before = _state(connection), MariadbGtids.parse(needed).last
    last = MariadbGtids.parse(gtids).last
    reached = {domain: _executed_own_writes(state, gtid, before.get(domain)) for domain, gtid in last.items()}
    return str(MariadbGtids({domain: gtid for domain, gtid in reached.items() if gtid is not None}))


def _executed_own_writes(
    state: Mapping[tuple[str, int | None], int], last: Gtid, before: Gtid | None
) -> Gtid | None:
    """Return how far a server has executed our own writes of a domain, after `before` up to `last`."""
    number = min(state.get((last.origin, last.server), 0), last.number)
    if number == last.number:
        return last
    if before is None:
        return last._replace(number=number) if number else None
    return last._replace(number=max(number, before.number)) if before.server == last.server else before


def _state(connection: Connection[Any]) -> dict[tuple[str, int | None], int]:
    """Return the newest number that each server assigned in each domain."""
    found = row(connection, "SELECT @@global.gtid_binlog_state")
    return _newest(_parse_gtid_list(str(found[0]) if found else ""))


def _see_all(connection: Connection[Any], server: Server) -> None:
    """Raise unless a snapshot shows everything in the log: MariaDB writes its log first."""
    end = position_of(*end_of_log(connection, server))
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        found = rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
    finally:
        query(connection, "ROLLBACK")
    status = {name.lower(): value for name, value in found}
    if position_of(str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])) < end:
        raise TransientError("the server's log has transactions that are not visible yet")


def first_file_after(
    connection: Connection[Any], server: Server, files: Mapping[int, LogFile], gtids: str
) -> LogFile | None:
    """Return the newest file preceded only by transactions in a set; None if that log is purged."""
    if not server.mariadb:
        purged = row(connection, "SELECT @@global.gtid_purged")  # with what a replica applied and did not log
        if purged is None or not MysqlGtids.parse(gtids).contains(MysqlGtids.parse(str(purged[0]))):
            return None
    for number in sorted(files, reverse=True):
        before = _gtids_before(connection, files[number].name)
        if server.mariadb:
            within = _lies_within(MariadbGtids.parse(gtids), _parse_gtid_list(before))
        else:
            within = MysqlGtids.parse(gtids).contains(MysqlGtids.parse(before))
        if within:
            return files[number]
    return None


def _lies_within(gtids: MariadbGtids, before: list[Gtid]) -> bool:
    """Return whether each domain's last GTID is the last one before a file, or is in the file or after it.

    Numbers are compared only within one server: those grow. `before` lists a domain's last GTID after others.
    """
    last, newest = {gtid.origin: gtid for gtid in before}, _newest(before)
    for domain, gtid in last.items():
        ours = gtids.last.get(domain)
        if ours is None or (ours != gtid and newest.get((domain, ours.server), 0) >= ours.number):
            return False
    return True


def _gtids_before(connection: Connection[Any], file: str) -> str:
    """Return the GTIDs before a file, as listed by the event at its start."""
    for found in rows(connection, f"SHOW BINLOG EVENTS IN {_quote_file(file)} LIMIT 4"):
        if found[2] in ("Previous_gtids", "Gtid_list"):
            return str(found[5]).strip("[]")
    return ""


def _quote_file(file: str) -> str:
    """Quote a file's name (from the server) where SQL allows no character set introducer."""
    return "'" + file.replace("\\", "\\\\").replace("'", "''") + "'"


def _parse_gtid_list(text: str) -> list[Gtid]:
    return [Gtid(d, int(n), int(s)) for d, s, n in re.findall(r"(\d+)-(\d+)-(\d+)", text)]


def _newest(gtids: list[Gtid]) -> dict[tuple[str, int | None], int]:
    newest: dict[tuple[str, int | None], int] = {}
    for gtid in gtids:
        of = gtid.origin, gtid.server
        newest[of] = max(gtid.number, newest.get(of, 0))
    return newest


def is_known(connection: Connection[Any], server: Server, landed: Manifest, shared: str | None) -> bool:
    """Return whether a landing zone was provably read from this server or a replica of it.

    `shared`: the identity in our own tables, which replicas copy.
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
    connection: Connection[Any], server: Server, resume_point: ResumePoint, file: str, *, may_be_ahead: bool
) -> Gtids | None:
    """Return a resume point's set, if it has one, for the log reader that begins there.

    `may_be_ahead`: the position may be before some of the set. In MariaDB the server reports which.
    """
    gtids, needed = resume_point.gtids, resume_point.gtids_needed
    if gtids is None:
        return None
    if not server.mariadb:
        return MysqlGtids.parse(gtids, needed)
    if not may_be_ahead:
        return MariadbGtids.parse(gtids, needed=needed)
    offset = unpack_position(resume_point.position)[1]
    here = row(connection, f"SELECT BINLOG_GTID_POS({literal(file)}, {offset})")
    if here is None or here[0] is None:
        raise TransientError(f"the server can't resolve the GTIDs at {file} {offset}")
    return MariadbGtids.parse(gtids, str(here[0]), needed)
