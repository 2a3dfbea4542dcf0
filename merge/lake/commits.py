"""Reads a Delta table's history: how far we merged it, and whether anyone else changed its rows.

Invariants:

- A frontier in a Delta table is a table id and a version. It *continues* as long as the id is the same and
  only our own commits have changed rows since that version. A table that was restored, replaced, or written
  to by others does not continue, whatever its version is.
- A rebuild rewrites all rows: what happened before it no longer matters.
- A table whose history was cleaned up does not continue. Nor does one that now has another commit at that
  version: its files were restored from an older copy. Each of our commits has a mark, including those that
  create the table or alter its columns, and a frontier is at one of them. So the commit there must have a
  mark with a manifest no later than the frontier's: anything committed on top of a restored copy has a later
  one. The same test shows whether the version that an older cut names still is the cut's.
- Only commits that wrote rows show how far a table is, and its fences. After one that only created or altered
  the table, the merge may have crashed; upkeep (`merge.lake.upkeep`) rewrites files at any time.
- The rows after our commits are those of the greatest manifest that they name, if each either wrote all rows,
  or continued rows that were at least as far as it took them to be. Delta's fence (`Mark.delta_txn_version`)
  and its detection of conflicts see to that within one table. They don't see that a table was dropped amid
  a merge and created again: its late commit then is the new table's first, and Delta skips that of the job
  which has created it, at the same manifest. So a mark names the Delta table and the manifest that it
  continued, and whoever looks next finds that these are not this table's, though both jobs were killed.
- No commit goes back behind an earlier one's manifest: what was merged in between would be missing. But the
  fence lets a rebuild with other columns pass after any merge, and some platforms have no fence. So such a
  rebuild begins again, and a table that was left like that does not continue.

Where not even the commit at a frontier has a mark, the platform keeps none: any WRITE or MERGE may be ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from connector.errors import GapError
from merge.lake.control_table import Frontier
from merge.lake.target import Target
from merge.plan import Manifests

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

KEEPS_ROWS = frozenset(
    {
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "ADD DELETION VECTORS TOMBSTONES",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "CLUSTER BY",
        "COMPUTE STATS",
        "CREATE TABLE",
        "DOMAIN METADATA",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "OPTIMIZE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Delta's names for operations that keep a table's rows; any other may have changed them."""

ALTERS_COLUMNS = frozenset({"ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS"})
"""Operations of `KEEPS_ROWS` after which a query over the same rows may return something else."""

REWRITES_FILES = frozenset({"DROP FEATURE", "OPTIMIZE", "REORG"})
"""Operations of `KEEPS_ROWS` that replace data files; VACUUM then removes the replaced ones."""

MAY_BE_OURS = frozenset({"MERGE", "WRITE"})
"""Delta's names for the operations that a merge uses to write."""

TXN_VERSIONS_PER_MANIFEST = 1000
"""Delta transaction versions reserved per manifest: one for the merge, the others for rebuilds."""

TXN_VERSIONS_PER_GENERATION = 10**13
"""Enough for ten billion manifests."""

ONCE = 1 << 62
"""Greater than the transaction version of any manifest."""

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The setting from which Delta takes a commit's user metadata."""

COMMITS_READ = 10
"""Enough for the commits since the last cut, including OPTIMIZE and the like; reading one opens a file."""

OVERTAKEN = "an overtaken merge committed after it"
"""Why a table does not continue that went back to an earlier manifest."""


@dataclass(frozen=True)
class Mark:
    """The user metadata of our commits: this commit brings the table to the state after `manifest`.

    `layout`: the commit writes no rows: it creates the table or alters its columns for the merge up to
    `manifest`, or it is upkeep of a table whose frontier is at `manifest`.
    `rebuilt`: how many times all rows were rewritten from the landing zone alone; 0: not a rebuild.
    `write_id`: the manifest's, since another landing zone has a manifest with the same number.
    `follows`: the version whose rows upkeep keeps. If files were restored from an older copy before upkeep
    commits, its commit must not vouch for them.
    `once`: Delta accepts only the first such commit, whatever manifests the others name.
    `built_with`: the columns, masks and rows of what it wrote (`Target.built_with`); None: unknown.
    `generation`: how many times the table was rebuilt with other ones. A merge that read the table before
    such a rebuild, and writes after it, has a lower one, so Delta skips its commit, whatever its manifest.
    `of`, `after`: the Delta table (its id) whose rows it continued, and as of which manifest; None: it wrote
    all rows, or an older release did not say.
    """

    source: str
    manifest: int
    rebuilt: int = 0
    write_id: str | None = None
    layout: bool = False
    follows: int | None = None
    once: bool = False
    built_with: str | None = None
    generation: int = 0
    of: str | None = None
    after: int = 0

    @property
    def delta_txn_version(self) -> int:
        """Return Delta's transaction version of the commit.

        A rebuild's version must exceed those of a merge of the same manifest and of earlier rebuilds, since
        someone may have written to the table right after them.
        """
        if self.once:
            return ONCE
        within = TXN_VERSIONS_PER_MANIFEST * self.manifest + min(self.rebuilt, TXN_VERSIONS_PER_MANIFEST - 1)
        return TXN_VERSIONS_PER_GENERATION * self.generation + within

    def rebuild_after(self, last: Mark | None) -> Mark:
        """Return the mark of a rebuild up to the same manifest; `last`: the greatest mark so far."""
        before = last.rebuilt if last is not None and last.manifest == self.manifest else 0
        return replace(self, rebuilt=before + 1)

    def continuing(self, frontier: Frontier) -> Mark:
        """Return the mark of a merge into the rows at a frontier."""
        return replace(self, of=frontier.id, after=frontier.manifest)

    def for_layout_commit(self) -> Mark:
        """Return the mark of the commits that prepare the table for this one's rows."""
        return replace(self, layout=True)

    def to_json(self) -> str:
        """Serialize."""
        return json.dumps({"deltatide": asdict(self)})

    @classmethod
    def parse(cls, user_metadata: str | None, source: str) -> Mark | None:
        """Parse a commit's user metadata; None if the commit isn't ours, or is another source's."""
        try:
            mark = json.loads(user_metadata or "null")
        except ValueError:
            return None
        ours = mark.get("deltatide") if isinstance(mark, dict) else None
        if not isinstance(ours, dict) or ours.get("source") != source:
            return None
        rebuilt, layout = int(ours.get("rebuilt", 0)), bool(ours.get("layout", False))
        known = ours.get("write_id"), layout, ours.get("follows"), bool(ours.get("once", False))
        built = ours.get("built_with"), int(ours.get("generation", 0))
        continued = ours.get("of"), int(ours.get("after", 0))
        return cls(source, int(ours["manifest"]), rebuilt, *known, *built, *continued)


def is_from_landing_zone(landing: Manifests, mark: Mark | None) -> bool | None:
    """Return whether a table with this greatest mark (None: it has none) was merged from this landing zone.

    Another zone's manifests have the same numbers: if its marks were in the table, the fence would skip our
    commits, yet they would count as merged. None: unknown, since the manifest was removed.
    """
    try:
        return mark is None or landing.get(mark.manifest).write_id == mark.write_id
    except GapError:
        return None if mark is not None and landing.is_removed(mark.manifest) else False


@dataclass(frozen=True)
class Commits:
    """A table's history since some version.

    `version`: our newest commit that wrote rows, or the frontier's version if that is newer (from upkeep). If
    none wrote rows, our first commit; if none is ours, the newest of all. `manifest`: the one named by our
    newest commit that wrote rows. `newest`: the table's current version. `why_broken`: why the table does not
    continue, or None. `marks`: of our commits that wrote rows; `last`: the greatest, which the next must
    exceed.
    """

    version: int
    manifest: int | None
    newest: int
    why_broken: str | None
    last: Mark | None = None
    marks: frozenset[Mark] = field(default=frozenset(), compare=False)


def read_commits(
    spark: SparkSession,
    target: Target,
    source: str,
    frontier: Frontier,
    built_with: str | None = None,
    *,
    id_: str | None = None,
) -> Commits:
    """Read a table's history from its frontier's version on, or from our newest mark of rows.

    `built_with`: what our commits must have been written with (`Mark`); None: anything. `id_`: the table's
    id, to find commits that continued another table; None: they are not looked for.
    """
    rows = read_history(spark, target, frontier.version or 0, source)
    return commits_of(rows, source, frontier, built_with, id_=id_)


def version_is_unchanged(spark: SparkSession, target: Target, source: str, frontier: Frontier) -> bool:
    """Return whether a version that a cut names is there as it was recorded; callers compare table ids."""
    return newest_unchanged(spark, target, source, [frontier]) is not None


def newest_unchanged(
    spark: SparkSession, target: Target, source: str, frontiers: Sequence[Frontier]
) -> Frontier | None:
    """Return the first of these recorded frontiers whose version the table still holds, or None.

    Its manifest is the one that the commit names, which is not after the recorded one.
    """
    if not frontiers:
        return None
    rows = read_history(spark, target, min(frontier.version or 0 for frontier in frontiers))
    held = next((frontier for frontier in frontiers if is_version_of(rows, source, frontier)), None)
    mark = None if held is None else _marks(rows, source).get(held.version or 0)
    return held if held is None or mark is None else replace(held, manifest=mark.manifest)


def is_version_of(rows: Sequence[Row], source: str, frontier: Frontier) -> bool:
    """Return whether a history has a frontier's version, as far as is known the same commit. Pure."""
    known = any(row["version"] == frontier.version for row in rows)
    return known and not _was_replaced(rows, _marks(rows, source), frontier)


def read_history(spark: SparkSession, target: Target, since: int, source: str | None = None) -> list[Row]:
    """Read the commits from version `since` on, as far as the log has them, and some before; newest first.

    `source`: if that shows only marks of its upkeep, read back to its newest mark of rows.
    """
    count = COMMITS_READ
    while True:
        rows = _newest(spark, target, count)
        wanted = rows[0]["version"] - since + 1
        layouts = {mark.layout for mark in _marks(rows, source or "").values()}
        if wanted <= count and (layouts != {True} or len(rows) < count):
            return rows
        count = wanted + COMMITS_READ if wanted > count else 10 * count  # others may commit meanwhile


def is_new(spark: SparkSession, target: Target, mark: Mark) -> bool:
    """Return whether a table has only the commit that created it: this one, as far as marks are kept."""
    (newest,) = _newest(spark, target, 1)
    return newest["version"] == 0 and Mark.parse(newest["userMetadata"], mark.source) in (None, mark)


def _newest(spark: SparkSession, target: Target, count: int) -> list[Row]:
    rows = spark.sql(f"DESCRIBE HISTORY {target.name} LIMIT {count}").collect()  # as it is: without a job
    return sorted(rows, key=lambda row: int(row["version"]), reverse=True)


def _marks(rows: Sequence[Row], source: str) -> dict[int, Mark]:
    """Return the marks of our commits by version."""
    return {row["version"]: mark for row in rows if (mark := Mark.parse(row["userMetadata"], source))}


def _first_after(frontier: Frontier) -> int:
    return 0 if frontier.version is None else frontier.version + 1


def commits_of(
    rows: Sequence[Row],
    source: str,
    frontier: Frontier,
    built_with: str | None = None,
    *,
    id_: str | None = None,
) -> Commits:
    """Decide from a history, newest commit first, how far a table is and whether it continues. Pure."""
    newest, marks = rows[0]["version"], _marks(rows, source)
    written = {version: mark for version, mark in marks.items() if not mark.layout}
    merged = [*written, *(at for at in marks if at == frontier.version)]
    version = max(merged, default=min(marks, default=newest))
    manifest = written[max(written)].manifest if written else None
    last = max(written.values(), key=lambda mark: mark.delta_txn_version, default=None)
    why_broken = _breach(rows, marks, frontier, built_with, id_)
    return Commits(version, manifest, newest, why_broken, last, frozenset(written.values()))


def renewed_version(rows: Sequence[Row], source: str, frontier: Frontier) -> int | None:
    """Return the version that later cuts should name instead of the frontier's; itself if that is to stay.

    A version whose files were rewritten stays readable only for a time, but the cuts of an unchanged table
    would name it forever. So later cuts name a marked commit with the same rows, or the newest commit if the
    platform keeps no marks. None: there is no such commit yet. Pure.
    """
    after = [row for row in rows if row["version"] > (frontier.version or 0)]
    marks = _marks(rows, source)
    if _was_replaced(rows, marks, frontier):
        return frontier.version  # its files were restored meanwhile
    if any(not _keeps_rows(row, marks) for row in after):
        return frontier.version  # a merge is ahead of its cut, or has to rebuild
    rewritten = max((row["version"] for row in after if row["operation"] in REWRITES_FILES), default=None)
    if rewritten is None:
        return frontier.version
    if not marks:
        return int(rows[0]["version"])
    # `_was_replaced`: a commit of a later manifest does not count as the frontier's.
    ours = (version for version, mark in marks.items() if mark.manifest <= frontier.manifest)
    return max((version for version in ours if version >= rewritten), default=None)


def newest_written(rows: Sequence[Row], source: str) -> tuple[Row, Mark] | None:
    """Return our newest commit that wrote rows, unless others have changed rows since. Pure."""
    marks = _marks(rows, source)
    row = next((row for row in rows if not _keeps_rows(row, marks)), None)
    return (row, marks[row["version"]]) if row is not None and row["version"] in marks else None


def has_rows_of(rows: Sequence[Row], source: str, frontier: Frontier, upto: int) -> bool:
    """Return whether version `upto` of a table surely has the rows that were at a frontier's version. Pure.

    That version itself may be another commit now, if files were restored from an older copy.
    """
    since, marks = frontier.version, _marks(rows, source)
    if since is None or upto < since or _was_replaced(rows, marks, frontier):
        return False
    return keeps_rows_since(rows, source, since, upto)


def keeps_rows_since(rows: Sequence[Row], source: str, since: int, upto: int) -> bool:
    """Return whether version `upto` of a table surely has the rows of version `since`. Pure."""
    marks = _marks(rows, source)
    between = [row for row in rows if since < row["version"] <= upto]
    return len(between) == upto - since and all(_keeps_rows(row, marks) for row in between)


def only_merged_since(rows: Sequence[Row], source: str, since: Frontier, upto: Frontier) -> bool:
    """Return whether only merges changed a table's rows between two of its frontiers. Pure.

    Merges of later manifests than the first frontier's, up to the second's; no rebuild, and no other writer.
    False if unknown. The caller compares the table's ids.
    """
    marks = _marks(rows, source)
    if since.version is None or upto.version is None or _was_replaced(rows, marks, since):
        return False
    between = [row for row in rows if since.version < row["version"] <= upto.version]
    changing = [row["version"] for row in between if not _keeps_rows(row, marks)]
    return len(between) == upto.version - since.version and all(
        version in marks
        and not marks[version].rebuilt
        and since.manifest < marks[version].manifest <= upto.manifest
        for version in changing
    )


def alters_columns(rows: Sequence[Row], since: int, upto: int) -> bool:
    """Return whether columns were added or changed after version `since`, up to version `upto`. Pure."""
    return any(row["operation"] in ALTERS_COLUMNS for row in rows if since < row["version"] <= upto)


def version_of(rows: Sequence[Row], mark: Mark) -> int | None:
    """Return the version of our commit with this mark, or None; the newest if no marks are kept. Pure."""
    marks = _marks(rows, mark.source)
    found = (version for version, its in marks.items() if its == mark)
    return next(found, None) if marks else int(rows[0]["version"])


def _keeps_rows(row: Row, marks: Mapping[int, Mark]) -> bool:
    mark = marks.get(row["version"])
    return row["operation"] in KEEPS_ROWS if mark is None else mark.layout


def _breach(
    rows: Sequence[Row],
    marks: Mapping[int, Mark],
    frontier: Frontier,
    built_with: str | None,
    id_: str | None,
) -> str | None:
    newest, oldest, first = rows[0]["version"], rows[-1]["version"], _first_after(frontier)
    if newest < first - 1:
        return f"its newest version is {newest}, but we merged version {first - 1}"
    rebuilt = max((version for version, mark in marks.items() if mark.rebuilt), default=-1)
    if rebuilt < first and _was_replaced(rows, marks, frontier):
        return f"version {first - 1} is no longer our commit"
    if max(first, rebuilt) < oldest:
        return f"its history before version {oldest} is gone"
    begin = max(first, rebuilt)
    after = [row for row in reversed(rows) if row["version"] >= begin]
    harmless = KEEPS_ROWS if marks or oldest == first > 0 else KEEPS_ROWS | MAY_BE_OURS
    for row in after:
        if row["version"] not in marks and row["operation"] not in harmless:
            return f"version {row['version']} is a {row['operation']} by another writer"
    ours = [mark for row in after if (mark := marks.get(row["version"])) is not None and not mark.layout]
    between = (mark.manifest for at, mark in marks.items() if first <= at < begin and not mark.layout)
    reached = max([_rows_are_of(marks, first - 1), *between])
    if (manifests := [reached, *(mark.manifest for mark in ours)]) != sorted(manifests):
        return OVERTAKEN
    if id_ is not None and _continues_another(ours, frontier, id_):
        return "a merge into the table that was dropped committed to it"
    if built_with is not None and any(mark.built_with not in (None, built_with) for mark in ours):
        return "a merge with other columns, masks or rows committed after it"
    return None


def _rows_are_of(marks: Mapping[int, Mark], version: int) -> int:
    """Return the manifest that brought a version its rows; an upkeep commit may name a later one."""
    at = max((at for at, mark in marks.items() if at <= version and not mark.layout), default=version)
    return marks[at].manifest if at in marks else 0


def _continues_another(ours: Sequence[Mark], frontier: Frontier, id_: str) -> bool:
    """Return whether a commit continued another table's rows, as of a manifest that this one had not reached.

    `ours`: the marks of our commits after the frontier, which are in order.
    """
    reached = 0 if frontier.version is None else frontier.manifest
    for mark in ours:
        if mark.of not in (None, id_) and mark.after > reached:
            return True
        reached = max(reached, mark.manifest)
    return False


def _was_replaced(rows: Sequence[Row], marks: Mapping[int, Mark], frontier: Frontier) -> bool:
    """Return whether the commit at a frontier's version is not the one that was there: files were restored.

    False if unknown: the platform keeps no marks, or that commit is gone. Our commit of a later manifest
    can't have been there, nor can an upkeep commit that follows this very version.
    """
    at = frontier.version
    if at is None or not marks or not any(row["version"] == at for row in rows):
        return False
    if at not in marks or marks[at].manifest > frontier.manifest:
        return True
    follows = marks[at].follows
    return follows is not None and follows >= at
