"""Which of a table's recorded frontiers counts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row

from connector.schema import TableName
from merge.lake.control_table import AS_LANDED, Built, Frontier, Frontiers, frontiers_of, renew_cut
from tests.support.landing.landed import config_of

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


def test_where_rows_name_several_delta_tables_the_one_that_counts_may_be_gone() -> None:
    """A late job may have named one that was dropped; so it is looked at. A table that is new is not."""

    def disputed(*newest_first: Row) -> tuple[int, Built | None, bool]:
        at = frontiers_of(list(newest_first)).of(T)
        return at.manifest, at.built, at.disputed

    new = row(10, 8, {str(T): MASKED}, id_="new")
    assert disputed(row(11, 1, {}), new) == (11, AS_LANDED, True)
    assert disputed(row(11, 1, {}), new, row(12, 2, {})) == (12, AS_LANDED, True)
    assert disputed(row(11, 1, {}), row(10, None, {}, id_=None)) == (11, AS_LANDED, False)


def test_without_a_delta_table_there_is_none_that_was_built_otherwise() -> None:
    assert Frontier(9).is_built_with("anything")
    assert not Frontier(9, 1, "id").is_built_with(AS_LANDED.fingerprint), "it is not known"
    assert Frontier(9, 1, "id", built=AS_LANDED).is_built_with(AS_LANDED.fingerprint)
    assert not Frontier(9, 1, "id", built=AS_LANDED).is_built_with(MASKED.fingerprint)


@pytest.mark.parametrize("added", ["never", "before we look", "before we add it", "by us", "ever"])
def test_two_jobs_may_add_the_column_that_a_control_table_of_an_earlier_release_lacks(added: str) -> None:
    columns, asked = ["built_with"] if added == "ever" else [], list[str]()

    class Spark:
        def table(self, _: str) -> Any:
            found = SimpleNamespace(columns=[*columns])
            if added == "before we add it":
                columns.append("built_with")
            return found

        def sql(self, statement: str) -> None:
            asked.append(statement.split()[0])
            lacks = "built_with" not in columns
            if asked[-1] == "ALTER" and lacks and added == "by us":
                columns.append("built_with")
            elif lacks or asked[-1] == "ALTER":
                if added == "before we look":
                    columns.append("built_with")
                raise AnalysisException("no such column, or it exists")

    spark: Any = Spark()
    if added == "never":
        with pytest.raises(AnalysisException):
            renew_cut(spark, config_of("/nowhere", "/nowhere"), 1, {})
        assert asked == ["INSERT", "ALTER"]
        return
    renew_cut(spark, config_of("/nowhere", "/nowhere"), 1, {})
    altered = ["ALTER"] if added in ("before we add it", "by us") else []
    assert asked == (["INSERT"] if added == "ever" else ["INSERT", *altered, "INSERT"])
