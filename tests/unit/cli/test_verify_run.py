"""One run of the command `verify`: what its comparisons say together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from connector.cli import verification_run, verify
from connector.control import dump_requests, source_view, verifications
from connector.errors import PreconditionError, RequestError
from connector.schema import TableName
from merge.proof import sampling
from merge.proof.comparison import SampleOf, TableVerification
from merge.proof.sampling import Sample
from merge.proof.verification import Verification

ORDERS, ITEMS, WHOLE = (TableName("public", name) for name in ("orders", "items", "whole"))
RANGES = [(None, 255)]


def run_of(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> Any:
    """Return a run whose comparisons have these results, one after the other."""
    compared = iter(answers)

    def compare(*_: Any, **__: Any) -> Verification:
        if isinstance(answer := next(compared), Exception):
            raise answer
        return Verification("run", answer)

    run = verification_run.VerificationRun(Mock(), Mock(), Mock(), Mock())
    monkeypatch.setattr(run, "_compare", compare)
    return run


@pytest.mark.parametrize("by_rows", [None, "its layout has changed"])
def test_what_checksums_proved_keeps_its_own_cut_and_whether_the_table_was_settled(
    by_rows: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unproven = RANGES if by_rows is None else None
    first = TableVerification(ORDERS, manifest=10, checked=9, checked_at=10, settled=False, note="DELETE",
                              unproven=unproven, by_rows=by_rows)  # fmt: skip
    run = run_of(monkeypatch, [first], [TableVerification(ORDERS, manifest=20, rows=2)])
    run.verify_checksums([str(ORDERS)])
    ((table,),) = [result.tables for result in run.found]
    verify._print_table(table)
    shown = " ".join(capsys.readouterr().out.split())
    if by_rows is None:
        assert not run.equal
        assert (table.settled, table.note) == (False, "DELETE")
        assert "9 rows compared by checksums as of manifest 10, 2 rows read" in shown
        assert "no difference found as of manifest 20" in shown
    else:
        assert run.equal
        assert (table.checked, table.note) == (0, None)
        assert "checksums as of" not in shown


def test_a_table_that_was_not_settled_is_not_equal_though_others_are_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(
        monkeypatch, [TableVerification(ORDERS, different=1), TableVerification(ITEMS, settled=False)]
    )
    run.verify([str(ORDERS), str(ITEMS)])
    run.repaired.append(Verification("repaired", [TableVerification(ORDERS)]))
    assert not run.equal


def test_a_table_whose_rows_cannot_be_read_is_reported_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = [TableVerification(ORDERS, error="verification 1 is failed"),
               TableVerification(ITEMS, checked=9, unproven=RANGES),
               TableVerification(WHOLE, checked=9)]  # fmt: skip
    denied = RequestError("public.orders: permission denied", hint="GRANT SELECT")
    run = run_of(monkeypatch, checked, denied, [TableVerification(ITEMS, rows=2, different=1)])
    run.verify_checksums([str(ORDERS), str(ITEMS), str(WHOLE)])
    found = {table.table: table for result in run.found for table in result.tables}
    assert set(found) == {ORDERS, ITEMS, WHOLE}
    assert (found[ORDERS].error, found[ORDERS].hint) == (str(denied), denied.hint)
    assert found[ITEMS].differing == 1
    assert not run.equal
    run = run_of(monkeypatch, [TableVerification(ORDERS, suspects=[["1"]])], denied)
    run.verify([str(ORDERS)])
    assert [bool(table.error) for result in run.found for table in result.tables] == [False, True]
    assert not run.equal


def test_tables_without_checksums_are_read_with_one_request_and_one_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One each would cost a merge for each table: hours with a thousand of them."""
    checked = [TableVerification(name, unproven=None, by_rows="a float") for name in (ORDERS, ITEMS)]
    rows = [TableVerification(ORDERS, rows=1), TableVerification(ITEMS, rows=2, different=1)]
    run = run_of(monkeypatch, checked, rows)
    run.verify_checksums([str(ORDERS), str(ITEMS)])
    found = [(table.table, table.rows, table.by_rows) for result in run.found for table in result.tables]
    assert found == [(ORDERS, 1, "a float"), (ITEMS, 2, "a float")]
    refused = RequestError("public.items: is quarantined")
    run = run_of(monkeypatch, checked, refused, rows[:1], refused)
    run.verify_checksums([str(ORDERS), str(ITEMS)])
    assert [table.error for result in run.found for table in result.tables] == [None, str(refused)]


def test_what_a_repair_leaves_has_a_hint_that_leads_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(monkeypatch, [TableVerification(ORDERS, ghosts=1)])
    run.verify([str(ORDERS)])
    run.repaired.append(Verification("repaired", [TableVerification(ORDERS, ghosts=1)]))
    verify._print(run, [], [], "")
    hints = " ".join(capsys.readouterr().err.split())
    assert "deltatide dump public.orders;" in hints
    assert "deltatide rebuild public.orders" in hints
    assert not run.equal


def test_spark_starts_and_sums_the_lake_while_the_agent_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    @contextmanager
    def started(*_: Any) -> Iterator[str]:
        done.append("Spark")
        if "no Java" in done:
            raise PreconditionError("Spark did not start")
        yield "session"

    def compared(*_: Any, merge: Callable[[], None], **__: Any) -> Verification:
        done.append("compared")
        merge()
        done[-1] += ", for the lake was behind"
        return Verification("run", [])

    monkeypatch.setattr(verification_run, "stopping", started)
    monkeypatch.setattr(source_view, "captured_name", lambda name, _: name)
    monkeypatch.setattr(dump_requests, "request_dump", lambda *_, **__: done.append("asked") or "7")

    def read(*arguments: Any) -> list[Any]:
        arguments[-1](["a dump"])
        done.append("read")
        return []

    monkeypatch.setattr(verifications, "await_dumps", read)
    monkeypatch.setattr("merge.LakeSums.compute", lambda _, spark, dumps: done.append(f"{dumps} summed"))
    run = verification_run.VerificationRun(Mock(), Mock(), Mock(), ExitStack())
    monkeypatch.setattr(run, "_merge", lambda: done.append("merged"))
    monkeypatch.setattr("merge.verify", compared)
    run.verify_checksums([str(ORDERS)])
    assert done == [
        "asked", "Spark", "['a dump'] summed", "read", "compared", "merged, for the lake was behind"
    ]  # fmt: skip
    done.append("no Java")
    run = verification_run.VerificationRun(Mock(), Mock(), Mock(), ExitStack())
    with pytest.raises(PreconditionError):
        run.verify_checksums([str(ORDERS)])
    assert "deltatide cancel 7" in " ".join(capsys.readouterr().err.split())


def test_a_sample_says_of_what_it_is_one_and_each_table_that_it_could_not_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = RequestError("the agent rejected request 2", hint="GRANT SELECT")
    samples = [Sample(ORDERS, RANGES, SampleOf(2, 40, 1000)), Sample(ITEMS, whole="its key is text"),
               Sample(WHOLE, error="has not been merged yet", hint="deltatide merge"),
               Sample(TableName("public", "denied"), RANGES, SampleOf(1, 1, 1))]  # fmt: skip
    monkeypatch.setattr(sampling, "choose_samples", lambda *_: samples)
    monkeypatch.setattr(source_view, "captured_name", lambda name, _: name)
    asked: list[Any] = []
    monkeypatch.setattr(
        dump_requests, "request_dump", lambda *a, **more: asked.append((*a[1], more)) or str(len(asked))
    )
    run = verification_run.VerificationRun(Mock(), Mock(), Mock(), Mock(), _spark=Mock())
    monkeypatch.setattr(run, "_await", Mock(side_effect=[[], [], denied]))
    monkeypatch.setattr(
        run, "_compare_read",
        lambda _, tables, **__: Verification("run", [TableVerification(tables[0], rows=10, manifest=3)]),
    )  # fmt: skip
    run.verify_sample([str(sample.table) for sample in samples], 0.05, 7)
    wanted = {str(ORDERS): RANGES, str(ITEMS): None, "public.denied": RANGES}
    assert asked == [(name, {"verify": True, "ranges": ranges}) for name, ranges in wanted.items()]
    verify._print(run, [], [], "")
    said = capsys.readouterr()
    shown, errors = " ".join(said.out.split()), " ".join(said.err.split())
    assert (
        "public.orders: 2 of 40 key ranges, 10 of about 1,000 rows (0.0 MiB), equal in this sample" in shown
    )
    assert "all of its rows were compared, not a sample: its key is text" in shown
    assert "public.whole: has not been merged yet hint: deltatide merge" in errors
    assert "public.denied: the agent rejected request 2 hint: GRANT SELECT" in errors
    assert not run.equal


def test_keys_that_wait_for_columns_are_compared_again_and_never_called_equal_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = TableVerification(ORDERS, waiting=1, suspects=[["1"]])
    run = run_of(monkeypatch, [waits], [waits], [TableVerification(ORDERS, rows=1)])
    run.verify([str(ORDERS)])
    assert (run.equal, len(run.found)) == (True, 3)
    run = run_of(monkeypatch, [waits], [waits], [TableVerification(ORDERS, different=1)])
    run.verify([str(ORDERS)])
    assert not run.equal
    # A writer leaves the column out each time: nobody knows.
    run = run_of(monkeypatch, [waits], *[[waits]] * verification_run.ROUNDS)
    run.verify([str(ORDERS)])
    assert not run.equal
    assert "verify again once a cut is exact" in run.found[-1].tables[0].incomplete
    assert [result["equal"] for result in run.to_dict([], [])["verified"]] == [False] * 4
