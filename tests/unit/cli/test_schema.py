"""What `deltatide schema` says of a table's layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.cli.agent import schema
from connector.store.local import LocalStore
from tests.unit.landing.test_layout_history import LAYOUTS, ORDERS, written

CONFIG = """
[source]
name = "shop"
kind = "postgres"
url = "postgresql://localhost/shop"
tables = ["public.*"]
[landing]
url = "landing"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose landing zone has seen all `LAYOUTS`."""
    file = tmp_path / "shop.toml"
    file.write_text(CONFIG.replace('"landing"', f'"{tmp_path}/landing"'))
    written(LocalStore(tmp_path / "landing/shop"), [*LAYOUTS])
    return file


def test_columns_come_with_their_types_and_number_in_the_key_and_layouts_newest_first(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema(config, str(ORDERS))
    columns, history = (
        [line.split() for line in part.splitlines()] for part in capsys.readouterr().out.split("\n\n")
    )
    assert columns == [
        ["column", "source", "type", "lake", "type", "key"],
        ["n", "int", "int", "2"],
        ["id", "bigint", "bigint", "1"],
    ]
    assert history[0] == ["manifest", "landed", "position", "change"]
    assert [line[0] for line in history[1:]] == ["4", "3", "2"]
    changes = [" ".join(line) for line in history[1:]]
    assert changes[0].endswith("dropped old; key ['id'] became ['id', 'n']")
    assert changes[1].endswith("added n (int); id: int became bigint")
    assert changes[2].endswith("first layout, 2 columns")


def test_json_has_each_layout_in_full(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema(config, str(ORDERS), as_json=True)
    newest, *_, oldest = json.loads(capsys.readouterr().out)
    assert (newest["manifest"], newest["key"], newest["schema_id"]) == (4, ["id", "n"], LAYOUTS[2].id)
    assert oldest["change"] == "first layout, 2 columns"
    assert [column["name"] for column in oldest["columns"]] == ["id", "old"]
