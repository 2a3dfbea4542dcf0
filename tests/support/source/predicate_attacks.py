"""Attacks on the conditions and keys of requests, the same for every database.

The table has ten rows: `id` from 1 to 10 is the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connector.errors import RequestError
from connector.schema import TableName
from connector.source import TableReader


def taken(texts: Sequence[str], use: Callable[[str], object]) -> list[str]:
    """Return the texts that can be used: those that are not refused."""
    return [text for text in texts if not _refuses(use, text)]


def _refuses(use: Callable[[str], object], text: str) -> bool:
    try:
        use(text)
    except RequestError:
        return True
    return False


def attack(tables: TableReader, table: TableName, pieces: st.SearchStrategy[str]) -> None:
    """Put texts of random pieces where conditions and keys belong: each is refused, or chooses rows."""
    count = {"refused": 0, "taken": 0}

    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.sampled_from(["", "id > 3 "]), st.lists(pieces, min_size=1, max_size=7).map("".join))
    def by_condition(begin: str, end: str) -> None:
        try:
            found = tables.next_boundary(table, ["id"], ("2",), 1, begin + end)
            assert found is None or int(found[0]) in range(3, 11)
            count["taken"] += 1
        except RequestError:
            count["refused"] += 1

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(pieces, min_size=1, max_size=5).map("".join))
    def by_key(key: str) -> None:
        with suppress(RequestError), tables.open_keys(table, [[key], ["1"]]) as chunk:
            assert sum(map(len, (some.absent for some in chunk.rows()))) <= 2  # type: ignore[arg-type]

    by_condition()
    by_key()
    assert min(count.values()) > 0, count
