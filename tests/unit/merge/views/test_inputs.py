"""The temporary views of a refresh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from merge.views.inputs import named


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
    catalog = Catalog()
    spark: Any = SimpleNamespace(catalog=catalog)
    frame: Any = SimpleNamespace(createOrReplaceTempView=catalog.create)
    names = ["or`ders", "public.or`ders"]
    with named(spark, dict.fromkeys(names, frame)):
        assert catalog.views == names
    assert catalog.views == []
