"""An agent in this process on a real database; tests start, stop and query it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connector.agent import open_source
from connector.capture import catalog_watcher, request_intake
from connector.capture.loop import Capture
from connector.config import Config
from connector.landing.manifest import Manifest, TableState
from connector.landing.manifest_store import newest_manifest, read_manifest
from connector.landing.requests import DumpRequest, submit
from connector.mysql.log import reader as mysql_reader
from connector.postgres.catalog_fingerprint import FORMER, LOGGED, UNIDENTIFIED, UNLIKE_ALL, WITHHELD
from connector.postgres.log import reader as postgres_reader
from connector.schema import TableName
from connector.store.factory import open_store
from tests.support.landing.cuts import Table, add_manifest, manifests_in
from tests.support.source.tested_database import TestedDatabase
from tests.support.waiting import wait_until

CHECK_SECONDS = 0.3
POLL_SECONDS = 0.1


class CapturedDatabase:
    """The database, its landing zone in `folder`, and the agent between them."""

    def __init__(
        self,
        database: TestedDatabase,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        **source: Any,
    ) -> None:
        monkeypatch.setattr(catalog_watcher, "CHECK_SECONDS", CHECK_SECONDS)
        for polling in (request_intake, mysql_reader, postgres_reader):
            monkeypatch.setattr(polling, "POLL_SECONDS", POLL_SECONDS)
        self.database = database
        self.config = Config.model_validate(
            {
                "source": {**database.settings(), "name": "shop", **source},
                "landing": {"url": str(folder / "landing"), "flush_seconds": 0.1, "heartbeat_seconds": 0.2},
                "dump": {"chunk_rows": 100},
                "lake": {"url": str(folder / "lake")},
            }
        )
        self.store = open_store(self.config.landing, "shop")
        self._checks = 0
        self._capture: Capture | None = None
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the agent during the block; it must end without an error."""
        source = open_source(self.config)
        self._capture = capture = Capture(source, self.store, self.config)
        regard = capture._apply_catalog_changes

        def counted(catalog_snapshot: Any) -> None:
            regard(catalog_snapshot)
            self._checks += catalog_snapshot is not None

        capture._apply_catalog_changes = counted  # type: ignore[method-assign]
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            capture.stop()
            thread.join(20)
            source.close()
        assert not thread.is_alive(), "the agent did not end"
        self._raise_error()

    def _run(self) -> None:
        try:
            assert self._capture is not None
            self._capture.run()
        except BaseException as error:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise AssertionError("the agent ended") from self._error

    def wait_settled(self, seconds: float = 90) -> Manifest:
        """Wait until the log up to now has landed, the catalog has been checked, and no dump is active."""
        end, checks = self.database.end_of_log(), self._checks

        def settled() -> Manifest | None:
            self._raise_error()
            capture = self._capture
            if self._checks < checks + 2 or (capture and capture._tables_to_start):
                return None  # a new table was seen, but no manifest names it yet
            newest = newest_manifest(self.store)
            if newest is None or newest.position < end or any(map(_is_contradicted, newest.tables.values())):
                return None
            if capture and {*list(capture._tables.states)} != {*newest.tables}:
                return None  # a table was seen to be gone, but no manifest leaves it out yet
            dumps = capture._dumps.states if capture else []
            return newest if not any(d.active for d in [*newest.dumps, *dumps]) else None

        return wait_until(settled, "all has landed", seconds=seconds)

    def dump(self, tables: list[TableName] | None = None, *, settled: bool = True) -> None:
        """Request a full dump of all tables, or of some, and wait until it ends or is rejected."""
        before = newest_manifest(self.store)
        since = before.number if before else 0
        request_id = submit(self.store, DumpRequest(tables=tables))

        def ended() -> bool:
            self._raise_error()
            newest = newest_manifest(self.store)
            if newest is None:
                return False
            ours = [d for d in newest.dumps if d.id.startswith(request_id)]
            ends = bool(ours) and not any(d.active for d in ours)
            return ends or self._is_rejected(request_id, since, newest.number)

        wait_until(ended, "the dump has ended", seconds=60)
        if settled:
            self.wait_settled()

    def _is_rejected(self, request_id: str, since: int, upto: int) -> bool:
        manifests = (read_manifest(self.store, number) for number in range(since + 1, upto + 1))
        return any(request_id in notice.text for m in manifests if m is not None for notice in m.notices)


def _is_contradicted(state: TableState) -> bool:
    """Whether the log has shown something of a table in PostgreSQL that the next check repairs."""
    words = (state.fingerprint or "").split(" ")
    return any(_MARKED.search(w) for w in words)


_MARKED = re.compile(rf":({LOGGED}|{UNIDENTIFIED}|{FORMER}|{WITHHELD}):$|^n\d+\{UNLIKE_ALL}$")


def landed_tables(store: Any) -> dict[TableName, Table]:
    """Return what has landed of each table, resolved in plain Python."""
    landed: dict[TableName, Table] = defaultdict(Table)
    for manifest in manifests_in(store):
        add_manifest(store, manifest, landed)
    return landed
