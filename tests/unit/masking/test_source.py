"""A masked source passes on what its source is to know."""

from __future__ import annotations

from typing import Any, cast

from connector.config import Config, TableConfig
from connector.masking.columns import LandedColumns
from connector.masking.source import masked_source
from connector.schema import Column, KnownTables, TableName, TableSchema
from connector.source import ResumePoint, Source

T = TableName("d", "t")


class Opened:
    """A source that only opens its log."""

    def open_log(self, epoch: int, resume_point: ResumePoint, known: KnownTables | None = None) -> Any:
        self.known = known
        return object()


def test_the_log_is_opened_with_the_types_that_masked_columns_have_at_the_source() -> None:
    config = Config.model_validate(
        {
            "source": {"name": "t", "kind": "mysql", "url": "mysql://a@b/d", "tables": ["d.*"]},
            "landing": {"url": "/tmp/t"},
        }
    )
    settings = TableConfig.model_validate(
        {"columns": ["id", "u"], "mask": {"u": "null"}, "mask_before_landing": True}
    )
    config = config.model_copy(update={"tables": {T: settings}})
    columns = (Column("id", "int", "int"), Column("u", "uuid", "string"))
    landed = LandedColumns(T, settings, b"").layout(TableSchema(T, columns, ("id",)))
    inner = Opened()
    masked_source(cast(Source, inner), config).open_log(1, ResumePoint(7), KnownTables({T: landed}, {}))
    assert inner.known is not None
    assert [column.source_type for column in inner.known.layouts[T].columns] == ["int", "uuid"]
