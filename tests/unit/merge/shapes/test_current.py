"""Which tables have current rows, and where those lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.manifest import TableState
from connector.schema import TableName
from merge.lake.target import targets_of
from merge.shapes.current import tables_of_cut, targets_at
from tests.support.landing.landed import Landed, config_of, schema_of

FOLDER = config_of("/landing", "/lake")
CATALOG = Config.model_validate(
    FOLDER.model_dump(by_alias=True) | {"lake": {"catalog": "main", "schema": "shop"}}
)


@pytest.mark.parametrize("config", [FOLDER, CATALOG])
@pytest.mark.parametrize("name", ["public.orders", "archive.Orders"])
def test_whoever_has_only_a_cut_finds_tables_where_the_merge_puts_them(config: Config, name: str) -> None:
    landed = Landed()
    landed.table(schema_of("public.Orders", id="int"))
    landed.table(schema_of("public.people", id="int"))
    landed.table(replace(schema_of(name, id="int"), key=()))
    landed.tables[TableName("public", "People")] = TableState(state="quarantined")
    manifest = landed.commit(1)
    named = tables_of_cut(manifest)
    assert set(map(str, named)) == {"public.Orders", "public.people", "public.People"}
    found = targets_at(config, manifest)
    assert {table: found[table] for table in named} == targets_of(config, named)
    orders = found[TableName("public", "Orders")]
    assert (orders.name.rstrip("`").rpartition("Orders")[2], orders.rival) == ("", None)
    assert found.keys() == manifest.tables.keys()


def test_masks_of_a_table_of_changes_are_refused_under_a_name_in_another_case() -> None:
    config = config_of("/landing", "/lake", **{"public.Orders": {"mask": {"card": "null"}}})
    landed = Landed()
    landed.table(replace(schema_of("public.orders", id="int", card="string"), key=()))
    with pytest.raises(ConfigurationError, match=r"but the table's name is 'public\.orders'"):
        targets_at(config, landed.commit(1))
