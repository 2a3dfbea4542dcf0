"""Settings of one table's target: which columns and rows the lake gets, and in which form.

Checks here need nothing but the file. Whether the table has these columns, and which are in its key, depends
on its layout: ``deltatide check`` and the first merge of a lake look at all keys, and each merge at a table's
layout before it writes anything of it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from connector.config.section import Section
from connector.landing.format import CDC, is_reserved
from connector.schema import decimal_of, fold, folded

SHA256, NULL = "sha256", "null"
_KEEP_LAST = re.compile(r"keep last ([1-9][0-9]?)")

_CALLS = (
    "curdate", "current_catalog", "current_database", "current_schema", "getdate", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp",
    "monotonically_increasing_id", "now", "rand", "randn", "random", "randstr", "reflect", "shuffle",
    "spark_partition_id", "try_reflect", "uniform", "user", "uuid", "version",
)  # fmt: skip
_WORDS = (
    "current_date",
    "current_time",
    "current_timestamp",
    "current_timezone",
    "current_user",
    "session_user",
)
UNSTABLE = re.compile(
    rf"\b(?:({'|'.join(_CALLS)})`?\s*\(|({'|'.join(_WORDS)})\b|(unix_timestamp)`?\s*\(\s*\))", re.IGNORECASE
)
"""Spark functions whose result depends on when, where or by whom a merge is run."""

_QUOTED = re.compile(
    r"""(?<!\w)[rR]'[^']*' | '(?:[^'\\]|\\.)*' | `(?:[^`])*` | "(?:[^"\\]|\\.)*" """, re.DOTALL | re.VERBOSE
)
"""Raw and other literals, and quoted identifiers."""

_MOMENT = re.compile(r"""[rR]?['"]\s*(now|today|tomorrow|yesterday)(\s+\S+)?\s*['"]""", re.IGNORECASE)
"""Literals that Spark reads as a moment relative to now when it converts them to a timestamp or date."""

_TYPED = re.compile(r"\b(?:date|timestamp\w*)\s*$", re.IGNORECASE)
_DAY = re.compile(r"""[rR]?['"]\s*(?:epoch\b|[+-]?\d(?!\d?:))""", re.IGNORECASE)
"""How the literal after such a type begins if it names a day: of '12:30' alone, Spark makes one of today."""

_QUERY = re.compile(r"\bselect\b|\(\s*(from|table|values|with)[\s`(]", re.IGNORECASE)


def kept_last(mask: str) -> int | None:
    """Return how many trailing characters a mask keeps; None for another mask."""
    found = _KEEP_LAST.fullmatch(mask)
    return int(found[1]) if found else None


_ONE_TEXT = (
    "boolean", "tinyint", "smallint", "int", "bigint", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip


def has_one_text(type_: str) -> bool:
    """Return whether equal values of a landed type always have the same text, in any session or precision."""
    decimal = decimal_of(type_)
    return type_ in _ONE_TEXT or (decimal is not None and decimal[1] == 0)


def fingerprint(text: str, key: bytes) -> str:
    """Return an id of a text and a secret key that reveals neither: 16 hexadecimal digits."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:16]


def mask_identity(mask: str, salt: bytes) -> str:
    """Return an id of a mask's results: for hashes, with a fingerprint of the salt."""
    return f"{mask} {fingerprint('deltatide', salt)}" if mask == SHA256 else mask


def masked_type(mask: str, type_: str) -> str:
    """Return the type of a masked column."""
    return type_ if mask == NULL else "string"


def words_of(condition: str) -> set[str]:
    """Return the words of an SQL condition outside its literals, folded: column names and others."""
    return folded(re.findall(r"\w+", _without_literals(condition)))


def _without_literals(condition: str) -> str:
    return _QUOTED.sub(lambda found: found[0] if found[0][0] in '`"' else "''", condition)


def _moments(condition: str) -> Iterator[str]:
    """Return the literals that name a moment by when they are read."""
    for found in _QUOTED.finditer(condition):
        typed = _TYPED.search(condition, 0, found.start())
        if _MOMENT.fullmatch(found[0]) or (typed and found[0][0] != "`" and not _DAY.match(found[0])):
            yield found[0]


def _mask(mask: str) -> str:
    if mask not in (SHA256, NULL) and kept_last(mask) is None:
        raise ValueError(f'{mask!r} is not a mask; use "sha256", "null" or "keep last 4"')
    return mask


def _distinct(names: Iterable[str], what: str) -> None:
    twice = [name for name, count in Counter(map(fold, names)).items() if count > 1]
    if twice:
        raise ValueError(f"{what} column {twice[0]} twice (names that differ only by case are one)")


def _names(names: list[str]) -> list[str]:
    _distinct(names, "names")
    return names


def _renames(names: dict[str, str]) -> dict[str, str]:
    _distinct(names, "renames")
    _distinct(names.values(), "makes")
    if wrong := [new for new in names.values() if not new or is_reserved(new)]:
        raise ValueError(f"{wrong[0]!r} can't be a column's name")
    return names


def _masks(masks: dict[str, str]) -> dict[str, str]:
    _distinct(masks, "masks")
    return masks


def _condition(condition: str) -> str:
    words = words_of(condition)
    if not condition.strip():
        raise ValueError("is empty")
    if CDC in words:
        raise ValueError(f"may not use {CDC}: which rows are in the lake must not depend on how they landed")
    if _QUERY.search(_without_literals(condition)):
        raise ValueError("must not contain a query")
    if re.search(r"--|/\*", _without_literals(condition)):
        raise ValueError("must not contain a comment")
    if unstable := UNSTABLE.search(_without_literals(condition)):
        name = next(filter(None, unstable.groups()))
        raise ValueError(f"must give the same answer for a row at every merge: {name} is not allowed")
    if moment := next(_moments(condition), None):
        raise ValueError(f"must give the same answer for a row at every merge: {moment} is not allowed")
    return condition


class TargetColumns(Section):
    """What a target has of its table, by the source's column names, case-insensitively.

    `columns` or `exclude_columns`: which columns. `rename`: their names in the lake. `mask`: what the lake
    has instead of their values. `where`: which rows, in Spark SQL, evaluated before masks and renames.
    `unmasked`: columns that are not a masked or excluded one under another name, although they may look so.
    `mask_before_landing`: the agent lands only these columns, already masked.
    """

    columns: Annotated[list[str], AfterValidator(_names)] | None = Field(default=None, min_length=1)
    exclude_columns: Annotated[list[str], AfterValidator(_names)] = Field(default_factory=list)
    rename: Annotated[dict[str, str], AfterValidator(_renames)] = Field(default_factory=dict)
    mask: Annotated[dict[str, Annotated[str, AfterValidator(_mask)]], AfterValidator(_masks)] = Field(
        default_factory=dict
    )
    where: Annotated[str, AfterValidator(_condition)] | None = None
    unmasked: Annotated[list[str], AfterValidator(_names)] = Field(default_factory=list)
    mask_before_landing: bool = False

    @property
    def narrows(self) -> bool:
        """Return whether the target differs from the table with all its rows and columns."""
        return bool(self.columns or self.exclude_columns or self.rename or self.mask or self.where)

    def selects(self, name: str) -> bool:
        """Return whether the target has this column of the source."""
        listed = self.columns is None or fold(name) in folded(self.columns)
        return listed and fold(name) not in folded(self.exclude_columns)

    def mask_of(self, name: str) -> str | None:
        """Return a column's mask."""
        return next((mask for known, mask in self.mask.items() if fold(known) == fold(name)), None)

    def name_of(self, name: str) -> str:
        """Return a column's name in the lake."""
        return next((new for old, new in self.rename.items() if fold(old) == fold(name)), name)

    def misfit_of_key(self, key: Iterable[str]) -> str | None:
        """Return what is wrong with these settings for a table with such a key; None: nothing."""
        for name in key:
            if self.mask_of(name) is not None or not self.selects(name):
                role = f"column {name!r} is in the key, by which rows are matched"
                return f"{role}: it can't be masked or left out"
        return None

    @model_validator(mode="after")
    def _consistent(self) -> TargetColumns:
        if self.columns is not None and self.exclude_columns:
            raise ValueError("set either columns or exclude_columns")
        for setting in ("rename", "mask"):
            for name in getattr(self, setting):
                listed = self.columns is None or fold(name) in folded(self.columns)
                if not listed or fold(name) in folded(self.exclude_columns):
                    raise ValueError(f"{setting} names column {name}, which is left out")
        if both := [n for n in self.unmasked if fold(n) in folded([*self.mask, *self.exclude_columns])]:
            raise ValueError(f"unmasked names column {both[0]}, which is masked or left out")
        return self

    @model_validator(mode="after")
    def _lands_only_what_is_listed(self) -> TargetColumns:
        if not self.mask_before_landing:
            return self
        if self.columns is None:
            raise ValueError(
                "mask_before_landing needs columns: otherwise an added or renamed column would land unmasked"
            )
        words = words_of(self.where or "")
        if used := [name for name in self.mask if folded(re.findall(r"\w+", name)) <= words]:
            raise ValueError(f"where uses column {used[0]}, which mask_before_landing lands masked")
        return self
