"""Continuous verification: each run between merges verifies a share of all tables' rows, in turn.

::

    due -> the ranges tried longest ago -> requests to the agent -> merges go on -> compared -> recorded

No merge waits for the agent. A run asks it to read, and returns. Once merges have reached the manifest that
completes such a dump, its rows are compared (`merge.proof.verification`), and the outcome is recorded in the
landing zone (`connector.landing.verified`) for the agent's page and metrics.

Order: the record names a request only after it was written, and drops it together with recording the outcome.
A crash in between costs at most rows that were read for nothing, and ranges that are verified again.

Two jobs may verify one lake: each reads the record again before it asks, before it compares and before it
writes, so neither loses the other's findings. Only if both write at the same moment does one record win,
which costs as much as a crash.

A range counts as verified only if its comparison has a result. It has none while the table needs a dump, if
rows wait for columns and no others differ, if its rows could not be read, or if the lake was not merged that
far. Then the range was only tried, and others come first.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from connector.config import Config
from connector.errors import DeltatideError, TransientError
from connector.landing.format import CONSUMERS, encode, request_path
from connector.landing.manifest import Manifest
from connector.landing.verified import (
    PREFIX,
    Asked,
    Ends,
    Piece,
    Verified,
    newest_verified,
    verified_path,
)
from connector.schema import TableName
from merge.lake.control_table import cuts_table
from merge.lake.retry import SPARK_ERRORS, TABLE_ERRORS, without_values
from merge.lake.target import lake_name
from merge.landing_zone import LandingZone
from merge.proof.checksums import RANGE_ROWS
from merge.proof.comparison import TableVerification, within
from merge.proof.key_ranges import key_ranges
from merge.proof.opened_lake import OpenedLake
from merge.proof.sampling import MOST_RANGES, range_key
from merge.proof.verification import compare
from merge.spark.unreachable import explained
from merge.sql_formatting import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LEAST_ROWS = 10_000
"""Rows of one run, at least: fewer hardly cost the source and Spark less."""

MOST_PIECES = 40
"""Requests of one run, at most: manifests list only the last hundred finished dumps."""

MOST_LOOKED = 40
"""Ranges to look at for either half of a run, at most: each takes a query, for which merges wait. Beyond that
many tables too large for what is left, smaller ones wait for a later run, as the oldest is always taken.
"""

REST = timedelta(hours=1)

_ERRORS: tuple[type[Exception], ...] = (DeltatideError, *TABLE_ERRORS)

UNLISTED_SECONDS = 600.0
"""Give up a request after this time, if it was taken and no manifest lists its dump."""


def _now() -> datetime:
    return datetime.now(timezone.utc)


class ContinuousVerification:
    """Verifies a lake between its merges, as ``[verify]`` says; `step` is called after each of them."""

    def __init__(self, config: Config, clock: Callable[[], datetime] = _now) -> None:
        self._config, self._clock = config, clock
        self._lake = ""
        self._record: Verified | None = None
        self._resting_until = clock()

    def step(self, spark: SparkSession, landing: LandingZone, merged: int) -> list[TableVerification]:
        """Compare what the agent has read by manifest `merged`; if nothing is pending, start a run when due.

        Returns the comparisons. `StoreError` if the store can't be reached; other errors are logged, and the
        step is retried in an hour: merges go on.
        """
        hours = self._config.verify.every_hours
        if hours is None or not merged or self._clock() < self._resting_until:
            return []
        try:
            with explained(self._config):
                return self._step(spark, landing, merged, timedelta(hours=hours))
        except TransientError:
            raise
        except _ERRORS as error:
            log.warning("verification failed, retrying in an hour: %s", without_values(error))
            self._resting_until, self._record = self._clock() + REST, None
            return []

    def _step(
        self, spark: SparkSession, landing: LandingZone, merged: int, every: timedelta
    ) -> list[TableVerification]:
        record = self._record = self._record or self._read(spark, landing)
        if not record.asked and self._is_due(record, every):
            record = self._read_again(spark, landing, record)
            if not record.asked and self._is_due(record, every):
                self._ask(spark, landing, record)
                return []
        return self._compare_read(spark, landing, record, landing.get(merged)) if record.asked else []

    def _is_due(self, record: Verified, every: timedelta) -> bool:
        return record.began_at is None or self._clock() >= record.began_at + every

    def _read(self, spark: SparkSession, landing: LandingZone) -> Verified:
        (cuts,) = spark.sql(f"DESCRIBE DETAIL {cuts_table(self._config)}").collect()
        self._lake = cuts["id"]
        found = landing.texts([f"{landing.root}/{CONSUMERS}/{encode(self._lake)}/{PREFIX}*"])
        return newest_verified(found) or Verified(lake=lake_name(self._config))

    def _read_again(self, spark: SparkSession, landing: LandingZone, known: Verified) -> Verified:
        """Read the record, which another job may have changed; as it is known, while that one writes it."""
        try:
            self._record = self._read(spark, landing)
        except SPARK_ERRORS:
            self._record = known
        return self._record

    def _write(self, landing: LandingZone, record: Verified) -> None:
        self._record = record.changed(number=record.number + 1)
        path = verified_path(self._lake, self._record.number)
        landing.write(path, self._record.model_dump_json(), overwrite=True)

    def _ask(self, spark: SparkSession, landing: LandingZone, record: Verified) -> None:
        """Ask the agent to read the ranges that are due."""
        lake, began_at = OpenedLake.read(spark, self._config, landing), self._clock()
        record, chosen = choose_turn(lake, record, self._config.verify.share, began_at)
        asked = []
        for table, piece, ranges in chosen:
            request = _request(landing, table, ranges, began_at)
            asked.append(Asked(request=request, table=table, at=began_at, piece=piece, ranges=ranges))
        self._write(landing, record.changed(asked=asked, began_at=began_at))

    def _compare_read(
        self, spark: SparkSession, landing: LandingZone, record: Verified, merged: Manifest
    ) -> list[TableVerification]:
        """Compare the rows read so far, and record the outcome; keep waiting for the rest."""
        ended = [asked for asked in record.asked if self._has_ended(landing, merged, asked)]
        if ended:
            still = self._read_again(spark, landing, record).asked
            ended = [asked for asked in ended if asked in still]
        if not ended:
            return []
        lake, at = OpenedLake.read(spark, self._config, landing), self._clock()
        compared = [(asked, *_compared(lake, asked)) for asked in ended]
        record = self._read_again(spark, landing, record)
        for asked, found, run in compared:
            rows = found.rows if found.has_result else asked.piece.rows
            piece = asked.piece.model_copy(update={"rows": rows})
            differences = found.differing if found.has_result else None
            record = record.tried(asked.table, piece, at, differences, run)  # one time: neighbors are joined
            _log(found)
        self._write(landing, record.changed(asked=[each for each in record.asked if each not in ended]))
        return [found for _, found, _ in compared]

    def _has_ended(self, landing: LandingZone, merged: Manifest, asked: Asked) -> bool:
        """Return whether the agent is done reading for a request, and its rows are merged."""
        dumps = [dump for dump in merged.dumps if dump.request == asked.request]
        if dumps:
            return not any(dump.active for dump in dumps)
        waits = (self._clock() - asked.at).total_seconds() <= UNLISTED_SECONDS
        if waits or landing.exists(request_path(asked.request)):
            return False
        newest = landing.get(landing.newest(merged.number))  # the merge may have begun before the dump
        return not any(dump.request == asked.request for dump in newest.dumps)


def choose_turn(
    lake: OpenedLake, record: Verified, share: float, now: datetime
) -> tuple[Verified, list[tuple[TableName, Piece, list[Ends]]]]:
    """Choose a share of all rows to compare next, starting with the ranges tried longest ago.

    Up to half of the rows and pieces come from ranges that differed, so that repairs show soon. The other
    half is never theirs: lasting differences would keep everything else from its turn. Returns the record of
    all tables that can be compared, and the table and ranges of each piece. Without ranges, the table's key
    can't be divided, and it is compared as a whole. If it is larger than what is left of the share, that
    happens once it is the one tried longest ago.
    """
    record = record.naming(_merged_tables(lake))
    for table in record.uncounted()[:MOST_PIECES]:
        record = _counted(lake, record, table, now)
    left = max(LEAST_ROWS, math.ceil(share * record.rows))
    half, ages, differing = left // 2, record.by_age(), set(record.differing_pieces())
    turns = [*((each, True) for each in ages if each in differing), *((each, False) for each in ages)]
    chosen: list[tuple[TableName, Piece, list[Ends]]] = []
    begun: set[tuple[TableName, int | None]] = set()
    undivided: set[TableName] = set()
    looked = {True: 0, False: 0}
    for (table, whole), again in turns:
        kept, pieces = (half, MOST_PIECES // 2) if again else (0, MOST_PIECES)
        if left <= kept or len(chosen) >= pieces or looked[again] >= MOST_LOOKED:
            continue
        if (table, whole.upto) in begun or table in undivided:
            continue
        looked[again] += 1
        try:
            rows, piece, ranges = _divided(lake, table, whole, left - kept)
        except TABLE_ERRORS as error:
            log.warning("%s can't be verified: %s", table, without_values(error))
            record = record.tried(table, whole, now)
            begun.add((table, whole.upto))
            continue
        record = record.counted(table, whole, rows)
        if not ranges and rows > left - kept and (again or table != ages[0][0]):
            continue
        begun.add((table, whole.upto))
        if not ranges:
            undivided.add(table)
        chosen.append((table, piece, ranges))
        left -= piece.rows
    return record, chosen


def _divided(lake: OpenedLake, table: TableName, whole: Piece, left: int) -> tuple[int, Piece, list[Ends]]:
    """Count a range's rows; return about its first `left` rows as a piece, divided for the agent."""
    key, type_, why = range_key(lake, table)
    if why is not None:
        rows = lake.rows(table).count()
        return rows, Piece(rows=rows), []
    column = F.col(quoted(key))
    inside = lake.rows(table).where(within(column, [(whole.after, whole.upto)])).select(column)
    most = max(min(RANGE_ROWS, left), left // MOST_RANGES)
    parts, held = key_ranges(inside, key, type_, most), 0
    ends: list[Ends] = []
    for part in parts:
        if ends and (held + part.rows > left or len(ends) == MOST_RANGES):
            break
        after = part.after if ends else whole.after
        ends.append((after, part.upto))
        held += part.rows
    if len(ends) == len(parts):
        ends[-1] = (ends[-1][0], whole.upto)
    return sum(part.rows for part in parts), Piece(after=whole.after, upto=ends[-1][1], rows=held), ends


def _counted(lake: OpenedLake, record: Verified, table: TableName, now: datetime) -> Verified:
    """Add a table to the record as one range, with its rows counted."""
    try:
        return record.counted(table, Piece(), lake.rows(table).count())
    except TABLE_ERRORS as error:
        log.warning("%s can't be verified: %s", table, without_values(error))
        return record.tried(table, Piece(), now)


def _merged_tables(lake: OpenedLake) -> list[TableName]:
    """List the captured tables with a key that the lake has."""
    tables = lake.newest.tables if lake.newest is not None else {}
    captured = (name for name, state in tables.items() if state.state == "captured" and state.key)
    return sorted(name for name in captured if lake.frontiers.of(name).version is not None)


def _request(landing: LandingZone, table: TableName, ranges: list[Ends], now: datetime) -> str:
    """Request a table's rows from the agent; return the request's id."""
    request_id = f"verify-{uuid.uuid4().hex[:16]}"
    body: dict[str, Any] = {"id": request_id, "kind": "dump", "tables": [str(table)], "verify": True}
    body |= {"requested_at": now.isoformat()} | ({"ranges": ranges} if ranges else {})
    landing.write(request_path(request_id), json.dumps(body))
    return request_id


def _compared(lake: OpenedLake, asked: Asked) -> tuple[TableVerification, str | None]:
    """Compare the rows read; also return the run under which differences are recorded."""
    try:
        result = compare(lake, asked.request, ranges=asked.ranges or None, tables=[asked.table])
    except TransientError:
        raise
    except DeltatideError as error:
        return TableVerification(asked.table, error=str(error), hint=error.hint), None
    (found,) = result.tables
    return found, result.run


def _log(found: TableVerification) -> None:
    if found.differing:
        counts = f"{found.missing} missing, {found.ghosts} ghosts, {found.different} different"
        log.warning(
            "%s differs from the source: %s; deltatide verify %s --repair",
            *(found.table, counts, found.table),
        )
    elif found.error is not None:
        log.warning(
            "%s was not verified: %s%s", found.table, found.error, f" ({found.hint})" if found.hint else ""
        )
    elif not found.has_result:
        log.info("%s was not verified: it, or some of its rows, wait for a dump", found.table)
    else:
        log.info("%s: %d rows verified as of manifest %d", found.table, found.rows, found.manifest)
