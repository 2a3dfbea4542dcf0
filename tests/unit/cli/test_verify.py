"""Waiting for the agent to read what is to be verified."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from connector.cli.verification_run import VerificationRun
from connector.cli.verify import _print
from connector.control.source_view import SourceView
from connector.control.status import status
from connector.control.verifications import await_dumps, captured_tables, require_agent
from connector.errors import PreconditionError, RequestError
from connector.landing.manifest import DumpState
from connector.schema import TableName
from merge.proof.verification import TableVerification, Verification
from tests.support.landing.landed import AT, Landed, config_of
from tests.support.landing.zone import ORDERS, T


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    landed = Landed.local(tmp_path / "landing")
    landed.table(ORDERS)
    landed.commit(1)
    return landed


def view_of(folder: Path) -> SourceView:
    return SourceView(config_of(str(folder / "landing"), str(folder / "lake")))


def unfinished(landed: Landed, id_: str, **more: Any) -> DumpState:
    state = DumpState(
        id=id_, number=len(landed.dumps) + 9, table=T, kind="full", state="running", epoch=1, requested_at=AT,
        started_in=1,
    )  # fmt: skip
    landed.dumps.append(state.model_copy(update=more))
    return landed.dumps[-1]


def test_a_verification_waits_for_its_dump_and_for_what_its_table_needs(
    landed: Landed, tmp_path: Path
) -> None:
    view, stop, seen = view_of(tmp_path), threading.Event(), []
    landed.verification(T, 1, 1, started_in=1)
    ours = landed.dumps[0].model_copy(update={"state": "running", "rows": 7, "rows_estimate": 10})
    landed.dumps = [ours]
    unfinished(landed, "asked")  # nothing that the table needs
    unfinished(landed, "paused", reason="repair", paused=True)
    needed = unfinished(landed, "needed", reason="repair")
    landed.commit(1)
    assert status(view).tables[T].active_dumps == 4
    assert status(view).tables[T].verifications == 1

    def progress(done: int, of: int, what: str) -> None:
        seen.append((done, of, what))
        if len(seen) == 1:
            landed.dumps[0] = ours.model_copy(update={"state": "complete", "finished_in": landed.number + 1})
        else:
            landed.dumps[3] = needed.model_copy(
                update={"state": "complete", "finished_in": landed.number + 1}
            )
        landed.commit(1)

    meanwhile: list[str] = []
    (found,) = await_dumps(
        view, "dump-1", progress, stop, lambda dumps: meanwhile.extend(d.state for d in dumps)
    )
    assert found.state == "complete"
    assert meanwhile == ["running", "complete"], "both times, another dump was waited for"
    assert seen == [
        (70, 100, f"{T}: running, 7 rows read"),
        (100, 100, f"{T} (repair): running, 0 rows read"),
    ]
    stop.set()
    assert await_dumps(view, "another", progress, stop) == []


def test_one_whose_dumps_are_listed_no_more_is_not_awaited_for_ever(landed: Landed, tmp_path: Path) -> None:
    view, seen = view_of(tmp_path), []
    with pytest.raises(RequestError, match="verification never is no longer in the manifests"):
        await_dumps(view, "never", lambda *_: seen.append("waits"), threading.Event())
    assert seen == ["waits"]
    landed.verification(T, 1, 1, started_in=1)
    landed.dumps[0] = landed.dumps[0].model_copy(update={"state": "running"})
    landed.commit(1)

    def forget(*_: Any) -> None:
        landed.dumps.clear()
        landed.commit(1)

    with pytest.raises(RequestError, match="verification dump-1 is no longer in the manifests"):
        await_dumps(view, "dump-1", forget, threading.Event())


def test_a_rejected_request_and_a_missing_agent_are_reported(landed: Landed, tmp_path: Path) -> None:
    view = view_of(tmp_path)
    view.store.put("rejected/r1.reason.txt", b"public.orders is quarantined\n")
    with pytest.raises(RequestError, match=r"rejected request r1: public\.orders is quarantined$"):
        await_dumps(view, "r1", lambda *_: None, threading.Event())
    with pytest.raises(PreconditionError, match="no agent of source shop is running"):
        require_agent(view)
    landed.tables[ORDERS.table] = landed.tables[ORDERS.table].changed(state="quarantined")
    assert captured_tables(view) == ([ORDERS.table], [])
    landed.commit(1)
    assert captured_tables(view) == ([], [ORDERS.table])


A, B = TableName("public", "a"), TableName("public", "b")
EQUAL, DIFFERS = TableVerification(A), TableVerification(A, different=1)


@pytest.mark.parametrize(
    ("found", "repaired", "equal"),
    [
        ([EQUAL], [], True),
        ([DIFFERS], [], False),
        ([DIFFERS], [EQUAL], True),
        ([DIFFERS], [DIFFERS], False),
        ([DIFFERS, TableVerification(B)], [EQUAL], True),
        ([DIFFERS, TableVerification(B, settled=False)], [EQUAL], False),
        ([DIFFERS, TableVerification(B, error="it is quarantined")], [EQUAL], False),
        ([DIFFERS, TableVerification(B, suspects=None, incomplete="too many")], [EQUAL], False),
        ([TableVerification(A, different=1, settled=False)], [EQUAL], False),
        ([TableVerification(A, settled=False)], [], False),
        ([TableVerification(A, suspects=None, incomplete="too many")], [], False),
        ([TableVerification(A, suspects=[["1"]]), EQUAL], [], True),
        ([TableVerification(A, suspects=[["1"]]), DIFFERS], [], False),
    ],
)
def test_a_repair_of_one_table_settles_no_other(
    found: list[TableVerification], repaired: list[TableVerification], equal: bool
) -> None:
    nothing: Any = None
    run = VerificationRun(nothing, nothing, nothing, nothing)
    run.found = [Verification("found", [table]) for table in found]
    run.repaired = [Verification("repaired", [table]) for table in repaired]
    assert run.equal == equal


def test_a_row_of_the_lake_without_a_key_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nothing: Any = None
    run = VerificationRun(nothing, nothing, nothing, nothing)
    values = {"column": None, "kind": "ghost", "source_value": None, "lake_value": None}
    _print(run, [], [{"table": "public.a", "key": ["7", None], **values}], "differences")
    assert "7, NULL" in capsys.readouterr().out
