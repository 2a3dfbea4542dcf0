"""All characters of MySQL's character sets of up to three bytes."""

from __future__ import annotations

from collections.abc import Iterator

from connector.mysql.codec.charsets import decode_bytes, max_bytes


def characters(charset: str) -> Iterator[tuple[str, bytes]]:
    """Yield what each sequence of bytes of a character's length is decoded to, if to one character."""
    candidates = [bytes([a]) for a in range(0x100)]
    if max_bytes(charset) > 1:
        candidates += [bytes([a, b]) for a in range(0x80, 0x100) for b in range(0x40, 0x100)]
    if max_bytes(charset) == 3:
        candidates += [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    for each in candidates:
        try:
            text = decode_bytes(each, charset)
        except ValueError:
            continue
        if len(text) == 1:
            yield text, each
