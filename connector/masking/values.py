"""Masks values before they land. Pure.

Invariant: the same value gets the same mask here and in the lake (`merge.columns.masks`), so turning
``mask_before_landing`` on or off changes no row of the lake. A test compares the two.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa

from connector.config.target_columns import NULL, kept_last

STARS = "****"
"""The same for every value, so its length is hidden, too."""


def masked(mask: str, values: pa.Array, raw: Sequence[str | None] | None, salt: bytes) -> pa.Array:
    """Return masked values; `raw`: the source's texts of those that the type can't hold."""
    if mask == NULL:
        return pa.nulls(len(values), values.type)
    texts = [None if value is None else text_of(value) for value in values.to_pylist()]
    if raw is not None:
        texts = [text if held is None else held for text, held in zip(texts, raw, strict=True)]
    return pa.array([None if text is None else _mask_of(text, mask, salt) for text in texts], pa.string())


def text_of(value: object) -> str:
    """Format a value that a mask applies to (`connector.config.target_columns.has_one_text`)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, datetime):
        text = f"{value.date().isoformat()} {value.time().isoformat()}"
        text = text.rstrip("0") if value.microsecond else text
        return text if value.tzinfo is None else f"{text}+00"
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _mask_of(text: str, mask: str, salt: bytes) -> str:
    kept = kept_last(mask)
    if kept is None:
        return hmac.digest(salt, text.encode(), hashlib.sha256).hex()
    return f"{STARS}{text[-kept:]}" if len(text) > kept else STARS
