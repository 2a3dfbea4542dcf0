"""What the log's tables and columns are, when the catalog is ahead of the log, or the table is locked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from connector.config import SourceConfig
from connector.errors import NotYetError
from connector.mysql.codec.table_map import TableMap
from connector.mysql.log.schema_cache import CapturedSchemas, NotedColumn, ResolvedLayout, traits_of
from connector.schema import Column, KnownTables, TableName, TableSchema
from tests.unit.mysql.reference_mysql import Col, table_map

T = TableName("d", "t")
BINARY = 63
ID = Col("id", 3, unsigned=False)


def binary(name: str, length: int) -> Col:
    """How the log shows a binary column, an uuid and an address."""
    return Col(name, 254, bytes([254, length]), collation=BINARY)


class Cache(CapturedSchemas):
    """The cache of a log from before which table d.t landed with columns of these types, and `traits`.

    `catalog`: the words of its columns.
    """

    def __init__(
        self,
        landed: Mapping[str, str],
        catalog: Mapping[str, str],
        traits: Mapping[str, str] | None = None,
        exists: Callable[[TableName], bool] | None = None,
    ) -> None:
        config = SourceConfig.model_validate(
            {"name": "t", "kind": "mysql", "url": "mysql://a@b/d", "tables": ["d.*"]}
        )
        self.catalog, self.looks = catalog, 0
        columns = tuple(Column(name, type_, "string") for name, type_ in {"id": "int", **landed}.items())
        layouts = {T: TableSchema(T, columns, ("id",))}
        known = KnownTables(layouts, {} if traits is None else {T: traits})
        super().__init__(
            config, {}, {T}, self.noted_now, lambda _: None, list, known,
            mariadb=True, lower_case=False, exists=exists,
        )  # fmt: skip

    def noted_now(self, _: TableName) -> dict[str, NotedColumn]:
        self.looks += 1
        return {name: NotedColumn.of(words) for name, words in self.catalog.items()}

    def table_map(self, *columns: Col, key: Sequence[int] = (0,)) -> TableMap:
        """The layout of a table with these columns after the id."""
        found = self.resolve(table_map(7, [ID, *columns], key=[*key])).table_map
        assert found is not None
        return found

    def virtual(self, *columns: Col) -> set[str]:
        """Those of the columns that are virtual."""
        return {column.name for column in self.table_map(*columns).columns if column.virtual}

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
    cache.forget_columns(T, ("A", "b", "c"), (("b", "c"), ("c", "b")))
    cache.catalog = {}
    assert cache.types(binary("a", 16), binary("c", 16)) == {"a": "binary(16)", "c": "inet6"}


def test_a_statement_that_is_read_while_the_table_has_had_no_row_counts() -> None:
    cache = Cache({"u": "uuid"}, {})
    cache.forget_columns(T, ("u",), ())
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


V, W = Col("v", 3, unsigned=False), Col("w", 3, unsigned=False)


def test_what_is_known_as_of_where_the_log_is_opened_counts_and_the_catalog_is_not_asked() -> None:
    cache = Cache({"v": "int"}, {"id": "", "v": ""}, {"v": "virtual", "id": "default"})
    found = cache.table_map(V)
    assert [(c.name, c.virtual, c.default) for c in found.columns] == [
        ("id", False, True),
        ("v", True, False),
    ]
    assert cache.looks == 0


@pytest.mark.parametrize("traits", [None, {}])
def test_what_has_been_read_counts_until_a_statement_may_have_changed_it(
    traits: Mapping[str, str] | None,
) -> None:
    cache = Cache({"v": "int"}, {"id": "", "v": "virtual"}, traits)
    assert cache.virtual(V) == ({"v"} if traits is None else set())
    cache.catalog = {"id": "", "v": "" if traits is None else "virtual"}
    assert cache.virtual(V) == ({"v"} if traits is None else set())
    cache.forget_traits(T)
    assert cache.virtual(V) == (set() if traits is None else {"v"})


def test_the_catalog_is_asked_about_a_new_column_alone() -> None:
    cache = Cache({"v": "int"}, {"id": "", "v": "", "w": "virtual"}, {"v": "virtual"})
    assert cache.virtual(V, W) == {"v", "w"}
    assert cache.virtual(V, W) == {"v", "w"}
    assert cache.looks == 1


def test_a_column_that_the_catalog_lacks_is_what_it_was_even_after_a_statement() -> None:
    cache = Cache({"v": "int"}, {"id": ""}, {"v": "virtual"})
    cache.forget_traits(T)
    assert cache.virtual(V) == {"v"}


def test_a_table_that_the_catalog_lacks_is_asked_for_again() -> None:
    cache = Cache({"v": "int"}, {})
    assert cache.virtual(V) == set()
    cache.catalog = {"id": "", "v": "virtual"}
    assert cache.virtual(V) == {"v"}


def test_a_column_that_comes_is_none_that_only_a_former_table_of_the_name_had() -> None:
    """The layout that landed last is a former table's, whose place a check has seen another one take."""
    cache = Cache({"a": "binary(16)", "b": "int"}, {"a": "uuid", "B": "virtual"}, {})
    cache.forget_columns(T, ("A", "v"), (("v", "B"),))
    assert cache.types(binary("a", 16)) == {"a": "uuid"}
    assert cache.virtual(Col("B", 3, unsigned=False)) == {"B"}


def test_a_binary_is_none_of_what_a_former_table_of_the_name_had() -> None:
    columns = {"a": "binary(16)", "v": "varbinary(12)", "u": "uuid", "k": "varchar(12)"}
    traits = traits_of({name: NotedColumn.of(type_) for name, type_ in columns.items()}, ())
    assert traits == {name: type_ for name, type_ in columns.items() if name != "k"}
    cache = Cache({"a": "uuid", "v": "vector", "u": "inet6"}, {}, traits)
    shown = [binary("a", 16), Col("v", 15, b"\x0c\0", collation=BINARY), binary("u", 16)]
    assert cache.types(*shown) == {"a": "binary(16)", "v": "varbinary(12)", "u": "uuid"}


def test_the_end_of_versions_is_the_column_that_it_was() -> None:
    end = Col("e", 17, b"\x06")
    cache = Cache({"e": "timestamp(6)"}, {"id": "", "e": ""}, {"e": "row_end"})
    assert (cache.table_map(end, key=(0, 1)).row_end, cache.table_map(end, key=(0, 1)).key) == ("e", ("id",))
    cache.forget_traits(T)
    assert cache.table_map(end, key=(0, 1)).row_end is None


def test_the_end_of_versions_is_none_that_only_a_former_table_of_the_name_had() -> None:
    before, after = Col("e", 17, b"\x06"), Col("f", 17, b"\x06")
    cache = Cache({"e": "timestamp(6)"}, {"id": "", "f": "row_end"}, {"e": "row_end"})
    assert cache.table_map(before, key=(0, 1)).row_end == "e"
    cache.forget_traits(T)  # DROP TABLE, CREATE TABLE
    assert (cache.table_map(after, key=(0, 1)).row_end, cache.table_map(after, key=(0, 1)).key) == (
        "f",
        ("id",),
    )


def test_the_end_of_versions_is_none_that_the_table_has_later() -> None:
    """The catalog is asked for a hidden column, which it never shows."""
    end, hash_ = Col("e", 17, b"\x06"), Col("DB_ROW_HASH_1", 8, unsigned=True)
    cache = Cache({"e": "timestamp(6)"}, {"f": "row_end", "id": ""}, {"e": "row_end"})
    assert cache.table_map(end, hash_, key=(0, 1)).row_end == "e"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_column_that_comes_back_is_none_that_a_former_table_of_the_name_had(*, ahead: bool) -> None:
    """The catalog tells what it is; also if it had the column already when the log did not."""
    cache = Cache({"v": "uuid"}, {"id": "", "w": ""}, {"v": "uuid"})
    v, w = binary("v", 16), W
    assert cache.types(v)["v"] == "uuid"
    cache.forget_traits(T)  # DROP TABLE, CREATE TABLE
    cache.catalog = {"id": "", "w": "", **({"v": "inet6"} if ahead else {})}
    cache.types(w)
    cache.catalog = {"id": "", "w": "", "v": "binary(16)"}
    assert cache.types(w, v)["v"] == "binary(16)"


def test_traits_are_the_words_from_which_a_column_is_made_again() -> None:
    columns = {
        "id": NotedColumn("uuid", virtual=False, default=True),
        "d": NotedColumn("int(11)", virtual=False, default=True, stored=True),
        "v": NotedColumn("vector(3)", virtual=True),
        "e": NotedColumn("timestamp(6)", virtual=False, row_end=True),
    }
    traits = traits_of(columns, {"id"})
    assert traits == {"id": "uuid default", "v": "vector(3) virtual", "e": "row_end"}
    assert NotedColumn.of(traits["v"]) == columns["v"]
    assert NotedColumn.of(traits["id"]) == columns["id"]


@pytest.mark.parametrize("shown", ["u", "U"])
def test_a_table_that_the_log_names_otherwise_than_the_catalog_does_not_land_under_the_logs_name(
    shown: str,
) -> None:
    """lower_case_table_names = 2: the log has the changes of d.U as d.u's."""
    cache = Cache({}, {}, exists={TableName("d", shown)}.__contains__)
    body = table_map(8, [ID], key=[0]).replace(b"\1t\0", b"\1u\0", 1)
    assert (cache.resolve(body).schema is not None) == (shown == "u")
    assert cache.resolve(table_map(7, [ID], key=[0])).schema is not None  # d.t, which has landed
