"""Texts as the server itself converts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.mysql.codec.charsets import decode_bytes
from tests.support.servers.mysql_database import MysqlDatabase


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
