"""The temporary views of a refresh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from connector.schema import TableName
from merge.views.refresh import Refresh


class Catalog:
    """Temporary views as Spark has them: created by a parsed name, dropped by the name as it is."""

    def __init__(self) -> None:
        self.views: list[str] = []

    def create(self, name: str) -> None:
        self.views.append(name.removeprefix("`").removesuffix("`").replace("``", "`"))

    def dropTempView(self, name: str) -> None:
        if name in self.views:
            self.views.remove(name)


def test_a_refresh_leaves_no_temporary_view_behind() -> None:
    catalog, orders = Catalog(), TableName("public", "or`ders")
    frame = SimpleNamespace(createOrReplaceTempView=catalog.create)
    given: Any = SimpleNamespace(
        spark=SimpleNamespace(catalog=catalog),
        planned=SimpleNamespace(inputs={"or`ders": orders, "public.or`ders": orders}),
        inputs={orders: SimpleNamespace(rows=lambda _: frame)},
    )
    with Refresh._named_inputs(cast("Refresh", given)) as names:
        assert catalog.views == names == ["or`ders", "public.or`ders"]
    assert catalog.views == []
