"""What the sections of a configuration share: strictness, folder urls, table patterns."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from connector.schema import TableName


class Section(BaseModel):
    """A section: immutable, and an unknown setting in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def folder_url(url: str, *schemes: str) -> str:
    """Return a folder's normalized url, from a local path or one of the schemes; `ValueError` otherwise."""
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
    """Wrap a single text in a list."""
    return [value] if isinstance(value, str) else value


def _pattern(text: str) -> str:
    TableName.parse(text)
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = Annotated[list[Pattern], BeforeValidator(one_or_more)]


def matches(patterns: list[str], table: TableName) -> bool:
    """Return whether any pattern names a table; ``*`` matches any characters."""
    return any(
        all(wanted.fullmatch(actual) for wanted, actual in zip(_compiled(pattern), table, strict=True))
        for pattern in patterns
    )


@functools.lru_cache(4096)
def _compiled(pattern: str) -> tuple[re.Pattern[str], ...]:
    """Return what the parts of a table's name must match."""
    return tuple(
        re.compile(".*".join(map(re.escape, part.split("*"))), re.DOTALL) for part in TableName.parse(pattern)
    )
