"""Partial updates of JSON on a real MySQL: a difference in the log lands as the server's own text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from connector.landing.event_batch import EventBatch
from connector.mysql.connection import literal
from connector.schema import TableName
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following, quarantines, read_to

pytestmark = pytest.mark.only_mysql

NAMES = ["a", "b", "long name", "x.y", 'q"uote', "ü☃", "", "1st", "back\\slash", "tab\t"]
UPDATES = 400


@pytest.fixture
def partial(mariadb: MysqlDatabase) -> Iterator[MysqlDatabase]:
    """A database whose server logs differences, as new sessions have it."""
    mariadb.execute("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
    yield mariadb
    mariadb.execute("SET GLOBAL binlog_row_value_options = ''")


def value(randomness: random.Random, depth: int) -> Any:
    kind = randomness.randrange(9 if depth else 6)
    if kind < 6:
        choices = [None, True, randomness.randrange(-(2**40), 2**63), randomness.random() * 1e6, "text ü", ""]
        return choices[kind]
    inner = [value(randomness, depth - 1) for _ in range(randomness.randrange(4))]
    return inner if kind == 6 else dict(zip(randomness.sample(NAMES, len(inner)), inner, strict=True))


def path(randomness: random.Random, document: Any) -> str:
    """A path to somewhere in the document, or to where something can be added."""
    found = "$"
    while True:
        if isinstance(document, dict):
            name = randomness.choice([*document, *NAMES[:4]])
            found += "." + json.dumps(name, ensure_ascii=False)
            document = document.get(name)
        elif isinstance(document, list):
            index = randomness.randrange(len(document) + 2)
            found += f"[{index}]" if randomness.random() < 0.7 else "[last]"
            document = document[index] if index < len(document) else None
        if not isinstance(document, (dict, list)) or randomness.random() < 0.4:
            return found


def text(data: Any) -> str:
    return literal(json.dumps(data, ensure_ascii=False))


def change(randomness: random.Random, document: Any) -> str:
    function = randomness.choice(["SET", "SET", "REPLACE", "REMOVE"])
    arguments = []
    for _ in range(randomness.randrange(1, 4)):
        place = path(randomness, document)
        if function == "REMOVE":
            arguments += [literal(place)] if place != "$" else []
        else:
            new = value(randomness, 2)
            formatted = f"CAST({text(new)} AS JSON)"
            if randomness.random() < 0.2:
                formatted = randomness.choice(["1.50", "NOW(6)", "CURDATE()", "X'0102'", "TIME'-10:11:12.5'"])
            arguments += [literal(place), formatted]
    return f"JSON_{function}(j, {', '.join(arguments)})" if arguments else "j"


def test_differences_give_the_servers_own_text(partial: MysqlDatabase) -> None:
    seed = random.randrange(1 << 30)
    randomness = random.Random(seed)
    partial.execute("CREATE TABLE t (id int PRIMARY KEY, n int, j json, k json, padding varchar(9))")
    wanted: list[tuple[int, str, str]] = []
    connection = partial.connect()
    with following(source_of(partial)) as log, connection, connection.cursor() as cursor:
        for key in range(8):
            document = {name: value(randomness, 3) for name in NAMES[:6]}
            cursor.execute(f"INSERT INTO t VALUES ({key}, 0, {text(document)}, {text(document)}, 'p')")
        for number in range(UPDATES):
            key = randomness.randrange(8)
            cursor.execute(f"SELECT j FROM t WHERE id = {key}")
            document = json.loads(cursor.fetchone()[0])
            other = ", k = JSON_SET(k, '$.a', n, '$.b[0]', id)" if number % 3 == 0 else ""
            cursor.execute(
                f"UPDATE t SET j = {change(randomness, document)}{other}, n = n + 1 WHERE id = {key}"
            )
            cursor.execute(f"SELECT id, j, k FROM t WHERE id = {key}")
            wanted.append(cursor.fetchone())
        cursor.execute("SHOW BINARY LOG STATUS")
        file = cursor.fetchone()[0]
        found = [(row["id"], row["j"], row["k"]) for row in read_all(partial, log)[8:]]
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
        differing = sum(event[2] == "Update_rows_partial" for event in cursor.fetchall())
    assert found == wanted, f"seed {seed}"
    assert differing >= UPDATES // 2


def test_a_difference_whose_document_before_is_not_in_the_log_quarantines_its_table(
    partial: MysqlDatabase,
) -> None:
    partial.execute(
        "CREATE TABLE t (id int PRIMARY KEY, i json, j json)", "CREATE TABLE u LIKE t",
        """INSERT INTO t VALUES (1, '{}', '{"a": "long enough to be worth a difference", "b": 1}')""",
        "INSERT INTO u SELECT id, j, j FROM t",
    )  # fmt: skip
    with following(source_of(partial, partial_images=True)) as log:
        partial.execute(
            "SET binlog_row_image = MINIMAL", "UPDATE t SET j = JSON_SET(j, '$.b', 2)",
            "SET binlog_row_image = FULL", "UPDATE u SET j = JSON_SET(j, '$.b', 2)",
        )  # fmt: skip
        read_to(log, partial.end_of_log())
        segment = log.take()
    (quarantined,) = quarantines(segment)
    assert quarantined.table == TableName.parse(f"{partial.name}.t")
    assert "difference to the JSON in column j" in quarantined.reason
    assert "binlog_row_value_options" in quarantined.hint
    (batch,) = [found for found in segment.decode() if isinstance(found, EventBatch)]
    (row,) = batch.table.to_pylist()
    assert (row["id"], row["i"][-7:], row["j"][-7:]) == (1, '"b": 1}', '"b": 2}')


def test_a_key_changed_along_with_a_document_lands_the_document_whole(partial: MysqlDatabase) -> None:
    partial.execute(
        "CREATE TABLE t (id int PRIMARY KEY, j json)",
        """INSERT INTO t VALUES (1, '{"a": "long enough to be worth a difference", "b": 1}'), (5, NULL)""",
    )
    with following(source_of(partial)) as log:
        partial.execute("UPDATE t SET j = JSON_REMOVE(j, '$.b'), id = id + 1")
        found = read_all(partial, log)
    whole = '{"a": "long enough to be worth a difference"}'
    assert [(row["_cdc"]["op"], row["id"], row["j"]) for row in found] == [
        ("delete", 1, None), ("insert", 2, whole), ("delete", 5, None), ("insert", 6, None),
    ]  # fmt: skip
