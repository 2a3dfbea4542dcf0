"""What every database's log must show: scenarios that run statements and read the log after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from connector.errors import TransientError
from connector.source import LogReader, ResumePoint, Segment, Source
from tests.support.source.reading import Row, events, following, opened, ops, read_rows
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Logged:
    """A test's database: its source, `run` for statements in one session, and `read` for their events.

    `read` returns at least as many events as it is asked for.
    """

    source: Source
    run: Callable[..., object]
    read: Callable[[Any, int], list[Row]]


def every_operation(logged: Logged) -> list[Row]:
    """Insert, update, delete and truncate; return the events, in order."""
    logged.run("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    with following(logged.source) as log:
        logged.run(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "UPDATE t SET v = 'c' WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
            "COMMIT",
        )
        logged.run("TRUNCATE t")
        found = logged.read(log, 6)
    assert ops(found, "id", "v") == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update", 1, "c"),
        ("delete", 2, None),
        ("insert", 3, "b"),
        ("delete", 1, None),
        ("truncate", None, None),
    ]
    return found


def old_rows(found: list[Row]) -> list[tuple[Any, ...]]:
    """Return op and old row of each event: its columns, then those that are missing."""
    return [
        (row["_cdc"]["op"], *([] if (old := row["_before"]) is None else [*old.values()][:-1]), _missing(row))
        for row in found
    ]


def assert_changes_without_a_key(found: list[Row]) -> None:
    """Check the events: two rows (1, a) and one of NULLs inserted, updated, deleted; a truncate."""
    assert ops(found, "n", "v") == [
        *[("insert", 1, "a")] * 2, ("insert", None, None), *[("update", 1, "b")] * 2, ("delete", None, None),
        *[("delete", 1, "b")] * 2, ("truncate", None, None),
    ]  # fmt: skip
    assert old_rows(found[3:7]) == [
        *[("update", 1, "a", None)] * 2, ("delete", None, None, None), ("delete", 1, "b", None),
    ]  # fmt: skip


def _missing(row: Row) -> Any:
    return row["_before"] and row["_before"]["_cdc"]["missing"]


def whole_old_rows(logged: Logged, large: str) -> None:
    """Every operation in a table that logs whole old rows, nulls and large values among them; read it twice.

    The table `t` has columns `id`, `n` and `v`, and logs whole old rows.
    """
    with following(logged.source) as log:
        logged.run(
            "BEGIN",
            f"INSERT INTO t VALUES (1, 5, {large}), (2, NULL, NULL)",
            "UPDATE t SET n = 6 WHERE id = 1",
            "UPDATE t SET n = 7 WHERE id = 2",
            "UPDATE t SET id = 3 WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
            "COMMIT",
        )
        logged.run("DELETE FROM t WHERE id = 3")
        logged.run("TRUNCATE t")
        segment = read_rows(log, 7)
        found = events(segment)
        assert events(segment) == found
    text = found[0]["v"]
    assert len(text) == 9000
    assert old_rows(found) == [
        ("insert", None),
        ("insert", None),
        ("update", 1, 5, text, None),
        ("update", 2, None, None, None),
        ("delete", 2, 7, None, None),
        ("insert", None),
        ("delete", 1, 6, text, None),
        ("delete", 3, 7, None, None),
        ("truncate", None),
    ]


def savepoint_rolled_back(logged: Logged) -> None:
    """Roll back to a savepoint: only what came before and after it is in the log."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY)")
    with following(logged.source) as log:
        logged.run(
            "BEGIN",
            "INSERT INTO t VALUES (1)",
            "SAVEPOINT s",
            "INSERT INTO t VALUES (2)",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES (3)",
            "COMMIT",
        )
        assert ops(logged.read(log, 2), "id") == [("insert", 1), ("insert", 3)]


def keys_swapped(logged: Logged) -> None:
    """Swap two keys by way of a third: following the log gives the swapped rows."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with following(logged.source) as log:
        logged.run(
            "BEGIN",
            "UPDATE t SET id = 0 WHERE id = 1",
            "UPDATE t SET id = 1 WHERE id = 2",
            "UPDATE t SET id = 2 WHERE id = 0",
            "COMMIT",
        )
        state: dict[int, str] = {1: "a", 2: "b"}
        for op, key, value in ops(logged.read(log, 3), "id", "v"):
            if op == "delete":
                del state[key]
            else:
                state[key] = value
    assert state == {1: "b", 2: "a"}


def read_again(logged: Logged) -> None:
    """Lose what was read after a confirmed position: it comes again, once, with what follows."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY)")
    with following(logged.source) as log:
        logged.run("INSERT INTO t VALUES (1)")
        first = read_rows(log, 1)
        log.confirm(first.position)
        logged.run("INSERT INTO t VALUES (2)")
        lost = events(read_rows(log, 1))
    with opened(logged.source, ResumePoint(first.position, ())) as log:
        logged.run("INSERT INTO t VALUES (3)")
        again = logged.read(log, 2)
    assert again[:1] == lost
    assert ops(again, "id") == [("insert", 2), ("insert", 3)]


def sender_ended(logged: Logged, end_sender: Callable[[], object]) -> None:
    """End the server's process that sends the log: a transient error, and nothing is lost or read twice."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY)")
    with following(logged.source) as log:
        logged.run("INSERT INTO t VALUES (1)")
        first = read_rows(log, 1)
        logged.run("INSERT INTO t VALUES (2)")
        end_sender()
        with pytest.raises(TransientError):
            wait_until(lambda: log.read(0.05, 1 << 20), "the connection is lost")
    with opened(logged.source, ResumePoint(first.position, ())) as log:
        assert ops(logged.read(log, 1), "id") == [("insert", 2)]


def read_in_parts(log: LogReader, all_read: Callable[[list[Segment]], bool]) -> list[Segment]:
    """Read one huge transaction, and take each part as soon as about 50 kB of it are there."""
    parts: list[Segment] = []

    def read() -> bool:
        log.read(0.05, 50_000)
        parts.append(log.take())
        if part := log.take_open():
            parts.append(part)
        return all_read(parts)

    wait_until(read, "the transaction is read")
    parts.append(log.take())
    assert sum(1 for part in parts if part.rows) > 5
    return parts
