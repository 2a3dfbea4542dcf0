"""A row of the fidelity matrix, for all databases, and whether a landed value is what a text says."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Literals:
    """Literals of one source type, in the source's SQL, and the Spark type that they land as.

    `exact`: the column holds them exactly. `raw`: the column is null, and ``_cdc.raw`` holds the source's own
    text. `servers`: those that have the type, by the names of their test fixtures; none: all of the database.
    PostgreSQL's literals are what the type's input function takes. `before`: statements that a column of the
    type needs. `since`: the first major release that has it; `optional`: a server may be built without it.
    `note`: what a reader of docs/types.md should know.
    """

    type: str
    landing: str
    exact: tuple[str, ...]
    raw: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    since: int = 0
    optional: bool = False
    note: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """All literals, those that the column holds first."""
        return self.exact + self.raw

    def is_on(self, server: str) -> bool:
        """Whether a server has the type."""
        return not self.servers or server in self.servers


def means(value: Any, text: Any) -> bool:
    """Whether a landed value is what the source's text of it says; bytes are given by their digits.

    A float may be given as it is.
    """
    if text is None or isinstance(value, str | None):
        return value == text
    if isinstance(value, bytes):
        return value == bytes.fromhex(text)
    if isinstance(value, bool | int | Decimal):
        return Decimal(value) == Decimal(text)
    if isinstance(value, float):
        return repr(value) == repr(float(text))
    assert isinstance(value, datetime.date), value
    return _bare(str(value).removesuffix("+00:00")) == _bare(text)


def _bare(moment: str) -> str:
    """A moment without zeros at the end of its fraction."""
    return moment.rstrip("0").rstrip(".") if "." in moment else moment
