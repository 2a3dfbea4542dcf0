"""The request intake: turns requests in the landing zone into dumps of the running capture, or controls them.

Flow: its thread fetches waiting requests -> `serve`, in the capture loop's thread, queues dumps, controls
them (`dumps.controls`), or rejects the request -> the next manifest records the outcome -> `committed` -> its
thread removes the requests' objects.

Invariants:

- A request's object is removed only after a manifest that holds its effect, or the notice that it was
  rejected.
- Requests that a crash left, or that were sent twice, run once: one that the newest manifest knows by id and
  content is only removed. Any other is accepted, whatever its name.
- No request ends the agent, or keeps it from reading the log: unreadable ones are rejected, ones that can't
  be removed are skipped from then on, and ones that can't be carried out now are postponed. Floods don't,
  either: requests are read in small batches, and dumps wait in the landing zone while many others that were
  requested are queued.
- Controls don't wait behind dumps, except for the request of the dump that they name. The last control wins,
  even if earlier ones still wait. Manifests name controls that took effect or were overtaken until their
  objects are gone; while `MOST_TAKEN` are named, further ones wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile

from connector.background import BackgroundThread
from connector.capture.dumps.controls import (
    carry_out,
    forget_removed,
    note_rejected,
    note_taken,
    overtaken_by,
    pass_over,
    unfinished,
    was_carried_out,
)
from connector.capture.dumps.queue import DumpQueue
from connector.capture.tables import Tables
from connector.errors import OperatorError, RequestError, TransientError
from connector.findings import checked_tables
from connector.landing.format import schema_path
from connector.landing.manifest import TakenRequest
from connector.landing.requests import (
    ControlRequest,
    DumpRequest,
    Malformed,
    Request,
    discard,
    pending_ids,
    read_pending,
    reject,
    why_not_dumped,
)
from connector.masking.columns import LANDS_MASKED
from connector.schema import TableName
from connector.source import Source
from connector.store.protocol import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Soon enough for a waiting person; on S3, 1.3 million LIST calls a month, about 6 dollars."""

POSTPONED_SECONDS = 10.0
"""How long a request waits if the source or the store failed it. The checks of a release take a while."""

MOST_TAKEN = 100
"""Limit of controls that manifests name; they are far fewer, unless requests can't be removed."""

REASON_CHARACTERS = 1000
"""Limit of the reason for a rejection in a manifest; the reason may quote the request."""


@dataclass(frozen=True)
class Outcome:
    """A request that was served, or rejected for a reason."""

    request: Request | Malformed
    rejected: str | None = None

    def remove(self, store: Store) -> None:
        """Remove the request's object, or move it aside."""
        if self.rejected is None:
            discard(store, self.request)
        else:
            reject(store, self.request, self.rejected)


class RequestIntake(BackgroundThread):
    """Turns requests into dumps. `on_agent`: the handlers of requests about the agent, by kind.

    `serve`, `committed`, `news` belong to the capture loop's thread. Its own removes the finished requests
    before it ends.
    """

    def __init__(
        self,
        store: Store,
        source: Source,
        dumps: DumpQueue,
        tables: Tables,
        on_agent: Mapping[str, Callable[[], None]],
    ) -> None:
        super().__init__("requests")
        self._on_agent = on_agent
        self._store, self._source, self._dumps, self._tables = store, source, dumps, tables
        self._lock = threading.Lock()
        self._fetched: dict[str, Request | Malformed] = {}
        self._served: dict[str, Outcome] = {}
        self._done: dict[str, Outcome] = {}
        self._passed_over: set[str] = set()  # requests for dumps, seen while too much was queued
        self._postponed: dict[str, float] = {}
        self._reported: set[str] = set()
        self._released: set[TableName] = set()

    @property
    def news(self) -> bool:
        """Return whether a request was served that no manifest records yet."""
        return bool(self._served)

    def serve(self, next_number: int, position: int) -> None:
        """Queue the requested dumps, to be recorded by the manifest of this number.

        `position`: the newest manifest's, and the floor of dumps that must see everything landed so far:
        dumps of quarantined tables, and of rows that a merge found incomplete. Queries the source only for
        quarantined tables; if that fails, the request is postponed. Reading the log shows whether it is lost.
        """
        waiting = self._take_fetched()
        try:
            for request_id, request in _in_turn(waiting).items():
                if self._was_taken(request):
                    self._note_sent_twice(waiting.pop(request_id))
                elif not self._must_wait(request, waiting):
                    self._pass_over_earlier(request, waiting)
                    try:
                        rejected = self._serve_or_reject(request, next_number, position)
                    except (TransientError, OperatorError) as error:
                        self._postponed[request_id] = time.monotonic() + POSTPONED_SECONDS
                        self._log_once(f"request {request_id} waits: {error}")
                        continue
                    self._served[request_id] = Outcome(waiting.pop(request_id), rejected)
        finally:
            if waiting:
                with self._lock:
                    self._fetched = waiting | self._fetched

    def committed(self) -> None:
        """Release the served requests: a manifest records them."""
        if self._served:
            with self._lock:
                self._done |= self._served
            self._served = {}

    def take_released(self) -> set[TableName]:
        """Hand over the tables released since the last call; the caller must reopen the log."""
        released, self._released = self._released, set()
        return released

    def _take_fetched(self) -> dict[str, Request | Malformed]:
        """Return what was fetched and is neither served nor done."""
        if not self._fetched:
            return {}
        with self._lock:
            fetched, self._fetched = self._fetched, {}
            return {k: r for k, r in fetched.items() if k not in self._served and k not in self._done}

    def _must_wait(self, request: Request | Malformed, waiting: Mapping[str, Request | Malformed]) -> bool:
        if self._postponed.get(request.id, 0.0) > time.monotonic():
            return True
        if isinstance(request, DumpRequest):
            return self._dumps.is_full
        if isinstance(request, Malformed):
            return False
        if len(self._dumps.schedule.control.taken) >= MOST_TAKEN:
            self._log_once(f"requests wait: {MOST_TAKEN} that took effect can't be removed")
            return True
        asked = isinstance(waiting.get(request.dump or ""), DumpRequest) or request.dump in self._passed_over
        return asked and not unfinished(request.dump, self._dumps.states)

    def _pass_over_earlier(
        self, request: Request | Malformed, waiting: dict[str, Request | Malformed]
    ) -> None:
        """Keep earlier controls that wait for their dump from undoing this later one."""
        if isinstance(request, ControlRequest):
            before = takewhile(lambda each: each is not request, waiting.values())
            controls = [each for each in before if isinstance(each, ControlRequest)]
            for overtaken in overtaken_by(request, controls):
                pass_over(overtaken, request, self._dumps)
                self._served[overtaken.id] = Outcome(waiting.pop(overtaken.id))

    def _was_taken(self, request: Request | Malformed) -> bool:
        if isinstance(request, ControlRequest):
            return was_carried_out(request, self._dumps)
        return isinstance(request, DumpRequest) and self._dumps.has_taken(request.id, request.digest)

    def _note_sent_twice(self, request: Request | Malformed) -> None:
        log.info("request %s was already accepted; it runs once", request.id)
        with self._lock:
            self._done[request.id] = Outcome(request)

    def _serve_or_reject(self, request: Request | Malformed, next_number: int, position: int) -> str | None:
        """Queue what is asked for, or return the reason why not."""
        try:
            self._serve(request, next_number, position)
        except RequestError as error:
            reason = str(error)[:REASON_CHARACTERS]
            log.error("rejected request %s: %s", request.id, reason)
            self._tables.notice(None, "dump", f"rejected request {request.id}: {reason}")
            note_rejected(request.id, reason, self._dumps)
            return reason
        return None

    def _serve(self, request: Request | Malformed, next_number: int, position: int) -> None:
        if isinstance(request, Malformed):
            raise RequestError(request.problem)
        if isinstance(request, ControlRequest) and request.kind in self._on_agent:
            self._on_agent[request.kind]()
            note_taken(request, self._dumps)  # the next agent must not hand over again
            return
        if isinstance(request, ControlRequest):
            carry_out(request, self._dumps, self._tables)
            return
        unfit = {} if request.tables else self._showing_masked()
        keyed = (name for name in self._tables.states if self._tables.has_key(name))
        names = list(dict.fromkeys(request.tables or (name for name in keyed if name not in unfit)))
        if not names and not unfit:
            raise RequestError("no table can be dumped: only changes are captured")
        quarantined = [name for name in names if self._require_dumpable(request, name)]
        unfit |= self._release(quarantined, position) if quarantined else {}
        if unfit.keys() >= set(names):
            raise RequestError("; ".join(unfit.values()))
        for name, why in unfit.items():
            log.error("request %s skips a table: %s", request.id, why)
            self._tables.notice(name, "dump", f"request {request.id} skips {why}")
        only_changes = [n for n in names if n not in unfit and not self._tables.has_key(n)]
        names = [name for name in names if name not in unfit and name not in only_changes]
        for number, name in enumerate(names):
            self._dumps.add(
                name,
                manifest=next_number,
                kind=request.dump_kind,
                reason=request.reason,
                request=request.id,
                digest=request.digest,
                part=number if len(names) > 1 else None,
                where=request.where,
                keys=request.keys,
                ranges=request.ranges or (),
                floor=position if request.reason == "missing" else None,
            )
        reads = "reads, to verify," if request.verify else "dumps"
        does = [f"{reads} {', '.join(map(str, names))}"] if names else []
        does += [f"releases {name}, of which only changes are captured" for name in only_changes]
        log.info("request %s %s", request.id, "; ".join(does))

    def _showing_masked(self) -> dict[TableName, str]:
        """Return why a dump of all tables skips some: to have a masked column shown, name its table."""
        return {
            name: f"{name}: {state.reason}; a dump of it by name lands it so"
            for name, state in self._tables.states.items()
            if LANDS_MASKED in (state.reason or "") and self._tables.has_key(name)
        }

    def _require_dumpable(self, request: DumpRequest, name: TableName) -> bool:
        """Return whether a table is quarantined; `RequestError` if it can't be dumped as asked."""
        state = self._tables.states.get(name)
        if state is None:
            raise RequestError(f"{name} is not captured")
        quarantined = state.state == "quarantined"
        if why := why_not_dumped(name, state):
            raise RequestError(why)
        for key in request.keys or ():
            if len(key) != len(state.key):
                raise RequestError(f"{name}: {key} is not a value of the key ({', '.join(state.key)})")
        if quarantined and request.dump_kind != "full":
            raise RequestError(f"{name} is quarantined ({state.reason}); request a full dump")
        return quarantined

    def _release(self, names: Collection[TableName], position: int) -> dict[TableName, str]:
        """Release quarantined tables, which need a full dump that sees all commits before `position`.

        Return why the others can't be captured yet. Everything that can fail comes before the first release:
        a released table whose dump was not queued would be dumped without a floor. Their chunks are not read
        until `Capture` has reopened the log, which may have lacked them.
        """
        listed = checked_tables(self._source, names)
        for schema in listed.schemas:
            self._store.put(
                schema_path(schema.table, schema.id), schema.to_json()
            )  # before a manifest names it
        barriers = {schema.table: self._source.take_xid_barrier() for schema in listed.schemas}
        if listed.schemas:
            self._dumps.await_log()
        for schema in listed.schemas:
            self._tables.release(schema.table, schema)
            if schema.key:
                self._dumps.require(schema.table, position, barriers[schema.table])
            else:
                self._dumps.needs.forget(schema.table)  # it may have had a key when it was quarantined
            self._released.add(schema.table)
        unfit = {problem.table: f"{problem} ({problem.hint})" for problem in listed.unfit}
        unfit |= {
            name: f"{name}: other sessions keep it locked; request the dump again later"
            for name in listed.busy
        }
        gone = set(names) - listed.existing
        return unfit | {name: f"{name}: the table no longer exists" for name in gone}

    def work(self) -> None:
        """Look for requests, and remove those that are completed."""
        try:
            self._poll()
            while not self.stopping.wait(POLL_SECONDS):
                self._poll()
            self._remove_done()
        except (TransientError, OperatorError) as error:
            log.warning("can't remove completed requests: %s", error)

    def _poll(self) -> None:
        """Fetch the next requests; while much is queued, leave further dumps in the landing zone."""
        full = self._dumps.is_full
        try:
            self._remove_done()
            self._forget_removed()
            with self._lock:
                known = set(self._done)
            known |= self._passed_over if full else set()
            found = {request.id: request for request in read_pending(self._store, known)}
        except (TransientError, OperatorError) as error:
            self._log_once(f"can't read requests, retrying: {error}")
            return
        dumps = {request.id for request in found.values() if full and isinstance(request, DumpRequest)}
        self._passed_over = self._passed_over | dumps if full else set()
        with self._lock:
            self._fetched = {id_: request for id_, request in found.items() if id_ not in dumps}

    def _forget_removed(self) -> None:
        """Stop naming requests in manifests once their objects are gone."""
        taken = self._dumps.schedule.control.taken
        if taken:
            pending = pending_ids(self._store)
            if removed := [each for each in taken if each.id not in pending]:
                forget_removed(self._dumps, removed)

    def _log_once(self, text: str) -> None:
        """Log a lasting problem once."""
        if text not in self._reported:
            self._reported.add(text)
            log.warning("%s", text)

    def _remove_done(self) -> None:
        for request_id, outcome in list(self._done.items()):
            try:
                outcome.remove(self._store)
            except OperatorError as error:  # it stays, and is skipped
                self._log_once(f"can't remove request {request_id}: {error}")
                continue
            taken = TakenRequest(id=request_id, digest=outcome.request.digest)
            if taken in self._dumps.schedule.control.taken:
                forget_removed(self._dumps, [taken])
            self._postponed.pop(request_id, None)
            with self._lock:
                del self._done[request_id]
                self._fetched.pop(request_id, None)


def _in_turn(requests: Mapping[str, Request | Malformed]) -> dict[str, Request | Malformed]:
    """Order requests: a dump that comes after a control which names it is moved to right before that.

    Its id was chosen, so it does not show when it was asked for.
    """
    in_turn: dict[str, Request | Malformed] = {}
    for request_id, request in requests.items():
        named = requests.get(request.dump or "") if isinstance(request, ControlRequest) else None
        if isinstance(named, DumpRequest):
            in_turn.setdefault(named.id, named)
        in_turn.setdefault(request_id, request)
    return in_turn
