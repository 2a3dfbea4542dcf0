"""What the sections of a configuration have in common: no unknown settings, folders, patterns of tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from connector.schema import TableName


class Section(BaseModel):
    """A section: immutable, and an unknown setting in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def folder_url(url: str, *schemes: str) -> str:
    """Return a folder's url in normal form, of a local path or one of the schemes; `ValueError` otherwise."""
    scheme, separator, rest = url.partition("://")
    if not separator and url.strip():
        return str(Path(url).expanduser().absolute())
    if scheme == "file" and rest.startswith("/"):
        return url.rstrip("/")
    if scheme in schemes and rest.partition("/")[0]:
        return url.rstrip("/")
    kinds = " or ".join(f"{s}://bucket/folder" for s in schemes)
    raise ValueError(f"{url!r} is not a landing zone; use {kinds}, file:///folder or a path")


def one_or_more(value: object) -> object:
    """Return a list even of one text."""
    return [value] if isinstance(value, str) else value


def _pattern(text: str) -> str:
    TableName.parse(text)
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = Annotated[list[Pattern], BeforeValidator(one_or_more)]


def matches(patterns: list[str], table: TableName) -> bool:
    """Return whether any pattern names a table; ``*`` matches any characters."""
    return any(
        all(_like(wanted, actual) for wanted, actual in zip(TableName.parse(pattern), table, strict=True))
        for pattern in patterns
    )


def _like(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
