"""Tables as they land: names, columns, key, comments; one JSON object per schema, named by its content.

Invariant: a schema's id is a function of its content. Two agents that see the same layout write the same
object, and a landing file stays readable by the schema it names. Comments are no part of it: they are objects
of their own, so a new comment is no new layout.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from connector.errors import FormatError

SCHEMA_FORMAT = 1

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class TableName(NamedTuple):
    """A table's name in its source: namespace (schema, database) and name.

    Used wherever a table is named; text only where a person reads or types it, and in JSON (`__str__`).
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{_format(self.namespace)}.{_format(self.name)}"

    @property
    def section(self) -> str:
        """Return the table's section name in the configuration file."""
        return f"[tables.{json.dumps(str(self), ensure_ascii=False)}]"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``namespace.name``; parts that contain a dot or a quote are in double quotes."""
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a table name; write namespace.table")
        parts = re.fullmatch(r'("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^".]+)', text)
        if parts is None:
            raise ValueError(f"{text!r} is not a table name; write namespace.table")
        return cls(_unquote(parts[1]), _unquote(parts[2]))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Parse from text and serialize to text, as a value and as a key."""
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )


def _format(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if re.search(r'[."]', part) else part


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


@dataclass(frozen=True)
class Column:
    """One column: its name, the source's name for its type, and the Spark SQL type it lands as.

    `mask`: the mask under which its values landed (`connector.config.target_columns.mask_identity`); None:
    none.
    """

    name: str
    source_type: str
    type: str
    mask: str | None = None

    def to_json(self) -> dict[str, str]:
        """Return the column as a JSON object."""
        body = {"name": self.name, "source_type": self.source_type, "type": self.type}
        return body if self.mask is None else {**body, "mask": self.mask}

    def is_rewritten_as(self, after: Column) -> bool:
        """Return whether a type change may have changed values or their texts; a longer varchar doesn't."""
        return self._bare() != after._bare()

    def _bare(self) -> tuple[str, str, str | None]:
        source_type = self.source_type
        if not source_type.startswith(("date", "time")):  # fewer digits of seconds round; more: zero dates
            source_type = re.sub(r"\(.*\)", "", source_type, flags=re.DOTALL)  # members may hold parentheses
        return source_type, self.type, self.mask


@dataclass(frozen=True)
class TableSchema:
    """The layout of one table's landing files: columns in the source's order, and the key.

    `before_images`: a further column, `_before`, holds the row as it was before each update and delete.
    """

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    before_images: bool = False

    @cached_property
    def id(self) -> str:
        """Return the id of this layout, made from its content: 16 hexadecimal digits."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    def column(self, name: str) -> Column:
        """Return a column by name; ``KeyError`` if there is none."""
        return {column.name: column for column in self.columns}[name]

    def to_json(self) -> bytes:
        """Serialize; the same content gives the same bytes."""
        body: dict[str, Any] = {
            "format": SCHEMA_FORMAT,
            "namespace": self.table.namespace,
            "name": self.table.name,
            "key": list(self.key),
            "columns": [column.to_json() for column in self.columns],
            **({"before_images": True} if self.before_images else {}),  # others keep the id they had
        }
        return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> TableSchema:
        """Parse what `to_json` wrote; `FormatError` for a newer format."""
        body = json.loads(data)
        _check_format(body, "schema")
        return cls(
            TableName(body["namespace"], body["name"]),
            tuple(Column(c["name"], c["source_type"], c["type"], c.get("mask")) for c in body["columns"]),
            tuple(body["key"]),
            body.get("before_images", False),
        )


Layouts = Mapping[TableName, TableSchema]
"""Of each table, its layout at one moment."""

Traits = Mapping[str, str]
"""What the catalog shows of a table's columns, by name, and the log does not, in the source's own words."""


class KnownTables(NamedTuple):
    """What is known of tables as of a position in the log; of a table without `traits`, none are known."""

    layouts: Layouts
    traits: Mapping[TableName, Traits]


COMMENT_CHARACTERS = 4000
"""The most characters of a comment that land: more than catalogs take, and PostgreSQL has no limit."""


@dataclass(frozen=True)
class TableComments:
    """The comments of a table (`text`, empty if it has none) and of its columns, of those that have one."""

    table: TableName
    text: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: TableName, text: str | None, columns: Mapping[str, str | None]) -> TableComments:
        """Return comments as they land: each cut to `COMMENT_CHARACTERS`, and empty ones left out."""
        kept = {name: comment[:COMMENT_CHARACTERS] for name, comment in columns.items() if comment}
        return cls(table, (text or "")[:COMMENT_CHARACTERS], kept)

    @property
    def empty(self) -> bool:
        """Return whether there are none."""
        return not self.text and not self.columns

    @cached_property
    def digest(self) -> str:
        """Return a hash of the content: 16 hexadecimal digits."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    def of_column(self, name: str) -> str | None:
        """Return a column's comment, by its name in the lake (`fold`); None if it has none."""
        return self._by_folded_name.get(fold(name))

    @cached_property
    def _by_folded_name(self) -> dict[str, str]:
        return {fold(name): comment for name, comment in self.columns.items()}

    def to_json(self) -> bytes:
        """Serialize; the same content gives the same bytes."""
        body: dict[str, Any] = {
            "format": SCHEMA_FORMAT,
            "namespace": self.table.namespace,
            "name": self.table.name,
            "comment": self.text,
            "columns": dict(self.columns),
        }
        return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> TableComments:
        """Parse what `to_json` wrote; `FormatError` for a newer format."""
        body = json.loads(data)
        _check_format(body, "comments")
        return cls(TableName(body["namespace"], body["name"]), body["comment"], body["columns"])


def _check_format(body: Mapping[str, Any], what: str) -> None:
    if body.get("format") != SCHEMA_FORMAT:
        raise FormatError(
            f"{what} format {body.get('format')!r} is not {SCHEMA_FORMAT}", hint="upgrade deltatide"
        )


def fold(name: str) -> str:
    """Return a column's name as Spark compares names: those that fold alike are one column in the lake.

    Spark compares by Java's ``String.equalsIgnoreCase``: character by character, each mapped to upper and
    then to lower case by Unicode's one-to-one mappings. So ``ı`` and ``İ`` are ``i``, ``ſ`` is ``s``, the
    micro sign is ``μ``, but ``ß`` is not ``ss``: the length never changes.
    """
    return name.lower() if name.isascii() else "".join(map(_fold_character, name))


def _fold_character(character: str) -> str:
    upper = character.upper()
    return (upper if len(upper) == 1 else character).lower()[0]  # İ becomes i and a dot above; Java drops it


def folded(names: Iterable[str]) -> set[str]:
    """Return column names as the lake compares them (`fold`)."""
    return {fold(name) for name in names}


def decimal_of(type_name: str) -> tuple[int, int] | None:
    """Return precision and scale of ``decimal(p,s)``, or None for another type."""
    match = _DECIMAL.fullmatch(type_name)
    return (int(match[1]), int(match[2])) if match else None


def array_of(type_name: str) -> str | None:
    """Return the element type of ``array<element>``, or None for another type."""
    return type_name[6:-1] if type_name.startswith("array<") and type_name.endswith(">") else None
