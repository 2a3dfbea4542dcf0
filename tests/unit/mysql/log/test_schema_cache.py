"""What layouts the log's tables have, when the catalog is ahead of the log, or the table is locked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connector.config import SourceConfig
from connector.errors import NotYetError
from connector.mysql.log.schema_cache import CapturedSchemas, NotedColumn, ResolvedLayout
from connector.schema import Column, TableName, TableSchema
from tests.unit.mysql.reference_mysql import Col, table_map

T = TableName("d", "t")
BINARY = 63
ID = Col("id", 3, unsigned=False)


def binary(name: str, length: int) -> Col:
    """How the log shows a binary column, an uuid and an address."""
    return Col(name, 254, bytes([254, length]), collation=BINARY)


class Cache(CapturedSchemas):
    """The cache of a log from before which table d.t landed with columns of these types."""

    def __init__(self, landed: Mapping[str, str], catalog: Mapping[str, str]) -> None:
        config = SourceConfig.model_validate(
            {"name": "t", "kind": "mysql", "url": "mysql://a@b/d", "tables": ["d.*"]}
        )
        self.catalog = catalog
        columns = tuple(Column(name, type_, "string") for name, type_ in {"id": "int", **landed}.items())
        layouts = {T: TableSchema(T, columns, ("id",))}
        noted = lambda _: {n: NotedColumn(type_, virtual=False) for n, type_ in self.catalog.items()}  # noqa: E731
        super().__init__(
            config, {}, {T}, noted, lambda _: None, list, layouts, mariadb=True, lower_case=False
        )

    def types(self, *columns: Col) -> dict[str, str]:
        """The types of columns that the log shows."""
        schema = self.resolve(table_map(7, [ID, *columns], key=[0])).schema
        assert schema is not None
        return {column.name: column.source_type for column in schema.columns[1:]}


@pytest.mark.parametrize("alias", ["uuid", "inet6"])
@pytest.mark.parametrize(
    "catalog",
    [{}, {"w": "uuid"}, {"u": "varchar(40)"}, {"u": "inet4"}],
    ids=["dropped", "renamed", "text", "shorter"],
)
def test_a_column_that_the_catalog_shows_otherwise_is_what_landed(
    catalog: dict[str, str], alias: str
) -> None:
    cache = Cache({"u": alias}, {"id": "int(11)", **catalog})
    assert cache.types(binary("u", 16)) == {"u": alias}


@pytest.mark.parametrize(
    ("catalog", "log", "type_"),
    [
        ("uuid", binary("u", 16), "uuid"),
        ("binary(16)", binary("u", 16), "binary(16)"),
        ("varchar(40)", binary("u", 15), "binary(15)"),
        ("varchar(40)", Col("u", 15, b"\xa0\0", collation=45), "varchar(40)"),
    ],
)
def test_what_landed_counts_only_if_the_catalog_contradicts_the_log(
    catalog: str, log: Col, type_: str
) -> None:
    cache = Cache({"u": "inet6"}, {"u": catalog})
    assert cache.types(log) == {"u": type_}


def test_a_vector_is_what_landed_whatever_its_dimensions() -> None:
    cache = Cache({"v": "vector", "b": "varbinary(12)"}, {})
    columns = [Col(name, 15, b"\x0c\0", collation=BINARY) for name in ("v", "b")]
    assert cache.types(*columns) == {"v": "vector", "b": "varbinary(12)"}


def test_a_column_that_has_been_in_the_log_is_what_it_was_there() -> None:
    """It came after the last layout that had landed."""
    cache = Cache({}, {"u": "uuid"})
    assert cache.types(binary("u", 16)) == {"u": "uuid"}
    cache.catalog = {"u": "varchar(40)"}
    assert cache.types(binary("u", 16)) == {"u": "uuid"}


def test_a_dropped_column_is_forgotten_and_a_renamed_one_is_known_by_its_new_name() -> None:
    cache = Cache({"a": "uuid", "B": "inet6", "c": "inet6"}, {"a": "uuid"})
    columns = [binary("a", 16), binary("B", 16), binary("c", 16)]
    assert cache.types(*columns) == {"a": "uuid", "B": "inet6", "c": "inet6"}
    cache.note_lost(T, ("A", "b", "c"), (("b", "c"), ("c", "b")))
    cache.catalog = {}
    assert cache.types(binary("a", 16), binary("c", 16)) == {"a": "binary(16)", "c": "inet6"}


def test_a_statement_that_is_read_while_the_table_has_had_no_row_counts() -> None:
    cache = Cache({"u": "uuid"}, {})
    cache.note_lost(T, ("u",), ())
    assert cache.types(binary("u", 16)) == {"u": "binary(16)"}


def test_a_table_that_can_not_be_captured_is_so_while_it_is_locked() -> None:
    """Its members in the catalog are read from the table, if one has a character that utf8mb3 lacks."""

    def locked(table: TableName) -> ResolvedLayout | None:
        raise NotYetError(f"{table} is locked by another session")

    cache = Cache({}, {})
    cache._layout = locked
    found = cache.resolve(table_map(7, [ID], key=[]))
    assert found.problem is not None
    assert found.problem.reason == "it has no primary key"
    assert found.schema == TableSchema(T, (), ())
