"""Tables as they land: names, columns, key; one JSON object for each schema, named by its content.

Invariant: a schema's id is a function of its content, so two agents that see the same layout write the same
object, and a landing file stays readable by the schema it names for ever.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from connector.errors import FormatError

SCHEMA_FORMAT = 1

SCALARS = frozenset(
    "boolean tinyint smallint int bigint float double string binary date timestamp timestamp_ntz".split()
)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class TableName(NamedTuple):
    """A table's name in its source: namespace (schema, database) and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{_spell(self.namespace)}.{_spell(self.name)}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``namespace.name``; parts that hold a dot or a quote are in double quotes."""
        parts = re.fullmatch(r'("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^".]+)', text)
        if parts is None:
            raise ValueError(f"{text!r} is not a table name, write namespace.table")
        return cls(_unquote(parts[1]), _unquote(parts[2]))


def _spell(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if re.search(r'[."]', part) else part


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


@dataclass(frozen=True)
class Column:
    """One column: its name, the source's name of its type, and the Spark SQL type it lands as."""

    name: str
    source_type: str
    type: str


@dataclass(frozen=True)
class TableSchema:
    """The layout of one table's landing files: columns in the source's order, and the key."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @cached_property
    def id(self) -> str:
        """Name this layout by its content: 16 hexadecimal digits."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    def column(self, name: str) -> Column:
        """Find a column by name; ``KeyError`` when there is none."""
        return next(c for c in self.columns if c.name == name)

    def to_json(self) -> bytes:
        """Serialize, the same bytes for the same content."""
        body: dict[str, Any] = {
            "format": SCHEMA_FORMAT,
            "namespace": self.table.namespace,
            "name": self.table.name,
            "key": list(self.key),
            "columns": [{"name": c.name, "source_type": c.source_type, "type": c.type} for c in self.columns],
        }
        return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> TableSchema:
        """Read what `to_json` wrote; `FormatError` for a newer format."""
        body = json.loads(data)
        if body.get("format") != SCHEMA_FORMAT:
            raise FormatError(
                f"schema format {body.get('format')!r} is not {SCHEMA_FORMAT}", hint="upgrade deltatide"
            )
        return cls(
            TableName(body["namespace"], body["name"]),
            tuple(Column(c["name"], c["source_type"], c["type"]) for c in body["columns"]),
            tuple(body["key"]),
        )


def decimal_of(type_name: str) -> tuple[int, int] | None:
    """Give precision and scale of ``decimal(p,s)``, or None for another type."""
    match = _DECIMAL.fullmatch(type_name)
    return (int(match[1]), int(match[2])) if match else None


def array_of(type_name: str) -> str | None:
    """Give the element type of ``array<element>``, or None for another type."""
    return type_name[6:-1] if type_name.startswith("array<") and type_name.endswith(">") else None
