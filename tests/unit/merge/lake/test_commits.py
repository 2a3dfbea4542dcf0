"""What a Delta table's history says of its rows: whose they are, and whether they go on from a version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from connector.errors import GapError
from connector.landing.manifest import Manifest
from connector.schema import TableName
from merge.lake import commits
from merge.lake.commits import (
    COMMITS_READ,
    Commits,
    Mark,
    commits_of,
    is_from_landing_zone,
    keeps_rows_since,
    newest_written,
    read_commits,
    renewed_version,
    version_is_unchanged,
    version_of,
)
from merge.lake.control_table import Frontier
from merge.lake.target import Target
from tests.support.landing.landed import Landed


def history(*made: str | tuple[str, Mark], oldest: int = 0) -> list[dict[str, Any]]:
    """A table's history, newest first, as DESCRIBE HISTORY gives it; commits are given oldest first."""
    rows = []
    for version, commit in enumerate(made, oldest):
        operation, mark = commit if isinstance(commit, tuple) else (commit, None)
        metadata = mark.to_json() if mark else None
        rows.append({"version": version, "operation": operation, "userMetadata": metadata})
    return rows[::-1]


def judged(rows: Sequence[Any], since: int | None, manifest: int = 9) -> Commits:
    """What a merge finds that starts at version `since`, of this manifest."""
    return commits_of(rows, "shop", Frontier(manifest, since))


def ours(manifest: int, *, rebuilt: int = 0) -> tuple[str, Mark]:
    return ("WRITE" if rebuilt else "MERGE", Mark("shop", manifest, rebuilt))


def created(manifest: int = 1) -> tuple[str, Mark]:
    return ("CREATE TABLE", Mark("shop", manifest).for_layout_commit())


def altered(manifest: int) -> tuple[str, Mark]:
    return ("ADD COLUMNS", Mark("shop", manifest).for_layout_commit())


def test_our_commits_and_what_keeps_rows_continue() -> None:
    rows = history(created(), ours(1), "OPTIMIZE", "ADD COLUMNS", ours(2), "VACUUM START", "VACUUM END")
    assert judged(rows, 1) == Commits(4, manifest=2, newest=6, why_broken=None, last=Mark("shop", 2))
    assert judged(rows, None).why_broken is None


@pytest.mark.parametrize(
    "operation",
    [
        "RESTORE",
        "DELETE",
        "UPDATE",
        "WRITE",
        "MERGE",
        "TRUNCATE",
        "CLONE",
        "DROP COLUMNS",
        "RENAME COLUMN",
        "STREAMING UPDATE",
        "CREATE OR REPLACE TABLE",
        "something new",
    ],
)
def test_whatever_else_changes_rows_is_a_breach(operation: str) -> None:
    rows = history(created(), ours(1), operation, ours(2))
    assert judged(rows, 1).why_broken == f"version 2 is a {operation} by another writer"
    assert judged(rows, None).why_broken
    assert judged(rows, 3).why_broken is None  # it was there when that frontier was recorded


def test_a_rebuild_fixes_what_was_before_it_and_nothing_after() -> None:
    rows = history(created(), ours(1), "RESTORE", ours(2), ours(2, rebuilt=1))
    assert judged(rows, 1).why_broken is None
    assert judged([*history("DELETE", oldest=5), *rows], 1).why_broken


def test_another_sources_commits_are_someone_elses() -> None:
    rows = history(created(), ours(1), ("MERGE", Mark("warehouse", 2)))
    assert judged(rows, 1).why_broken


def test_versions_that_began_again_and_a_history_that_is_gone_do_not_continue() -> None:
    assert (
        judged(history(created(), ours(1)), 5).why_broken
        == "its newest version is 1, but we merged version 5"
    )
    cut_short = history(ours(8), ours(9), oldest=40)
    assert judged(cut_short, 20).why_broken == "its history before version 40 is gone"
    assert judged(cut_short, 39).why_broken is None


def test_a_commit_of_a_merge_that_was_overtaken_is_a_breach() -> None:
    """It may have brought rows back; Delta's fence keeps it out, where a platform lets it."""
    assert judged(history(created(), ours(3), ours(2)), 0).why_broken


def test_without_user_metadata_writes_may_be_ours_and_a_restore_is_still_seen() -> None:
    rows = history("CREATE TABLE", "WRITE", "MERGE")
    assert judged(rows, 0) == Commits(version=2, manifest=None, newest=2, why_broken=None)
    assert judged(history("CREATE TABLE", "WRITE", "RESTORE", "MERGE"), 1).why_broken


def test_a_rebuild_passes_the_fence_after_a_merge_of_its_manifest_and_after_another_rebuild() -> None:
    """Somebody may touch the table right after it was rebuilt."""
    merged = Mark("shop", 7)
    first = merged.rebuild_after(Mark("shop", 6, rebuilt=4))
    touched = judged(history(created(), ours(6), ("MERGE", merged), ("WRITE", first), "DELETE"), 1)
    assert (touched.why_broken, touched.last) == ("version 4 is a DELETE by another writer", first)
    second = merged.rebuild_after(touched.last)
    assert (
        merged.delta_txn_version
        < first.delta_txn_version
        < second.delta_txn_version
        < Mark("shop", 8).delta_txn_version
    )
    assert (first.rebuilt, second.rebuilt) == (1, 2)


def test_a_frontier_whose_commit_is_another_one_now_does_not_continue() -> None:
    """The table's files were restored as they were at version 1; OPTIMIZE gave it the numbers again."""
    rows = history(created(), ours(1), "OPTIMIZE", "OPTIMIZE", ours(4))
    assert judged(rows, 3).why_broken == "version 3 is no longer our commit"
    assert judged([*history(created(), ours(1), "OPTIMIZE", ours(4, rebuilt=1))], 2).why_broken is None
    assert judged(history(created(), ours(4)), 0).why_broken is None


def test_nor_does_one_whose_commit_there_was_made_on_top_of_an_older_copy() -> None:
    """The files were restored as they were at version 1, and the next merge gave version 2 again."""
    rows = history(created(), ours(1), ours(3))
    assert judged(rows, 2, manifest=2).why_broken == "version 2 is no longer our commit"
    assert judged(rows, 2, manifest=3).why_broken is None
    assert judged(rows, 2, manifest=4).why_broken is None  # it had nothing to apply from manifest 4
    assert judged(history(created(), ours(1), ours(3, rebuilt=1)), 1, manifest=2).why_broken is None


@pytest.mark.parametrize(
    "made", ["VACUUM START", "SET TBLPROPERTIES", "WRITE", altered(3), created(3)], ids=str
)
def test_nor_does_one_that_was_put_back_as_it_was_without_rows(made: str | tuple[str, Mark]) -> None:
    """Manifest 2 had brought the first rows, at version 1."""
    rows = history(created(), made, ours(3))
    assert judged(rows, 1, manifest=2).why_broken == "version 1 is no longer our commit"
    assert judged(rows[1:], 1, manifest=2).why_broken == "version 1 is no longer our commit"


def test_nor_does_one_whose_commit_there_is_the_last_that_was_read() -> None:
    rows = history(ours(1), "OPTIMIZE", *["OPTIMIZE"] * (COMMITS_READ - 2), ours(4))
    assert judged(rows[:COMMITS_READ], 1, manifest=3).why_broken == "version 1 is no longer our commit"


def test_somebodys_write_into_a_table_that_has_had_no_rows_is_a_breach() -> None:
    assert judged(history(created(), "WRITE"), 0).why_broken == "version 1 is a WRITE by another writer"


def test_a_commit_that_only_altered_the_layout_does_not_say_that_the_rows_are_there() -> None:
    """A merge up to manifest 9 created or altered the table, and crashed; the next one goes up to 7."""
    rows = history(created(), ours(5), altered(9))
    assert judged(rows, 1) == Commits(1, manifest=5, newest=2, why_broken=None, last=Mark("shop", 5))
    rows = history(created(), ours(5), altered(9), ours(7))
    assert judged(rows, 1) == Commits(3, manifest=7, newest=3, why_broken=None, last=Mark("shop", 7))
    rows = history(created(9), altered(10))
    assert judged(rows, None) == Commits(0, manifest=None, newest=1, why_broken=None, last=None)


def continuing(manifest: int, id_: str, after: int) -> tuple[str, Mark]:
    return "MERGE", Mark("shop", manifest).continuing(Frontier(after, 1, id_))


def test_a_merge_that_continued_a_dropped_table_is_a_breach_unless_this_one_was_as_far() -> None:
    late = continuing(2, "dropped", 1)
    dropped = "a merge into the table that was dropped committed to it"

    def why(*made: tuple[str, Mark], frontier: Frontier = Frontier(0)) -> str | None:
        return commits_of(history(*made), "shop", frontier, id_="new").why_broken

    assert why(created(2), late) == dropped
    assert why(created(2), late, continuing(3, "new", 2)) == dropped
    assert why(created(2), late, frontier=Frontier(2)) == dropped  # only its own mark says how far it is
    assert why(created(2), ours(1), late) is None
    assert why(created(2), ours(1), late, frontier=Frontier(1, 1, "new")) is None
    assert why(created(2), late, ours(2, rebuilt=1)) is None
    assert why(created(1), continuing(2, "new", 1)) is None  # nothing had landed when it was created
    assert why(created(2), ours(2)) is None  # it wrote all rows, or is of an older release
    assert commits_of(history(created(2), late), "shop", Frontier(0)).why_broken is None


def test_a_mark_says_what_it_continued() -> None:
    _, mark = continuing(2, "its id", 1)
    assert Mark.parse(mark.to_json(), "shop") == mark
    assert Mark.parse('{"deltatide": {"source": "shop", "manifest": 2}}', "shop") == Mark("shop", 2)


def test_a_commit_of_an_earlier_manifest_than_the_frontiers_is_a_breach() -> None:
    """A rebuild with other columns passes the fence; others do where a platform has none."""
    rebuilt = ("WRITE", Mark("shop", 8, rebuilt=1, generation=1))
    assert judged(history(created(), ours(9), altered(8), rebuilt), 1).why_broken
    assert judged(history(created(), ours(9), ("WRITE", Mark("shop", 8))), 1).why_broken
    assert judged(history(created(), ours(7), altered(8), rebuilt), 1).why_broken is None
    assert judged(history(created(), ours(7), ours(9), altered(8), rebuilt), 1).why_broken
    assert judged(history(created(), ours(7), altered(9), rebuilt), 1).why_broken is None
    upkeep = ("REORG", Mark("shop", 9, layout=True, follows=1))
    assert judged(history(created(), ours(9), upkeep, altered(8), rebuilt), 2).why_broken


def test_only_the_commit_at_the_frontier_shows_that_a_platform_keeps_no_marks() -> None:
    """Of an idle table, the log may begin with what somebody has written since."""
    unmarked = history("CREATE TABLE", "MERGE", "OPTIMIZE", "WRITE")
    assert judged(unmarked, 1).why_broken is None
    assert judged(unmarked, None).why_broken is None
    assert judged(unmarked[:3], 1).why_broken is None
    assert judged(unmarked[:2], 1).why_broken == "version 3 is a WRITE by another writer"
    assert judged(history("OPTIMIZE", oldest=2), 1).why_broken is None


def test_a_late_merge_is_no_breach_if_only_upkeep_names_a_later_manifest() -> None:
    """Manifests 6 to 9 had nothing of the table, so the merge up to 7 had read nothing that it lacks."""
    upkeep = ("OPTIMIZE", Mark("shop", 9, layout=True, follows=1))
    rows = history(created(), ours(5), upkeep, ours(7), ours(10))
    assert judged(rows, 2).why_broken is None
    assert judged(history(created(), ours(5), upkeep, ours(4)), 2).why_broken
    assert judged(rows[:3], 2).why_broken  # what brought the rows was not read


def test_upkeep_vouches_for_no_version_up_to_the_one_that_it_follows() -> None:
    """It looked at version 3; then version 1 was put back, and its commits became versions 2 and 3."""
    upkeep = Mark("shop", 3, layout=True, follows=3)
    assert Mark.parse(upkeep.to_json(), "shop") == upkeep
    as_it_was = [created(), ours(1), ours(2), ours(3)]
    rows = history(*as_it_was, ("OPTIMIZE", upkeep))
    assert judged(rows, 3, manifest=3).why_broken is None
    assert renewed_version(rows, "shop", Frontier(3, 3, "id")) == 4
    restored = [created(), ours(1), ("SET TBLPROPERTIES", upkeep), ("OPTIMIZE", upkeep)]
    for more in ([], [("OPTIMIZE", upkeep)]):
        rows = history(*restored, *more)
        assert judged(rows, 3, manifest=3).why_broken == "version 3 is no longer our commit"
        assert renewed_version(rows, "shop", Frontier(3, 3, "id")) == 3


def test_a_manifest_of_the_same_number_is_another_landing_zones_unless_it_was_written_as_the_same() -> None:
    landing = Landed(writer="here-")
    landing.commit(10)
    lost = Landed()
    lost.get = missing  # type: ignore[method-assign]
    mark = Mark("shop", 1, write_id="here-1")
    assert Mark.parse(mark.to_json(), "shop") == mark == replace(mark.rebuild_after(None), rebuilt=0)
    assert Mark.parse(mark.for_layout_commit().to_json(), "shop") == replace(mark, layout=True)
    assert is_from_landing_zone(landing, mark)
    assert is_from_landing_zone(landing, None)
    assert not is_from_landing_zone(landing, Mark("shop", 1, write_id="there-1"))
    assert not is_from_landing_zone(landing, Mark("shop", 1))
    assert is_from_landing_zone(lost, mark) is False
    lost.is_removed = lambda number: number < 2  # type: ignore[method-assign]
    assert is_from_landing_zone(lost, mark) is None
    assert is_from_landing_zone(lost, Mark("shop", 2)) is False


def test_the_rows_of_a_version_are_those_of_an_older_one_if_all_commits_between_keep_rows() -> None:
    rows = history(created(), ours(1), "OPTIMIZE", altered(2), ours(2), "VACUUM END", oldest=4)
    assert keeps_rows_since(rows, "shop", 5, 7)
    assert keeps_rows_since(rows, "shop", 8, 9)
    assert not keeps_rows_since(rows, "shop", 5, 8)
    assert not keeps_rows_since(rows, "shop", 2, 5)  # the history is not that long
    assert not keeps_rows_since(history(ours(1), "DELETE"), "shop", 0, 1)


def test_the_newest_commit_that_wrote_rows_counts_unless_others_changed_them_since() -> None:
    rows = history(created(), ours(1, rebuilt=1), "OPTIMIZE", altered(2))
    found = newest_written(rows, "shop")
    assert found is not None
    assert (found[0]["version"], found[1]) == (1, Mark("shop", 1, 1))
    for other in ("DELETE", "RESTORE", ("WRITE", Mark("erp", 2))):
        assert newest_written(history(ours(1), other), "shop") is None
    assert newest_written(history("CREATE TABLE", "OPTIMIZE"), "shop") is None


def test_a_commit_is_found_by_its_mark() -> None:
    rows = history(created(), ours(1, rebuilt=1), ours(1, rebuilt=2), altered(2))
    assert [version_of(rows, Mark("shop", 1, n)) for n in (1, 2, 3)] == [1, 2, None]
    assert version_of(history("WRITE", "WRITE"), Mark("shop", 1, 1)) == 1  # the platform keeps no marks


def missing(number: int) -> Manifest:
    raise GapError(f"manifest {number} is missing")


def test_the_commit_at_the_frontier_is_read_though_a_hundred_have_come_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, none of the commits might be known as ours, and somebody's WRITE pass for one."""
    rows = history(created(), ours(1), *["OPTIMIZE"] * (COMMITS_READ - 1), "WRITE")
    shown(monkeypatch, rows)
    found = read_commits(SPARK, TARGET, "shop", Frontier(1, 1))
    assert found.why_broken == f"version {COMMITS_READ + 1} is a WRITE by another writer"


SPARK: Any = None
TARGET = Target(TableName("public", "t"), "t")


def shown(monkeypatch: pytest.MonkeyPatch, rows: Sequence[Any]) -> None:
    monkeypatch.setattr(commits, "_newest", lambda _spark, _target, count: rows[:count])


def test_what_delta_skips_is_known_though_only_upkeep_has_committed_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each rebuild of a restored table, whose mark was not greater, was skipped."""
    upkeep, last = ("OPTIMIZE", Mark("shop", 9, layout=True)), ("WRITE", Mark("shop", 9, 1, generation=1))
    nights = ["VACUUM END"] * COMMITS_READ

    def found(*made: str | tuple[str, Mark]) -> Mark | None:
        shown(monkeypatch, history(*made, "RESTORE"))
        return read_commits(SPARK, TARGET, "shop", Frontier(9, len(made) - 1)).last

    assert found(created(), ours(8), last, *nights, upkeep) == last[1]
    assert found(created(), *nights, last, upkeep) == last[1]
    assert found("CREATE TABLE", "MERGE", *nights) is None


@pytest.mark.parametrize("since", [0, 3 * COMMITS_READ])
def test_a_cut_of_before_the_files_were_put_back_no_longer_holds(
    monkeypatch: pytest.MonkeyPatch, since: int
) -> None:
    """They were restored as they were at version 1; the merge of manifest 4 gave version 2 again."""
    rows = history(created(), ours(1), ours(4), *["OPTIMIZE"] * since, ours(5))
    shown(monkeypatch, rows)
    cuts = [
        Frontier(1, 1),
        Frontier(2, 1),
        Frontier(2, 2),
        Frontier(3, 2),
        Frontier(3, 3 + since + 1),
        Frontier(4, 2),
    ]
    held = [version_is_unchanged(SPARK, TARGET, "shop", frontier) for frontier in cuts]
    assert held == [True, True, False, False, False, True]


def test_nor_does_one_whose_version_was_cleaned_up_or_is_unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a platform keeps no user metadata, any commit may be ours."""
    shown(monkeypatch, history(ours(8), "OPTIMIZE", ours(9), oldest=40))
    assert [version_is_unchanged(SPARK, TARGET, "shop", Frontier(8, n)) for n in (39, 40, 41)] == [
        False,
        True,
        False,
    ]
    shown(monkeypatch, history("CREATE TABLE", "WRITE", "MERGE"))
    assert version_is_unchanged(SPARK, TARGET, "shop", Frontier(1, 1))


def test_of_rebuilds_into_one_place_delta_takes_the_first_whatever_manifest_it_is_of() -> None:
    first, second = (replace(Mark("shop", manifest, rebuilt=1), once=True) for manifest in (2, 3))
    assert first.delta_txn_version == second.delta_txn_version > Mark("shop", 1 << 40, 9).delta_txn_version
    assert Mark.parse(first.to_json(), "shop") == first
