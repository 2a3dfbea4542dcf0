"""What becomes of a dump that fails."""

from __future__ import annotations

from typing import Any

from connector.capture.dump_queue import DumpQueue
from connector.capture.dump_workers import DumpWorkers
from connector.capture.tables import Tables
from connector.errors import RequestError, TableError
from tests.support.landed import schema_of

SCHEMA = schema_of("public.t", id="int")


def workers_of(dumps: DumpQueue, tables: Tables) -> DumpWorkers:
    """Workers whose threads are not started."""
    nothing: Any = None
    return DumpWorkers(nothing, dumps, nothing, tables.key)


def test_a_dump_that_quarantines_its_table_stays_active_until_the_quarantine_is_taken_over() -> None:
    """A manifest that had only the first of these would be called exact."""
    for error in (TableError(SCHEMA.table, "it can't be read"), RequestError("no")):
        tables, dumps = Tables({}, {}), DumpQueue([], epoch=1)
        tables.add(SCHEMA)
        workers = workers_of(dumps, tables)
        dump = dumps.add(SCHEMA.table, manifest=1, reason="repair")
        task = dumps.next_task(0)
        assert task is not None
        workers._fail(task, error)
        assert dump.active
        assert dumps.next_task(0) is None, "it rests meanwhile"
        (found,) = workers.take_quarantined(7)
        assert (found.table, found.lsn) == (SCHEMA.table, 7)
