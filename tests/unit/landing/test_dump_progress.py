"""How far a dump is, as people see it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connector.landing.dump_progress import DumpProgress, progress_of
from connector.landing.manifest import DumpState
from connector.schema import TableName

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def dump(**fields: Any) -> DumpState:
    table = TableName("public", "t")
    known: dict[str, Any] = {"kind": "full", "epoch": 1, "requested_at": AT, "started_in": 1, **fields}
    return DumpState(id="d", number=1, table=table, **known)


@pytest.mark.parametrize(
    ("fields", "held_back", "expected"),
    [
        ({}, None, DumpProgress("queued")),
        ({"state": "running", "rows": 25, "rows_estimate": 100, "rows_per_second": 5.0}, None,
         DumpProgress("running", None, 0.25, 5.0, 15.0)),
        ({"state": "running", "rows": 250, "rows_estimate": 100, "rows_per_second": 5.0}, None,
         DumpProgress("running", None, 0.99, 5.0, None)),
        ({"state": "running", "rows": 25, "rows_estimate": 100, "rows_per_second": 5.0}, "it suffers",
         DumpProgress("running", "held back: it suffers", 0.25)),
        ({"state": "running", "rows": 25, "rows_estimate": 100, "paused": True}, "it suffers",
         DumpProgress("paused", None, 0.25)),
        ({"state": "running", "error": "public.t: another session holds a lock"}, None,
         DumpProgress("running", "public.t: another session holds a lock")),
        ({"kind": "where", "rows": 5, "rows_estimate": 100, "state": "running"}, None,
         DumpProgress("running")),
        ({"xid_barrier": 7}, None, DumpProgress("queued", "waiting for transactions with an xid below 7")),
        ({"state": "complete", "rows": 50, "started_at": AT, "finished_at": AT + timedelta(seconds=10)}, None,
         DumpProgress("done", None, 1.0, 5.0)),
        ({"state": "failed", "error": "no", "rows": 50, "rows_estimate": 100}, None,
         DumpProgress("failed", "no", 0.5)),
    ],
)  # fmt: skip
def test_progress_in_the_words_of_operators(
    fields: dict[str, Any], held_back: str | None, expected: DumpProgress
) -> None:
    assert progress_of(dump(**fields), held_back) == expected


def test_a_full_dump_that_waits_names_the_one_before_it() -> None:
    first, second = dump(paused=True, state="running"), dump()
    second.id = "e"
    assert progress_of(second, None, [first, second]).why == "behind dump d, which is paused"
    first.paused = False
    assert progress_of(second, None, [first, second]).why == "behind dump d"
    first.state = "complete"
    assert progress_of(second, None, [first, second]).why is None
