"""A naive codec of PostgreSQL's texts, value by value: the oracle of the vectorised one."""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any


def tuple_data(values: Sequence[Any]) -> bytes:
    """pgoutput's TupleData; a value is a text, None, or ... for an unchanged TOAST."""
    return struct.pack(">H", len(values)) + b"".join(map(_tuple_value, values))


def _tuple_value(value: Any) -> bytes:
    if value is None:
        return b"n"
    if value is ...:
        return b"u"
    text = value if isinstance(value, bytes) else value.encode()
    return b"t" + struct.pack(">I", len(text)) + text


def insert(relid: int, new: Sequence[Any]) -> bytes:
    return b"I" + struct.pack(">I", relid) + b"N" + tuple_data(new)


def update(relid: int, new: Sequence[Any], *, key: Any = None, old: Any = None) -> bytes:
    before = b"K" + tuple_data(key) if key else b"O" + tuple_data(old) if old else b""
    return b"U" + struct.pack(">I", relid) + before + b"N" + tuple_data(new)


def delete(relid: int, *, key: Any = None, old: Any = None) -> bytes:
    before = b"K" + tuple_data(key) if key else b"O" + tuple_data(old)
    return b"D" + struct.pack(">I", relid) + before


def truncate(*relids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(relids)}I", len(relids), 0, *relids)


_ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def copy_row(values: Sequence[str | None]) -> bytes:
    """One row of COPY TO STDOUT, as CopyAttributeOutText writes it."""
    cells = ("\\N" if v is None else "".join(_ESCAPES.get(c, c) for c in v) for v in values)
    return "\t".join(cells).encode() + b"\n"


def array_text(elements: Sequence[Any]) -> str:
    """array_out: quotes what could be read as something else."""
    return "{" + ",".join(map(_element, elements)) + "}"


def _element(element: Any) -> str:
    if element is None:
        return "NULL"
    text = str(element)
    if text == "" or text.upper() == "NULL" or re.search(r'[\s{},"\\]', text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def decode(text: str | None, type_name: str) -> tuple[Any, str | None]:
    """Return the value of a text, and its raw text where the type does not hold it."""
    if text is None:
        return None, None
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", type_name):
        return _decimal(text, int(match[1]), int(match[2]))
    if type_name in ("date", "timestamp", "timestamp_ntz"):
        return _time(text, type_name)
    if type_name.startswith("array<"):
        return _array(text, type_name[6:-1])
    scalar = {
        "boolean": lambda t: t == "t",
        "binary": lambda t: bytes.fromhex(t[2:]),
        "string": str,
        "double": float,
        "float": lambda t: struct.unpack("f", struct.pack("f", float(t)))[0],
    }
    return scalar.get(type_name, int)(text), None


def _decimal(text: str, precision: int, scale: int) -> tuple[Any, str | None]:
    if text in ("NaN", "Infinity", "-Infinity"):
        return None, text
    whole, _, fraction = text.lstrip("-").partition(".")
    fraction = fraction.rstrip("0")
    unscaled = int(whole + fraction.ljust(scale, "0"))
    if len(fraction) > scale or unscaled >= 10**precision:
        return None, text
    digits = tuple(map(int, str(unscaled)))
    return Decimal((int(text.startswith("-")), digits, -scale)), None


def _time(text: str, type_name: str) -> tuple[Any, str | None]:
    try:
        if type_name == "date":
            return datetime.date.fromisoformat(text), None
        moment = datetime.datetime.fromisoformat(_padded(text))
        return (moment.astimezone(datetime.timezone.utc) if moment.tzinfo else moment), None
    except ValueError:
        return None, text


def _padded(text: str) -> str:
    """Format fraction and offset as Python 3.10 reads them."""
    match = re.fullmatch(r"(.{19})(\.\d+)?(\+00)?", text)
    if match is None:
        raise ValueError(text)
    fraction = (match[2] or ".").ljust(7, "0")
    return match[1] + fraction + ("+00:00" if match[3] else "")


def _array(text: str, element: str) -> tuple[Any, str | None]:
    if not re.match(r"\{(?!\{)", text):
        return None, text
    values, offset = [], 1
    while text[offset] != "}":
        if text[offset] == ",":
            offset += 1
        if text[offset] == '"':
            match = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL).match(text, offset)
            values.append(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL))
        else:
            match = re.compile(r"[^,}]+").match(text, offset)
            values.append(None if match[0] == "NULL" else match[0])
        offset = match.end()
    return [v if v is None or element == "string" else int(v) for v in values], None
