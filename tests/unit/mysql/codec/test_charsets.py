"""Character sets in which some characters have several encodings."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connector.mysql.codec.charsets import has_unwritten, is_ambiguous, lower
from tests.support.source.characters import characters

CHARSETS = "big5 cp932 euckr gb2312 gbk sjis ujis latin1 greek".split()


@pytest.mark.parametrize("charset", CHARSETS)
def test_of_all_encodings_of_a_character_one_alone_is_written(charset: str) -> None:
    encodings: dict[str, list[bytes]] = {}
    for text, each in characters(charset):
        encodings.setdefault(text, []).append(each)
    several = {text for text, some in encodings.items() if len(some) > 1}
    assert bool(several) == is_ambiguous(charset)
    if not several:
        return
    for text in several:
        others = [some for some in encodings[text] if has_unwritten(pa.array([some]), charset)]
        assert len(others) == len(encodings[text]) - 1
    alone = [some[0] for text, some in encodings.items() if text not in several | {*"╴￣ˍ"}]
    assert not has_unwritten(pa.array([b"".join(alone), None]), charset)


def test_an_unwritten_encoding_is_found_anywhere_in_a_text_and_bytes_of_two_characters_are_none() -> None:
    for text in (b"\x87\x90", b"a\x87\x90", b"\x81\xe0\x87\x90", b"\xee\xefb"):
        assert has_unwritten(pa.array([b"a", text]), "cp932")
    assert not has_unwritten(pa.array([b"\x82\x87\x90\xa2", b"\x81\xe0", b"\xfa\x40"]), "cp932")


@pytest.mark.parametrize(
    ("name", "stored"),
    [("ΠΕΛΑΤΕΣ", "πελατεσ"), ("MÜŞTERİ", "müşteri"), ("Straße", "straße"), ("KUNDEN", "kunden")],
)
def test_a_name_is_lowered_as_the_servers_do(name: str, stored: str) -> None:
    assert lower(name) == lower(stored) == stored
