"""Decodes PostgreSQL's array texts (``{1,NULL,"a b"}``) to Arrow lists. Pure.

Invariant: an array that a list cannot represent (more than one dimension, or a lower bound other than 1) is
never flattened: it is returned as `raw` text. Arrow splits arrays without quotes; only those with quotes go
through the exact parser, one by one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.codec.cells import of_length

_UNQUOTED = r'^\{[^{}"\\]*\}$'


def decode_array(texts: pa.Array, list_type: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """Decode texts into lists of `list_type`; also return the texts that no list can hold (or None).

    `ValueError` for what is not an array's text, `pyarrow.ArrowInvalid` for an element of another type.
    """
    misfit = pc.or_(pc.starts_with(texts, "{{"), pc.starts_with(texts, "["))
    raw = None
    if pc.any(misfit).as_py():
        raw = pc.if_else(misfit, texts, None)
        texts = pc.if_else(misfit, None, texts)
    unquoted = pc.match_substring_regex(texts, _UNQUOTED)
    if pc.all(unquoted, min_count=0).as_py():
        return _split(texts).cast(list_type), raw
    return _split_or_parse(texts, unquoted).cast(list_type), raw


def _split(texts: pa.Array) -> pa.Array:
    """Split unquoted arrays at their commas; the result is a list of strings, null where the text is."""
    parts = pc.split_pattern(pc.ascii_trim(texts, "{}"), ",")
    values = parts.flatten()
    # An empty element would be quoted, so the only empty part is from '{}', which has no elements.
    lengths = pc.list_value_length(parts).fill_null(0).to_numpy()
    empty = pc.equal(texts, "{}").fill_null(False).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.where(empty, 0, lengths), out=offsets[1:])
    values = values.filter(pc.not_equal(values, ""))
    values = pc.if_else(pc.equal(values, "NULL"), None, values)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=texts.is_null())


def _split_or_parse(texts: pa.Array, unquoted: pa.Array) -> pa.Array:
    """Split the unquoted ones at once, parse the others one by one, and merge them in order."""
    is_quoted = pc.invert(unquoted).fill_null(False)
    split = _split(pc.if_else(is_quoted, None, texts))
    parsed = pa.array([parse_array(text) for text in texts.filter(is_quoted).to_pylist()], split.type)
    quoted = is_quoted.to_numpy(zero_copy_only=False)
    order = np.arange(len(texts))
    order[quoted] = len(texts) + np.arange(len(parsed))
    return pa.concat_arrays([split, parsed]).take(pa.array(order))


def parse_array(text: str) -> list[str | None]:
    """Parse a one-dimensional array's text; `ValueError` if it is not one.

    Quoted elements are in double quotes, with quotes and backslashes escaped by a backslash; an unquoted NULL
    is null (PostgreSQL's manual, "Array Input and Output Syntax").
    """
    if text[:1] != "{" or len(text) < 2:
        raise ValueError(f"{of_length(text)} is not an array")
    elements: list[str | None] = []
    offset = 1
    if text == "{}":
        return elements
    while True:
        element, offset = (
            _quoted(text, offset + 1) if text[offset : offset + 1] == '"' else _bare(text, offset)
        )
        elements.append(element)
        if text[offset:] == "}":
            return elements
        if text[offset : offset + 1] != ",":
            raise ValueError(f"{of_length(text)} is not a one-dimensional array")
        offset += 1


def _bare(text: str, offset: int) -> tuple[str | None, int]:
    end = offset
    while end < len(text) and text[end] not in ',{}"\\':
        end += 1
    if end == offset:
        raise ValueError(f"{of_length(text)} is not an array: it has an empty element")
    element = text[offset:end]
    return (None if element == "NULL" else element), end


def _quoted(text: str, offset: int) -> tuple[str, int]:
    parts = []
    while (end := text.find('"', offset)) >= 0:
        escape = text.find("\\", offset, end)
        if escape < 0:
            parts.append(text[offset:end])
            return "".join(parts), end + 1
        parts.append(text[offset:escape] + text[escape + 1 : escape + 2])
        offset = escape + 2
    raise ValueError(f"{of_length(text)} is not an array: a quote is not closed")
