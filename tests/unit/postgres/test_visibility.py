"""The low watermark's proof: which commits a snapshot shows, and how low a chunk has to go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.landing.manifest import InvisibleCommit
from connector.postgres.visibility import Snapshot, Visibility


def test_a_snapshot_is_read_as_postgres_formats_it() -> None:
    assert Snapshot.parse("10:20:12,15") == Snapshot(10, 20, frozenset({12, 15}))
    assert Snapshot.parse("726:726:") == Snapshot(726, 726, frozenset())


@pytest.mark.parametrize(("xid", "shown"), [(9, True), (11, True), (12, False), (20, False), (21, False)])
def test_a_transaction_is_shown_unless_it_runs_or_is_yet_to_come(xid: int, shown: bool) -> None:
    assert Snapshot.parse("10:20:12,15").shows(xid) is shown


@given(st.integers(3, 1 << 50), st.integers(-(1 << 30), 1 << 30))
def test_a_32_bit_xid_finds_its_64_bit_one_across_wraparound(xmax: int, distance: int) -> None:
    full = max(3, xmax + distance)
    assert Snapshot(xmax, xmax, frozenset()).full_xid(full % (1 << 32)) == full


def test_the_low_watermark_is_below_the_position_itself() -> None:
    visibility = Visibility(0)
    visibility.publish(100, [(90, 7)])
    with visibility.opening() as position:
        assert visibility.low_watermark(position, Snapshot.parse("8:8:")) == 99


def test_the_low_watermark_is_below_every_commit_that_the_snapshot_does_not_show() -> None:
    visibility = Visibility(0)
    visibility.publish(100, [(60, 7), (70, 9), (80, 8), (90, 5)])
    with visibility.opening() as position:
        assert visibility.low_watermark(position, Snapshot.parse("7:12:8,9")) == 69


def test_a_commit_at_or_after_xmax_is_not_shown() -> None:
    visibility = Visibility(0)
    visibility.publish(100, [(60, 726)])
    with visibility.opening() as position:
        assert visibility.low_watermark(position, Snapshot.parse("726:726:")) == 59


def test_a_shown_commit_is_forgotten_and_a_hidden_one_is_kept() -> None:
    visibility = Visibility(0)
    visibility.publish(100, [(60, 7), (70, 9)])
    assert visibility.forget_visible_commits(Snapshot.parse("9:10:9"))
    assert visibility.not_yet_visible(100) == [InvisibleCommit(xid=9, lsn=70)]


def test_nothing_is_forgotten_while_a_chunk_is_being_opened() -> None:
    visibility = Visibility(0)
    visibility.publish(100, [(60, 7)])
    older, newer = Snapshot.parse("7:8:7"), Snapshot.parse("8:8:")
    with visibility.opening() as position:
        assert not visibility.forget_visible_commits(newer)
        assert visibility.low_watermark(position, older) == 59
    assert visibility.forget_visible_commits(newer)
    assert visibility.size == 0


def test_what_is_visible_is_known_while_a_chunk_is_being_opened_too() -> None:
    """A row that its check of the catalog does not show may not land; the opening of a chunk is no reason."""
    visibility = Visibility(0, [InvisibleCommit(xid=6, lsn=0)])
    visibility.publish(100, [(60, 7), (70, 9)])
    with visibility.opening():
        assert visibility.not_yet_visible(100, Snapshot.parse("9:10:9")) == [InvisibleCommit(xid=9, lsn=70)]
        assert len(visibility.not_yet_visible(100, Snapshot.parse("5:6:"))) == 3
        assert visibility.size == 3


@pytest.mark.parametrize("still_running", ["7:9:7", "7:7:", "6:7:6", "7:8:7"])
def test_no_low_watermark_is_given_while_a_transaction_below_the_bar_may_run(still_running: str) -> None:
    visibility = Visibility(50, [InvisibleCommit(xid=5, lsn=0), InvisibleCommit(xid=8, lsn=0)])
    visibility.publish(100, [(60, 7)])  # its commit is read, and may still carry less than it wrote
    with visibility.opening() as position:
        assert visibility.low_watermark(position, Snapshot.parse(still_running)) is None
        assert visibility.low_watermark(position, Snapshot.parse("8:9:8")) == 99
    visibility.forget_visible_commits(Snapshot.parse(still_running))
    assert InvisibleCommit(xid=8, lsn=0) in visibility.not_yet_visible(100)
    visibility.forget_visible_commits(Snapshot.parse("8:8:"))
    assert visibility.not_yet_visible(100) == []


def test_the_manifest_gets_the_commits_up_to_its_position_only() -> None:
    visibility = Visibility(0, [InvisibleCommit(xid=3, lsn=0), InvisibleCommit(xid=4, lsn=40)])  # 3: a bar
    visibility.publish(100, [(60, 7), (95, 9)])
    assert visibility.not_yet_visible(60) == [
        InvisibleCommit(xid=3, lsn=0),
        InvisibleCommit(xid=4, lsn=40),
        InvisibleCommit(xid=7, lsn=60),
    ]


def test_the_position_never_goes_back() -> None:
    visibility = Visibility(100)
    visibility.publish(50)
    assert visibility.position == 100


@given(st.data())
def test_a_chunk_sees_every_commit_at_or_before_its_low_watermark(data: st.DataObject) -> None:
    """Random histories: commits become visible in any order, after they were read or before."""
    visibility = Visibility(0)
    shown: set[int] = set()
    lsns: dict[int, int] = {}
    for step in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["commit", "show", "settle", "chunk"]))
        hidden = sorted(lsns.keys() - shown)
        xmax = max(shown, default=-1) + 1
        running = frozenset(xid for xid in hidden if xid < xmax)
        snapshot = Snapshot(min(running, default=xmax), xmax, running)
        if action == "commit":
            lsns[len(lsns)] = 10 * step
            visibility.publish(10 * step + data.draw(st.sampled_from([5, 10])), [(10 * step, len(lsns) - 1)])
        elif action == "show" and hidden:
            shown.add(data.draw(st.sampled_from(hidden)))
        elif action == "settle":
            visibility.forget_visible_commits(snapshot)
        else:
            with visibility.opening() as position:
                low_watermark = visibility.low_watermark(position, snapshot)
            assert low_watermark is not None
            assert all(xid in shown for xid, lsn in lsns.items() if lsn <= low_watermark)
