"""The names that one column of a table has had, or may have had. Pure.

A layout has only names: a column that was given the name of a dropped one looks as if it were that one. So
masking or leaving out a column by its name could let its values pass. PostgreSQL numbers columns, and never
uses a number twice; the agent compares numbers and names whenever it checks the catalog. Elsewhere, a column
that is added may be any that is gone by then: the log shows both.

Invariant: such names stay known for good, and no later than with the first rows that land under the later
one. Except: a name that a numbered column had only between two checks is not seen; one that leaves the layout
as it was is seen at the next check; and none is of a table that is gone by then.

::

    check     ids                        renamed
    first     id: 1, ssn: 2, note: 3
    second    id: 1, note: 2             2: note, ssn      note was dropped, and ssn was given its name

    layouts without numbers                   came
    id, ssn, note -> id -> id, note           note: ssn    so note may be ssn
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field


class ColumnNames(BaseModel):
    """Each column's id by its present name, and by id all names of those that have had several.

    `came`: where there are no ids, columns that came, with those that were gone by then. Names are as the
    lake compares them (`connector.schema.fold`).
    """

    ids: dict[str, int] = Field(default_factory=dict)
    renamed: dict[str, list[str]] = Field(default_factory=dict)
    came: dict[str, list[str]] = Field(default_factory=dict)

    model_config = ConfigDict(extra="ignore", frozen=True)

    def seen(self, ids: Mapping[str, int]) -> ColumnNames:
        """Return what is known after another check of the catalog."""
        former, renamed = {id_: name for name, id_ in self.ids.items()}, dict(self.renamed)
        for name, id_ in ids.items():
            if (before := former.get(id_, name)) != name:
                renamed[str(id_)] = sorted({*renamed.get(str(id_), ()), before, name})
        return ColumnNames(ids=dict(ids), renamed=renamed, came=self.came)

    def after(self, came: Collection[str], gone: Collection[str]) -> ColumnNames:
        """Return what is known once columns without ids have come, while others were gone."""
        others = {name: sorted({*self.came.get(name, ()), *gone} - {name}) for name in came}
        new = {**self.came, **{name: found for name, found in others.items() if found}}
        return self if self.ids or new == self.came else self.model_copy(update={"came": new})

    @property
    def of_one(self) -> Iterator[frozenset[str]]:
        """Return the sets of names that one column has had, or may have had."""
        yield from map(frozenset, self.renamed.values())
        yield from (frozenset((name, former)) for name, gone in self.came.items() for former in gone)

    def others_of(self, name: str) -> set[str]:
        """Return the other names that the column which has this one now has had."""
        return set(self.renamed.get(str(self.ids.get(name)), ())) - {name}
