"""JSON of a real MySQL: binary documents in the log land as the text that the server itself casts them to."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import pytest

from connector.mysql.connection import literal
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following

pytestmark = pytest.mark.only_mysql

# Each is a value inside a document that has a type of its own in the binary form, or an odd one.
VALUES = [
    *("CAST(1.50 AS DECIMAL(65,30))", "CAST(-0.07 AS DECIMAL(3,2))", f"CAST({'9' * 65} AS DECIMAL(65,0))"),
    *("CAST('-838:59:59' AS TIME)", "CAST('-00:00:00.000001' AS TIME(6))", "CAST('10:11:12.5' AS TIME(1))"),
    *("CAST('0000-00-00' AS DATE)", "CAST('2024-02-29' AS DATE)", "CAST('9999-12-31 23:59:59' AS DATETIME)"),
    *("TIMESTAMP'2026-01-02 03:04:05.000006'", "CAST(2026 AS YEAR)", "b'1000000011'", "X'00FF'", "X''"),
    *("CAST(repeat('ab', 100) AS BINARY)", "ST_GeomFromText('POINT(1 -2.5)')", "CAST('1e20' AS JSON)"),
    *("CAST('-0.0' AS JSON)", "CAST('0.0' AS JSON)", "CAST('1E400' AS CHAR)", "18446744073709551615"),
    *("-9223372036854775808", "1e308", "5e-324", "true", "NULL", "CAST('1.0' AS JSON)", "0.1e0"),
    *("char(0, 1, 8, 9, 10, 12, 13, 27, 31, 127 USING utf8mb4)", "'\"\\\\/'", "_utf8mb4 X'F09F9880E280A8'"),
]  # fmt: skip


def number(randomness: random.Random) -> float:
    """A double of any size, or one with up to 17 digits somewhere around its point."""
    kind = randomness.randrange(3)
    if kind == 0:
        (found,) = struct.unpack("<d", randomness.randbytes(8))
        return found if math.isfinite(found) else 0.5
    digits = randomness.randrange(10 ** randomness.randrange(1, 18))
    return digits / 10.0 ** randomness.randrange(0, 18 if kind == 1 else 40)


def document(randomness: random.Random, depth: int) -> Any:
    kind = randomness.randrange(8 if depth else 5)
    if kind < 3:
        return number(randomness)
    if kind == 3:
        return randomness.randrange(-(2**63), 2**64) >> randomness.randrange(64)
    if kind == 4:
        return "".join(randomness.choice('aZ\0\n"\\/é☃😀\u2028\x7f') for _ in range(randomness.randrange(6)))
    inner = [document(randomness, depth - 1) for _ in range(randomness.randrange(5))]
    names = ["a", "b", "aa", "é", "Z", "", "😀", "a b", "\t", '"']
    return inner if kind == 5 else dict(zip(randomness.sample(names, len(inner)), inner, strict=True))


@pytest.mark.every_release
def test_documents_land_as_the_text_that_the_server_gives(mariadb: MysqlDatabase) -> None:
    randomness = random.Random(5)
    texts = [json.dumps(document(randomness, 3), ensure_ascii=False) for _ in range(2000)]
    texts += ["[" * depth + "1" + "]" * depth for depth in (1, 50, 99)]
    texts += ['{"a":' * 99 + "null" + "}" * 99, json.dumps([*range(20_000)]), json.dumps({"k": "x" * 70_000})]
    mariadb.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, j json)")
    with following(source_of(mariadb)) as log:
        mariadb.execute(
            f"INSERT INTO t (j) VALUES {', '.join(f'({literal(text)})' for text in texts)}",
            *(f"INSERT INTO t (j) SELECT JSON_ARRAY({value}, JSON_OBJECT('k', {value}))" for value in VALUES),
            *(f"INSERT INTO t (j) SELECT JSON_EXTRACT(JSON_ARRAY({value}), '$[0]')" for value in VALUES),
        )
        landed = [row["j"] for row in read_all(mariadb, log)]
    reported = [text for (text,) in mariadb.execute("SELECT CAST(j AS CHAR) FROM t ORDER BY id")]
    assert len(reported) == len(texts) + 2 * len(VALUES)
    differing = [(ours, theirs) for ours, theirs in zip(landed, reported, strict=True) if ours != theirs]
    assert differing[:5] == []
