"""Texts as the server itself converts them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from connector.mysql.codec.charsets import decode_bytes, has_unwritten
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.characters import characters


def gb18030_characters() -> Iterator[bytes]:
    """All characters of the first plane, and some of those above, which follow each other in order."""
    high, digits = range(0x81, 0xFF), range(0x30, 0x3A)
    leads = (0x81, 0x82, 0x83, 0x84, 0x90, 0xE3)
    candidates = [bytes([a]) for a in range(0x80)]
    candidates += [bytes([a, b]) for a in high for b in range(0x30, 0xFF)]
    candidates += [bytes([a, b, c, d]) for a in leads for b in digits for c in high for d in digits]
    for text in candidates:
        try:
            if len(text.decode("gb18030")) == 1:
                yield text
        except ValueError:
            pass


@pytest.mark.only_mysql
def test_each_character_of_gb18030_is_that_of_the_server(mariadb: MysqlDatabase) -> None:
    characters = list(gb18030_characters())
    assert len(characters) > 0x10000 - 0x800, "all of the first plane but surrogates"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        for low in range(0, len(characters), 20_000):
            text = b"".join(characters[low : low + 20_000])
            cursor.execute(f"SELECT HEX(CONVERT(_gb18030 0x{text.hex()} USING utf8mb4))")
            ((converted,),) = cursor.fetchall()
            expected = bytes.fromhex(converted).decode()
            assert decode_bytes(text, "gb18030") == expected, f"characters from {characters[low].hex()} on"


@pytest.mark.parametrize("charset", ["big5", "cp932", "sjis", "ujis"])
def test_the_server_writes_each_character_as_it_was_read_but_those_that_are_unwritten(
    mariadb: MysqlDatabase, charset: str
) -> None:
    unstorable = {b"\n", b"\x80", b"\xa0", b"\xfd", b"\xfe", b"\xff"}
    known = {text: character for character, text in characters(charset) if text not in unstorable}
    text = b"\n".join(known)
    joined = f"_{charset} 0x{text.hex()}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        converted = f"CONVERT({joined} USING utf8mb4)"
        cursor.execute(f"SELECT HEX({converted}), HEX(CONVERT({converted} USING {charset}))")
        ((read, written),) = cursor.fetchall()
    texts = bytes.fromhex(read).decode().split("\n")
    found = zip(known.items(), texts, bytes.fromhex(written).split(b"\n"), strict=True)
    changed = {text for (text, character), *now in found if now != [character, text]}
    assert changed == {text for text in known if has_unwritten(pa.array([text]), charset)}
    assert changed
