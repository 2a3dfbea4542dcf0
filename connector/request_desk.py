"""The request desk: requests in the landing zone become dumps of the running capture.

Flow: its thread fetches what waits -> `serve`, in the capture loop's thread, queues dumps or refuses -> the
next manifest records them -> `committed` -> its thread removes the request's object.

Invariants: a request's object is removed only after a manifest that holds its dumps, or the notice that it
was refused. What a crash leaves is seen again: a request whose dumps the newest manifest knows is removed,
any other is taken up.
"""

from __future__ import annotations

import logging
import threading

from connector.dump import Dumps
from connector.errors import RequestError, TransientError
from connector.landing import schema_path
from connector.requests import DumpRequest, Malformed, discard, pending, reject
from connector.schema import TableSchema
from connector.source import Source
from connector.store import Store
from connector.tables import Tables

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Soon enough for a person who waits; on S3, 1.3 million LIST calls a month, some 6 dollars."""


class RequestDesk:
    """Takes requests up. `serve`, `committed`, `news` belong to the capture loop's thread.

    `failure` holds what ended its own thread for good.
    """

    def __init__(self, store: Store, source: Source, dumps: Dumps, tables: Tables) -> None:
        self.failure: BaseException | None = None
        self._store, self._source, self._dumps, self._tables = store, source, dumps, tables
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._fetched: dict[str, DumpRequest | Malformed] = {}
        self._served: dict[str, DumpRequest | Malformed] = {}
        self._done: dict[str, DumpRequest | Malformed] = {}
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    @property
    def news(self) -> bool:
        """Tell whether a request was served that no manifest knows of yet."""
        return bool(self._served)

    def start(self) -> None:
        """Begin to look for requests."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread, which first removes what is done; wait so long for it."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def serve(self, next_number: int, position: int) -> None:
        """Queue the dumps that were asked for, to be recorded by the manifest of this number.

        `position`: the newest manifest's. Asks the source only for a table that was set aside; after a
        `TransientError` the request waits for the next call.
        """
        waiting = self._take_fetched()
        try:
            for request_id, request in list(waiting.items()):
                self._serve_or_refuse(request, next_number, position)
                self._served[request_id] = waiting.pop(request_id)
        finally:
            if waiting:
                with self._lock:
                    self._fetched = waiting | self._fetched

    def committed(self) -> None:
        """Let go of the requests served: a manifest knows them."""
        if self._served:
            with self._lock:
                self._done |= self._served
            self._served = {}

    def _take_fetched(self) -> dict[str, DumpRequest | Malformed]:
        """Give what was fetched and is neither served nor done; what a former run has committed is done."""
        if not self._fetched:
            return {}
        with self._lock:
            fetched, self._fetched = self._fetched, {}
            new = {k: r for k, r in fetched.items() if k not in self._served and k not in self._done}
            for request_id in [k for k in new if self._dumps.known(k)]:
                self._done[request_id] = new.pop(request_id)
        return new

    def _serve_or_refuse(self, request: DumpRequest | Malformed, next_number: int, position: int) -> None:
        try:
            self._serve(request, next_number, position)
        except RequestError as error:
            log.error("request %s is refused: %s", request.id, error)
            self._tables.notice(None, "dump", f"request {request.id} is refused: {error}")

    def _serve(self, request: DumpRequest | Malformed, next_number: int, position: int) -> None:
        if isinstance(request, Malformed):
            raise RequestError(request.problem)
        names = request.tables or list(self._tables.states)
        aside = [name for name in names if self._check(request, name)]
        released = self._schemas_of(aside) if aside else {}
        for name in aside:
            schema = released[name]
            self._store.put(
                schema_path(schema.table, schema.id), schema.to_json()
            )  # before a manifest names it
            self._tables.release(name, schema)
        for number, name in enumerate(names):
            self._dumps.add(
                name,
                manifest=next_number,
                kind="keys" if request.keys else "where" if request.where else "full",
                reason=request.reason,
                request_id=request.id if len(names) == 1 else f"{request.id}.{number}",
                where=request.where,
                keys=request.keys,
                floor=position if name in aside else None,
            )
        log.info("request %s: %s", request.id, ", ".join(names))

    def _check(self, request: DumpRequest, name: str) -> bool:
        """Tell whether a table is set aside; `RequestError` when it can't be dumped as asked."""
        state = self._tables.states.get(name)
        if state is None:
            raise RequestError(f"{name} is not captured")
        for key in request.keys or ():
            if len(key) != len(state.key):
                raise RequestError(f"{name}: {key} is not a value of the key ({', '.join(state.key)})")
        aside = state.state == "set_aside"
        if aside and (request.keys or request.where):
            raise RequestError(f"{name} is set aside ({state.reason}), only a full dump takes it up again")
        return aside

    def _schemas_of(self, names: list[str]) -> dict[str, TableSchema]:
        """Ask the source for the present schemas of tables that are set aside."""
        found = {str(schema.table): schema for schema in self._source.tables()}
        if missing := [name for name in names if name not in found]:
            raise RequestError(f"{', '.join(missing)}: can't be captured, see deltatide check")
        return found

    def _run(self) -> None:
        try:
            self._poll()
            while not self._stopping.wait(POLL_SECONDS):
                self._poll()
            self._remove_done()
        except TransientError as error:
            log.warning("requests that were carried out are still there: %s", error)
        except BaseException as error:  # handed to the capture loop, which raises it
            self.failure = error

    def _poll(self) -> None:
        try:
            self._remove_done()
            found = pending(self._store)
        except TransientError as error:
            log.warning("requests could not be read, trying again: %s", error)
            return
        with self._lock:
            self._fetched = {request.id: request for request in found}

    def _remove_done(self) -> None:
        for request_id, request in list(self._done.items()):
            remove = reject if isinstance(request, Malformed) else discard
            remove(self._store, request_id)
            with self._lock:
                del self._done[request_id]
                self._fetched.pop(request_id, None)
