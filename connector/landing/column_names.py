"""The names that one column of a table has had, or may have had. Pure.

A layout has only names: a column that was given the name of a dropped one looks as if it were that one. So
masking or leaving out a column by its name could let its values pass. Three things tell more:

- PostgreSQL numbers columns, and never uses a number twice; the agent compares numbers and names whenever it
  looks at the catalog. The version of a column's row there tells whether it was altered between two looks.
- The log of MySQL and MariaDB has the statement that renames a column.
- Where columns have no numbers, one that is added may be any that is gone by then: another table may have
  replaced this one, or the log may have been lost.

Invariant: such names stay known for good, also while the table is not captured, and no later than with the
first rows that land under the later one. Rows for which a check can't show that are withheld if their table
hides columns (`connector.capture.hidden_columns`). Of other tables, a name that a numbered column had only
between two checks is not seen; one that leaves the layout as it was is seen at the next check; and none is of
a table that is gone by then.

What is kept grows with the number of names, not of their pairs::

    check     ids                        renamed
    first     id: 1, ssn: 2, note: 3
    second    id: 1, note: 2             2: note, ssn      note was dropped, and ssn was given its name

    statement                            logged
    RENAME COLUMN ssn TO note            [ssn, note]       whatever else happened to note

    layouts without numbers              moves
    id, ssn, note -> id -> id, note      [-ssn, +note]     note came while ssn was gone, so it may be ssn
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from connector.schema import fold

GONE, CAME = "-", "+"

IDS_PER_TABLE = 2048
"""An id is that of the table, times this, plus the column's number: PostgreSQL has at most 1,600 columns."""


def table_of(ids: Collection[int]) -> int | None:
    """Return the id of the table whose columns have these ids; None if there are none."""
    return next((id_ // IDS_PER_TABLE for id_ in ids), None)


@dataclass(frozen=True)
class Places:
    """Which columns, by their ids, a description in the log may have at its `count` places, from 0 on.

    Sorted, `before`: the columns that were there at the look before; `stayed`: those of them that all
    descriptions since have, up to the look after. Whatever came since has a greater id. Both are empty if no
    look tells::

        before                   stayed              description
        id 1, a 2, ssn 3, b 4    id 1, ssn 3, b 4    id, x, ssn, b: x may be 2, or 3 if 2 was gone by then
        id 1, ssn 2, b 3         id 1, ssn 2, b 3    id, ssn, b, x: x came
    """

    before: Sequence[int]
    stayed: Sequence[int]
    count: int

    def may_have(self, place: int, id_: int) -> bool:
        """Return whether the column at a place may be the one with this id."""
        fewest, most = bisect_left(self.stayed, id_), bisect_left(self.before, id_)
        if most == bisect_right(self.before, id_):
            most = self.count  # it came
        after = len(self.stayed) - bisect_right(self.stayed, id_)
        return fewest <= place <= min(most, self.count - 1 - after)


class ColumnNames(BaseModel):
    """What is known of one table's columns, by names as the lake compares them (`connector.schema.fold`).

    `ids`: each column's id by its present name, and `versions` of what the catalog has of it: negative while
    the column is generated, so that the log lacks it. `renamed`: by
    id all names of those that have had several. `earlier`, `earlier_versions`: the same as of the log that
    has landed, while that is not yet at `upto`, where a look has last seen them change; empty: as now, or
    unknown. `first_upto`: where the first look at this table ended, while log from before has yet to land.
    `met`: names that looks have had up to `upto`, of columns that are not in `earlier`, and the last look has
    not, or of another column; and hidden names that only the log has had. `left`: the tables, by id, that
    looks up to `upto` have shown, and then another one: how such a table was altered is not known if it comes
    back. `published`, `earlier_published`: which edit of the publication decides what the log has of it.
    `logged`: names of columns that the log renamed, in order, the last name last; of two with one last name,
    the first is gone. `moves`: of columns without ids, in order: the names that were gone (``-ssn``),
    and then those that came (``+note``).
    """

    ids: dict[str, int] = Field(default_factory=dict)
    renamed: dict[str, list[str]] = Field(default_factory=dict)
    logged: list[list[str]] = Field(default_factory=list)
    moves: list[list[str]] = Field(default_factory=list)
    earlier: dict[str, int] = Field(default_factory=dict)
    upto: int = 0
    versions: dict[str, int] = Field(default_factory=dict)
    earlier_versions: dict[str, int] = Field(default_factory=dict)
    first_upto: int = 0
    met: list[str] = Field(default_factory=list)
    left: list[int] = Field(default_factory=list)
    published: int = 0
    earlier_published: int = 0

    model_config = ConfigDict(extra="ignore", frozen=True)

    def seen(
        self,
        ids: Mapping[str, int],
        upto: int = 0,
        versions: Mapping[str, int] | None = None,
        published: int = 0,
    ) -> ColumnNames:
        """Return what is known after another look at the catalog, which ended at the position `upto`."""
        renamed = dict(self.renamed)
        for known in (self.earlier, self.ids):
            former = {id_: name for name, id_ in known.items()}
            for name, id_ in ids.items():
                if (before := former.get(id_, name)) != name:
                    renamed[str(id_)] = sorted({*renamed.get(str(id_), ()), before, name})
        rows, now = _rows(self.ids, self.versions), _rows(ids, versions or {})
        new: dict[str, object] = {"ids": dict(ids), "renamed": renamed, "versions": dict(versions or {})}
        new["published"] = published
        table, replaced, earlier = table_of(ids.values()), table_of(self.ids.values()), self.earlier
        if rows != now or published != self.published:
            new["upto"] = upto
            if table != table_of(self.earlier.values()):  # else log from before those may still have to land
                new |= self._as_earlier()
                earlier = self.ids
        if table != replaced:
            left = {*self.left} if replaced is None else {*self.left, replaced}
            new |= {"first_upto": upto, "met": [], "left": sorted(left)}
        elif came := {name for name, id_, _ in rows - now if id_ not in earlier.values()}:
            new["met"] = sorted({*self.met, *came})
        return self.model_copy(update=new)

    def _as_earlier(self) -> dict[str, object]:
        return {
            "earlier": self.ids,
            "earlier_versions": self.versions,
            "earlier_published": self.published,
        }

    def seen_late(self, ids: Mapping[str, int], upto: int) -> ColumnNames:
        """Return what is known after a look that is older than the last one, which ended at `upto`."""
        names, table = self.had({id_: {name} for name, id_ in ids.items()}), table_of(ids.values())
        if table is None or table != table_of(self.ids.values()):
            return names
        were = {*self.before(table).values()}
        came = {name for name, id_ in ids.items() if id_ not in were and self.ids.get(name) != id_}
        return names.meeting(came, upto)

    def before(self, table: int) -> dict[str, int]:
        """Return the ids as of the log that has landed, if they are of this table; none: no check had any."""
        found = self.earlier or ({} if self.upto else self.ids)
        return found if table_of(found.values()) == table else {}

    def lasted(self, table: int) -> dict[str, int]:
        """Return the ids, by their names, of the columns in the log that were not altered since `before`."""
        before = self.before(table)
        earlier = _rows(before, self.earlier_versions if self.earlier else self.versions)
        lasted, generated = earlier & _rows(self.ids, self.versions), self.generated
        return {name: id_ for name, id_, _ in lasted if id_ not in generated}

    @property
    def generated(self) -> set[int]:
        """Return the ids of the columns that are generated: no log has them, as no other becomes one."""
        return {id_ for name, id_ in self.ids.items() if self.versions.get(name, 0) < 0}

    def places(self, table: int, columns: Sequence[str]) -> Places:
        """Return which columns of a table a description may have that is from between the two looks.

        `columns`: its names, in order, as the lake compares them. It has all columns but generated ones. If
        it lacks one that was not altered, it is older, or of a publication with a column list; if the
        publication was edited meanwhile, it may be.
        """
        before = {} if self.first_upto else self.before(table)
        versions = self.earlier_versions if self.earlier else self.versions
        logged = {id_ for name, id_ in before.items() if versions.get(name, 0) >= 0}
        generated = self.generated  # before, too, even if an earlier version of the agent did not record it
        stayed = (logged & {*self.ids.values()}) - generated
        found = Places(sorted({*before.values()} - generated), sorted(stayed), len(columns))
        place_of = {name: place for place, name in enumerate(columns)}
        is_listed_alike = self.published == (self.earlier_published if self.earlier else self.published)
        fits = (
            is_listed_alike
            and len(columns) >= len(stayed)
            and all(
                name in place_of and found.may_have(place_of[name], id_)
                for name, id_ in self.lasted(table).items()
                if id_ in stayed
            )
        )
        return found if fits else Places((), (), len(columns))

    def had(self, found: Mapping[int, Collection[str]]) -> ColumnNames:
        """Return what is known if columns, by their ids, had these names, too, between two checks."""
        renamed = dict(self.renamed)
        for name, id_ in (pair for ids in (self.earlier, self.ids) for pair in ids.items()):
            if others := {*found.get(id_, ())} - {name}:
                renamed[str(id_)] = sorted({*renamed.get(str(id_), ()), *others, name})
        return self.model_copy(update={"renamed": renamed})

    def meeting(self, names: Collection[str], upto: int) -> ColumnNames:
        """Return what is known if log from before a look, which ended at `upto`, has these names."""
        if not names or ({*names} <= {*self.met} and upto <= self.upto):
            return self
        new = {} if self.upto else self._as_earlier()
        return self.model_copy(
            update={**new, "met": sorted({*self.met, *names}), "upto": max(upto, self.upto)}
        )

    def landed(self, position: int) -> ColumnNames:
        """Return what is still needed once the log up to a position has landed."""
        if self.upto and position >= self.upto:
            return self.model_copy(update=_NOTHING_EARLIER)
        is_after_first = self.first_upto and position >= self.first_upto
        return self.model_copy(update={"first_upto": 0}) if is_after_first else self

    def told(self, pairs: Iterable[tuple[str, str]]) -> ColumnNames:
        """Return what is known after a statement that renamed columns, each from one name to another.

        The log may be read again, so what is known already only comes last again.
        """
        logged = [list(names) for names in self.logged]
        having = {names[-1]: names for names in logged}
        for before, name in ((fold(one), fold(other)) for one, other in pairs):
            if before == name:
                continue
            known = next((names for names in logged if names[-1] == name and before in names), None)
            names = known or having.get(before, [before])
            others = [each for each in logged if each is not names]
            logged = [*others, [*(n for n in names if n != name), name]]
        return self if logged == self.logged else self.model_copy(update={"logged": logged})

    def after(self, came: Collection[str], gone: Collection[str]) -> ColumnNames:
        """Return what is known once columns without ids have come, while these were gone."""
        before = self._gone()
        known = before.isdisjoint(came) and all(self._has_come(name, {*gone} - {name}) for name in came)
        if self.ids or known:
            return self
        left, back = {*gone} - before, (before - {*gone}) | {*came}
        move = [*(GONE + name for name in sorted(left)), *(CAME + name for name in sorted(back))]
        return self.model_copy(update={"moves": [*self.moves, move]})

    def _gone(self) -> set[str]:
        gone: set[str] = set()
        for name in (name for move in self.moves for name in move):
            (gone.add if name[0] == GONE else gone.discard)(name[1:])
        return gone

    def _comings(self) -> Iterator[tuple[set[str], set[str]]]:
        """Yield the names that came, each time, and all that were gone by then: a set that changes later."""
        gone: set[str] = set()
        for move in self.moves:
            came = {name[1:] for name in move if name[0] == CAME}
            gone |= {name[1:] for name in move if name[0] == GONE}
            yield came, gone
            gone -= came

    def _has_come(self, name: str, others: set[str]) -> bool:
        """Return whether it is known that a column came while these were gone."""
        for came, gone in self._comings():
            if name in came:
                others = others - gone
        return not others

    def others(self, name: str) -> set[str]:
        """Return the other names under which a column that has or had this one has been, or may have been."""
        found = {n for names in (*self.renamed.values(), *self.logged) if name in names for n in names}
        for came, gone in self._comings():
            found |= came if name in gone else set()
            found |= gone if name in came else set()
        return found - {name}

    def told_of(self, name: str) -> list[str]:
        """Return the names that the column had before, in order, which has this one now as the log told."""
        return next((names[:-1] for names in reversed(self.logged) if names[-1] == fold(name)), [])

    def names_of(self, id_: int | None) -> set[str]:
        """Return the names that the column with an id has had, if there were several."""
        return set(self.renamed.get(str(id_), ()))

    def others_of(self, name: str) -> set[str]:
        """Return the other names that the column with an id that has this name now has had."""
        return self.names_of(self.ids.get(name)) - {name}

    @property
    def lasting(self) -> ColumnNames:
        """Return what is known for good: all but the present ids."""
        return self.model_copy(update={"ids": {}, "versions": {}, "published": 0, **_NOTHING_EARLIER})


def _rows(ids: Mapping[str, int], versions: Mapping[str, int]) -> set[tuple[str, int, int | None]]:
    return {(name, id_, versions.get(name)) for name, id_ in ids.items()}


_NOTHING_EARLIER: dict[str, object] = {
    "earlier": {}, "earlier_versions": {}, "earlier_published": 0,
    "first_upto": 0, "left": [], "met": [], "upto": 0,
}  # fmt: skip
