"""Which columns of a table a verification compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from merge.proof.comparison import Sides, TableVerification
from tests.support.landing.landed import schema_of

WHOLE = schema_of("public.orders", id="int", a="string", b="string")
WITHOUT = schema_of("public.orders", id="int", a="string")


def compared(*read: Any, newest: Any = WHOLE, before: Any = WHOLE, swept: bool = False) -> list[str]:
    """Return the columns compared of rows in the layouts `read`, and a Delta table that has all."""
    files = [SimpleNamespace(schema_id=schema.id) for schema in read]
    plan: Any = SimpleNamespace(files=files, swept_since_read=swept, state=SimpleNamespace(key=["id"]))
    fields = [
        SimpleNamespace(
            name=column.name, dataType=SimpleNamespace(simpleString=lambda type_=column.type: type_)
        )
        for column in WHOLE.columns
    ]
    lake: Any = SimpleNamespace(schema=SimpleNamespace(fields=fields))
    schemas = {schema.id: schema for schema in (WHOLE, WITHOUT)}
    return Sides((), plan, schemas, newest, lake, TableVerification(WHOLE.table), before=before).compared


def test_a_column_is_not_compared_once_the_source_has_dropped_it_whatever_the_log_has_shown() -> None:
    """PostgreSQL's log shows a dropped column with the next row event: of an idle table, never."""
    assert compared(WHOLE) == ["a", "b"]
    assert compared(WITHOUT, newest=WITHOUT) == ["a"]
    assert compared(WITHOUT) == ["a"], "each of its values in the lake would differ from null"
    assert compared(WHOLE, WITHOUT) == ["a"], "it was dropped between two chunks"


def test_a_column_that_came_after_the_rows_were_read_is_compared() -> None:
    assert compared(WITHOUT, before=WITHOUT) == ["a", "b"]
    assert compared(WITHOUT, before=None) == ["a", "b"]
    assert compared(WITHOUT, swept=True) == ["a", "b"], "a full dump has read it since"
    assert compared() == ["a", "b"]
