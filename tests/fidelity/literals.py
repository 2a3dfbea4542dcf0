"""A row of the fidelity matrix, for all databases, and the check of a landed value against a text."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Literals:
    """Literals of one source type, in the source's SQL, and the Spark type that they land as.

    `exact`: the column holds these exactly. `raw`: for these the column is null, and ``_cdc.raw`` holds the
    source's own text. `servers`: those that have the type, by test fixture name; empty: all of the database.
    PostgreSQL's literals are input to the type's input function. `before`: statements that a column of the
    type requires. `since`: the first major release that has it; `optional`: a server may be built without it.
    `note`: a remark for readers of docs/types.md.
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
        """Return all literals, those that the column holds first."""
        return self.exact + self.raw

    def is_on(self, server: str) -> bool:
        """Return whether a server has the type."""
        return not self.servers or server in self.servers


def means(value: Any, text: Any) -> bool:
    """Return whether a landed value equals the source's text of it; the text of bytes is hexadecimal.

    For a float, `text` may also be a float.
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
    """Strip trailing zeros from a timestamp's fraction."""
    return moment.rstrip("0").rstrip(".") if "." in moment else moment
