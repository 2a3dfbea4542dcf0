"""Comments of tables and columns: the source's, on Delta tables.

The agent lands a table's comments as an object of their own. Manifests name it by an id, which contains the
number of the first one that did (`connector.landing.format`). A property of the Delta table records the id of
the comments that were set last. So while a table's comments stay the same, a merge compares a number and
reads nothing.

Rules:

- A comment of the source is set when the source's comments of the table have changed, whatever is there.
- Where the source has none, a comment that was set by hand stays. One that the source no longer has is
  removed: a column then has its type at the source, like any column without a comment.
- A column that the source has dropped keeps its comment.
- Comments are set before the merge's rows, by ALTER statements that have its mark; the id comes last. So
  after a crash they are set again. A job that was overtaken does not bring earlier ones back.
- Comments are no reason to fail: if their object is missing or can't be parsed, or a catalog refuses one,
  they stay as they are. Only creating the Delta table requires that they are accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from connector.errors import FormatError
from connector.landing.format import comments_path, comments_since
from connector.landing.manifest import TableState
from connector.schema import Column, TableComments, TableName, TableSchema, fold
from merge.lake.target import Target, TargetState, properties_sql
from merge.sql_formatting import quoted, text

if TYPE_CHECKING:
    from merge.landing_zone import LandingZone

log = logging.getLogger(__name__)

COMMENTS_PROPERTY = "deltatide.comments"


def are_newer(state: TableState, manifest: int) -> bool:
    """Return whether a table's comments have changed since a manifest."""
    return state.comments is not None and comments_since(state.comments) > manifest


@dataclass(frozen=True)
class SourceComments:
    """A table's comments at the source, as its target has them, read when they are first needed.

    `id`: None if the agent knows of none. `variant`: which columns and masks the target has. `read`: returns
    those of an id; None if their object is missing.
    """

    read: Callable[[str], TableComments | None]
    id: str | None = None
    variant: str = ""

    @classmethod
    def landed(cls, landing: LandingZone, table: TableName, state: TableState) -> SourceComments:
        """Return the comments of a source table in this state."""
        projection = landing.projection(table)

        def read(id_: str) -> TableComments | None:
            for file, found in landing.texts([f"{landing.root}/{comments_path(table, id_)}"]):
                try:
                    comments = TableComments.from_json(found)
                except (FormatError, ValueError, LookupError) as error:
                    log.warning("%s: %s can't be read: %s", table, file, error)
                    return None
                return comments if projection is None else projection.comments(comments)
            return None

        return cls(read, state.comments, "" if projection is None else projection.digest)

    @property
    def recorded(self) -> str | None:
        """Return the property of a Delta table that has these comments; None: none."""
        return f"{self.id} {self.variant}".rstrip() if self.id else None

    @cached_property
    def now(self) -> TableComments | None:
        """Return the comments; None if there are none, or their object is missing."""
        found = None if self.id is None else self.read(self.id)
        if found is None and self.id is not None:
            log.warning("comments %s are missing in the landing zone; the Delta table keeps its own", self.id)
        return found

    def before(self, recorded: str | None) -> TableComments:
        """Return the comments that a recorded property stands for: those that were not set by hand."""
        return (self.read(recorded.split(" ")[0]) if recorded else None) or _NONE

    def of_column(self, column: Column) -> str:
        """Return the comment of a column that is added: by default, its type at the source."""
        return (self.now and self.now.of_column(column.name)) or column.source_type

    @property
    def clause(self) -> str:
        """Return the clause by which a Delta table is created with the table's comment; empty without one."""
        return f"COMMENT {text(self.now.text)} " if self.now and self.now.text else ""

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties with which a Delta table is created."""
        return {COMMENTS_PROPERTY: self.recorded} if self.recorded and self.now is not None else {}


_NONE = TableComments(TableName("", ""))

NO_COMMENTS = SourceComments(lambda _: None)


def comment_sql(
    target: Target, state: TargetState, newest: TableSchema, comments: SourceComments, release: str
) -> Iterator[str]:
    """Build the statements that set the comments of a Delta table in this state, if they have changed.

    `newest`: the table's layout. `release`: Spark's; since 4.0, one statement alters several columns.
    """
    known, recorded = state.properties.get(COMMENTS_PROPERTY), comments.recorded
    if recorded is None or known == recorded or _number(known) > _number(recorded):
        return
    if (now := comments.now) is None:
        return
    before, alter = comments.before(known), f"ALTER TABLE {target.name}"
    changed = dict(_changed_columns(state, newest, now, before))
    each = [f"{quoted(name)} COMMENT {text(comment)}" for name, comment in changed.items()]
    at_once = bool(each) and int(release.split(".")[0]) >= 4
    for columns in [", ".join(each)] if at_once else each:
        yield f"{alter} ALTER COLUMN {columns}"
    comment = now.text or ("" if state.comment == before.text else state.comment)
    if comment != state.comment:
        yield f"COMMENT ON TABLE {target.name} IS {text(comment)}"
    yield f"{alter} SET TBLPROPERTIES ({properties_sql({COMMENTS_PROPERTY: recorded})})"


def _number(recorded: str | None) -> str:
    """Return the manifest's number in a recorded id, with leading zeros; empty if nothing is recorded."""
    return (recorded or "").partition("-")[0]


def _changed_columns(
    state: TargetState, newest: TableSchema, now: TableComments, before: TableComments
) -> Iterator[tuple[str, str]]:
    """Return the columns of a Delta table whose comments are to change, and the new ones."""
    named: Mapping[str, str] = {fold(name): name for name in state.columns}
    for column in newest.columns:
        if (name := named.get(fold(column.name))) is None:
            continue  # it is being added, with its comment
        known, wanted = state.comments.get(name), now.of_column(name)
        if wanted is None and known is not None and known == before.of_column(name):
            wanted = column.source_type
        if wanted is not None and wanted != known:
            yield name, wanted
