"""The names that each column of a table has had, if the database identifies columns by numbers, too. Pure.

A layout has only names: a column that was given the name of a dropped one looks as if it were that one. So
masking or leaving out a column by its name could let its values pass. PostgreSQL numbers columns, and never
uses a number twice; the agent compares numbers and names whenever it checks the catalog.

Invariant: names that one column has had stay known for good, and no later than with the first rows that land
under the later one. A name that a column had only between two checks is not seen.

::

    check     ids                        renamed
    first     id: 1, ssn: 2, note: 3
    second    id: 1, note: 2             2: note, ssn      note was dropped, and ssn was given its name
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class ColumnNames(BaseModel):
    """Each column's id by its present name, and by id all names of those that have had several.

    Names are as the lake compares them (`connector.schema.fold`).
    """

    ids: dict[str, int] = Field(default_factory=dict)
    renamed: dict[str, list[str]] = Field(default_factory=dict)

    model_config = ConfigDict(extra="ignore", frozen=True)

    def seen(self, ids: Mapping[str, int]) -> ColumnNames:
        """Return what is known after another check of the catalog."""
        former, renamed = {id_: name for name, id_ in self.ids.items()}, dict(self.renamed)
        for name, id_ in ids.items():
            if (before := former.get(id_, name)) != name:
                renamed[str(id_)] = sorted({*renamed.get(str(id_), ()), before, name})
        return ColumnNames(ids=dict(ids), renamed=renamed)

    def others_of(self, name: str) -> set[str]:
        """Return the other names that the column which has this one now has had."""
        return set(self.renamed.get(str(self.ids.get(name)), ())) - {name}
