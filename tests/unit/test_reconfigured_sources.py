"""Sources whose settings of tables are replaced while dump workers keep their connections."""

from __future__ import annotations

from typing import Any

import pytest

from connector.config import Config, TableConfig
from connector.mysql import source as mysql
from connector.postgres import source as postgres
from connector.schema import TableName

ITEMS = TableName.parse("public.items")


@pytest.mark.parametrize(
    ("module", "reader", "kind", "url"),
    [
        (postgres, "PostgresTables", "postgres", "postgresql://u@localhost/d"),
        (mysql, "MysqlTables", "mysql", "mysql://u@localhost"),
    ],
)
def test_a_worker_that_reads_tables_sees_a_key_that_was_configured_since(
    monkeypatch: pytest.MonkeyPatch, module: Any, reader: str, kind: str, url: str
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(module, reader, lambda *arguments: opened.extend(arguments))
    source_config: Any = {"name": "shop", "kind": kind, "url": url, "tables": ["public.*"]}
    config = Config.model_validate({"source": source_config, "landing": {"url": "/tmp/landing"}})
    class_ = module.PostgresSource if kind == "postgres" else module.MysqlSource
    source = class_(config.source, {})
    source.open_tables()
    named = {ITEMS: TableConfig(key=["code"])}
    source.reconfigure(config.source, named)
    connect, *others = opened
    assert callable(connect)
    assert named in [other() for other in others if callable(other)]
