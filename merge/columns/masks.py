"""Masks replace a column's values in the lake. Pure; Spark's own functions, no Python in tasks.

=============  ============================================================================
mask           result, computed from the value's text; null stays null
=============  ============================================================================
null           null, in the column's own type
sha256         HMAC-SHA256 of the text in UTF-8 with ``lake.salt`` as the key, in lower-case hex
keep last 4    ``****`` and the last four characters; ``****`` alone if there are no more than four
=============  ============================================================================

For a value that the column's type can't hold, that text is the source's own (`_cdc.raw`).

Invariant: a value's text depends neither on the session nor on a later layout of the column; otherwise one
value would have two hashes. So masks by text apply only to types with one text per value (`has_one_text`).
`connector.masking.values` makes the same of the same values, before they land.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from connector.config.target_columns import NULL, kept_last
from merge.keys import key_text
from merge.sql_formatting import data_type

if TYPE_CHECKING:
    from pyspark.sql import Column

STARS = "****"
"""The same number for every value, so its length is hidden, too."""

_BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C


def masked(mask: str, value: Column, raw: Column, type_: str, salt: bytes) -> Column:
    """Return the mask of a value of a landed type; `raw`: its text in `_cdc.raw`."""
    if mask == NULL:
        return F.lit(None).cast(data_type(type_))
    text = F.coalesce(raw, key_text(value, type_))
    kept = kept_last(mask)
    return hmac_sha256(text, salt) if kept is None else last_characters(text, kept)


def hmac_sha256(text: Column, key: bytes) -> Column:
    """Return the HMAC (RFC 2104) of a text in hexadecimal digits; null for null."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (F.lit(bytes(byte ^ pad for byte in block)) for pad in (_INNER, _OUTER))
    digest = F.sha2(F.concat(inner, text.cast("binary")), 256)
    return F.sha2(F.concat(outer, F.unhex(digest)), 256)


def last_characters(text: Column, count: int) -> Column:
    """Return stars and the last characters; only stars for a text of no more than these; null for null."""
    ending = F.concat(F.lit(STARS), F.substring(text, -count, count))
    return F.when(F.length(text) > count, ending).when(text.isNotNull(), STARS)
