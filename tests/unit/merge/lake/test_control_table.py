"""Which of a table's recorded frontiers counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Row

from connector.schema import TableName
from merge.lake.control_table import AS_LANDED, Built, Frontier, Frontiers, frontiers_of

T = TableName("public", "orders")
MASKED, AGAIN = Built("masked", 1), Built("otherwise", 2)

Known = Mapping[str, Built | None] | None


def row(
    manifest: int, version: int | None, built: Known, *, exact: bool = True, id_: str | None = "id"
) -> Row:
    """Return a row that names the table; `built`: its `built_with`."""
    known = built and {name: at and Row(*vars(at).values()) for name, at in built.items()}
    entry = Row(version=version, manifest=manifest, id=id_, missing=0, error=None)
    times: dict[str, Any] = {"merged_at": None, "at": 0}
    position = {"epoch": 1, "position": 10 * manifest}
    return Row(manifest=manifest, exact=exact, tables={str(T): entry}, built_with=known, **position, **times)


def found(*newest_first: Row) -> tuple[int, int | None, Built | None, bool]:
    frontiers: Frontiers = frontiers_of(list(newest_first))
    at = frontiers.of(T)
    return at.manifest, at.version, at.built, frontiers.overtaken


def test_the_greatest_generation_counts_and_of_that_the_greatest_manifest() -> None:
    late, rebuilt = row(11, 1, {}), row(10, 8, {str(T): MASKED})
    assert found(rebuilt, row(10, 1, {})) == (10, 8, MASKED, False)
    assert found(late, rebuilt) == (10, 8, MASKED, True)
    assert found(row(10, 1, {}), rebuilt) == (10, 8, MASKED, True)
    assert found(row(11, 8, {str(T): MASKED}), late, rebuilt) == (11, 8, MASKED, False)
    assert found(row(11, 8, {str(T): MASKED}, exact=False), late, rebuilt) == (11, 8, MASKED, True)
    assert found(late, row(10, 9, {str(T): AGAIN}), rebuilt)[:3] == (10, 9, AGAIN)


def test_of_an_earlier_release_only_manifests_are_known() -> None:
    assert found(row(11, 1, None), row(10, 8, {str(T): MASKED})) == (11, 1, None, False)
    assert found(row(11, 1, {str(T): None}), row(10, 8, {str(T): MASKED})) == (11, 1, None, False)
    assert found(row(11, 9, {}), row(10, 8, None)) == (11, 9, AS_LANDED, False)
    assert frontiers_of([Row(**{k: v for k, v in row(3, 1, {}).asDict().items() if k != "built_with"})]).of(
        T
    ) == Frontier(3, 1, "id", 0)


def test_where_rows_name_several_delta_tables_it_is_not_known_what_the_one_that_is_there_was_built_with() -> (
    None
):
    """A late job may have named one that was dropped; so it is looked at. A table that is new is not."""
    assert found(row(11, 1, {}), row(10, 1, {}, id_="new")) == (11, 1, None, False)
    assert found(row(11, 1, {}), row(10, None, {}, id_=None)) == (11, 1, AS_LANDED, False)
