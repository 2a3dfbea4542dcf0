"""All tables' definitions at once: as each looked at by itself, whatever changed between two looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from connector.mysql import connection
from connector.mysql.definitions import foreign_keys, layouts
from connector.mysql.definitions.foreign_keys import Cascades, cascades_of
from connector.mysql.definitions.layouts import Definitions, layout_now
from connector.mysql.log.schema_cache import ResolvedLayout
from connector.mysql.server import find_server
from connector.schema import TableName
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of, source_of
from tests.support.source.postgres_source import table_settings

CHANGES = {
    "a column renamed": "ALTER TABLE t RENAME COLUMN v TO w",
    "a column added": "ALTER TABLE t ADD w int",
    "a column longer": "ALTER TABLE t MODIFY v varchar(21)",
    "a column moved": "ALTER TABLE t MODIFY v varchar(20) FIRST",
    "a comment": "ALTER TABLE t MODIFY v varchar(20) COMMENT 'x'",
    "a collation": "ALTER TABLE t MODIFY v varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "a character set": "ALTER TABLE t MODIFY v varchar(20) CHARACTER SET latin1",
    "a member": "ALTER TABLE t MODIFY e enum('a', '\N{PIG}', 'b')",
    "a member as another that looks the same": "ALTER TABLE t MODIFY e enum('a', '\N{COW}')",
    "the key's order": "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, a)",
    "the key's columns": "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
    "no key": "ALTER TABLE t DROP PRIMARY KEY",
    "a column of the configured key may be null": "ALTER TABLE u MODIFY k int",
    "no index of the configured key": "ALTER TABLE u DROP INDEX uq",
    "an index of another column": "ALTER TABLE u DROP INDEX uq, ADD UNIQUE uq (o)",
    "gone": "DROP TABLE t",
    "another one": "DROP TABLE t; CREATE TABLE t (a int PRIMARY KEY)",
}


@pytest.fixture
def session(mariadb: MysqlDatabase) -> Iterator[Connection[Any]]:
    with closing(connection.connect(mariadb.url, "test")) as opened:
        yield opened


def shown(layout: ResolvedLayout | None) -> tuple[Any, ...] | None:
    if layout is None:
        return None
    collations = [column.collation for column in layout.table_map.columns] if layout.table_map else []
    return *layout[:3], str(layout.problem), layout.comments, collations


@pytest.mark.parametrize("change", CHANGES)
def test_a_definition_that_changes_between_two_looks_is_seen(
    mariadb: MysqlDatabase, session: Connection[Any], change: str
) -> None:
    """Neither the log nor InnoDB's table ids show all of these; within a second, no time does either."""
    mariadb.execute(
        "CREATE TABLE t (a int, b int, v varchar(20), e enum('a', '\N{PIG}'), PRIMARY KEY (a, b))",
        "CREATE TABLE u (k int NOT NULL, o int NOT NULL, UNIQUE INDEX uq (k))",
    )
    tables = [TableName(mariadb.name, name) for name in ("t", "u")]
    settings, definitions = table_settings({f"{mariadb.name}.u": ["k"]}, None), Definitions()
    looks = []
    for statements in ("", CHANGES[change], ""):
        mariadb.changed_unseen(statements)
        found = definitions.read(session, tables, settings)
        looks.append({t: shown(found[t].layout) if t in found else None for t in tables})
        assert looks[-1] == {t: shown(layout_now(session, t, settings)) for t in tables}
    assert looks[0] != looks[1] == looks[2]


def test_a_definition_too_long_for_the_servers_packets_is_seen_to_change(mariadb: MysqlDatabase) -> None:
    """The server can't build its digits then, and a null instead of them would make any two equal."""
    members = [f"'{number:0250}'" for number in range(40)]
    (packet,) = mariadb.execute("SELECT @@global.max_allowed_packet")[0]
    mariadb.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, e enum({', '.join(members)}))",
        "SET GLOBAL max_allowed_packet = 16384",  # of sessions to come
    )
    try:
        session = connection.connect(mariadb.url, "test")
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {packet}")
    table, definitions = TableName(mariadb.name, "t"), Definitions()
    with closing(session):
        for last in ("a", "b"):
            mariadb.execute(f"ALTER TABLE t MODIFY e enum({', '.join(members)}, '{last}')")
            found = definitions.read(session, [table], {}).get(table)
            now = layout_now(session, table, {})
            assert found is None or shown(found.layout) == shown(now)
            assert now is not None
            assert f"'{last}'" in str(now.table_map)


def test_tables_whose_names_differ_in_case_or_accents_are_told_apart(
    mariadb: MysqlDatabase, session: Connection[Any]
) -> None:
    names = ("t", "T", "ť", "a-b.c`d")
    tables = [TableName(mariadb.name, name) for name in names]
    for number, name in enumerate(names):
        quoted = name.replace("`", "``")
        mariadb.execute(f"CREATE TABLE `{quoted}` (id int PRIMARY KEY, c{number} int)")
    definitions = Definitions()
    for _ in range(2):
        found = definitions.read(session, tables, {})
        assert {t: shown(d.layout) for t, d in found.items()} == {
            t: shown(layout_now(session, t, {})) for t in tables
        }
    assert definitions.read(session, tables[:1], {}).keys() == {tables[0]}


def test_looks_cost_no_more_queries_for_more_tables_and_read_only_what_changed(
    mariadb: MysqlDatabase, session: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, asked = Cursor.execute, list[str]()

    def counted(self: Any, statement: str, args: Any = None) -> Any:
        asked.append(statement)
        return execute(self, statement, args)

    source, counts = source_of(mariadb), []
    source.check()  # which opens sessions
    source.check_catalog()
    mariadb.execute("CREATE TABLE changing (id int PRIMARY KEY)")
    for first in (0, 5, 30):
        for number in range(first, first + 5):
            mariadb.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v int)")
        source.check_catalog()
        with monkeypatch.context() as patched:
            patched.setattr(Cursor, "execute", counted)
            asked.clear()
            source.check()
            source.tables()
            source.check_catalog()
            counts.append(len(asked))
    assert len(set(counts)) == 1
    mariadb.execute("ALTER TABLE changing ADD v int")
    monkeypatch.setattr(Cursor, "execute", counted)
    asked.clear()
    source.tables()
    details = [s for s in asked if "ordinal_position" in s and "GROUP_CONCAT" not in s]
    assert len(details) == 1
    assert b"changing".hex() in details[0]
    assert b"t30".hex() not in details[0]
    source.close()


def test_a_table_dropped_amid_a_look_is_in_no_result_and_hides_no_other(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = layouts.read_digests
    for amid in (layouts.COLUMNS, layouts.INDEXES):
        mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE gone (id int PRIMARY KEY)")
        source = source_of(mariadb)

        def dropping(session: Any, part: Any, tables: Any, amid: Any = amid) -> Any:
            if part is amid:
                mariadb.execute("DROP TABLE IF EXISTS gone")
            return read(session, part, tables)

        with monkeypatch.context() as patched:
            patched.setattr(layouts, "read_digests", dropping)
            listing = source.tables()
        assert ([s.table.name for s in listing.schemas], listing.unfit) == (["t"], [])
        mariadb.execute("DROP TABLE t")
        source.close()


@pytest.mark.every_release
def test_foreign_keys_are_found_for_all_tables_as_for_each_whatever_the_users_rights(
    mariadb: MysqlDatabase, session: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SELECT alone, MariaDB's information_schema shows none."""
    name = "c-é.`x"
    mariadb.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        f"CREATE TABLE `{name.replace('`', '``')}` (id int PRIMARY KEY, p int, q int, `r\ns` int,"
        " CONSTRAINT checked CHECK (id > 0), CONSTRAINT plain FOREIGN KEY (id) REFERENCES parent (id),"
        " CONSTRAINT `e\nf` FOREIGN KEY (`r\ns`) REFERENCES parent (id) ON DELETE NO ACTION"
        " ON UPDATE CASCADE,"
        " CONSTRAINT `a``b` FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE SET NULL,"
        " CONSTRAINT `c d` FOREIGN KEY (q) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE plain (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id))",
    )
    wanted: dict[str, list[str]] = {"parent": [], name: ["a`b", "c d", "e\nf"], "plain": []}
    silent = not mariadb.is_mysql or mariadb.is_old
    for url in (mariadb.url, reader_of(mariadb)):
        with closing(connection.connect(url, "test")) as opened:
            cascades = Cascades(opened, find_server(opened))
            tables = {each: TableName(mariadb.name, each) for each in wanted}
            assert {n: sorted(cascades_of(opened, t)) for n, t in tables.items()} == wanted
            found = {n: sorted(cascades.of(t)) for n, t in tables.items()}
            assert found == (wanted if silent else {each: [] for each in wanted})
            if silent and url == mariadb.url:  # what the list has is there, even if no name can be read
                with monkeypatch.context() as patched:
                    patched.setattr(foreign_keys, "_CASCADE", re.compile("(?!)"))
                    found = {n: cascades.of(t) for n, t in tables.items()}
                assert found == {"parent": [], name: ["of a name that can't be read"], "plain": []}


def test_a_foreign_key_added_between_two_looks_is_seen(mariadb: MysqlDatabase) -> None:
    """Without checks of foreign keys, it changes nothing else of its table, not even InnoDB's id."""
    mariadb.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, p int, KEY k (p))"
    )
    source, t = source_of(mariadb), TableName(mariadb.name, "t")
    add = "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE"
    assert t not in source.check_catalog().unfit
    mariadb.changed_unseen(f"SET foreign_key_checks = 0; {add}")
    seen = source.check_catalog().unfit
    if not mariadb.is_mysql:
        assert "(f) change rows without logging" in seen[t].reason
    mariadb.execute("ALTER TABLE t DROP FOREIGN KEY f")
    assert t not in source.check_catalog().unfit
    source.close()


def test_a_table_that_may_not_be_read_is_reported_and_no_other(mariadb: MysqlDatabase) -> None:
    mariadb.execute(*(f"CREATE TABLE {n} (id int PRIMARY KEY, v int)" for n in ("t", "one", "none", "u")))
    url = reader_of(mariadb)
    user = url.partition("//")[2].partition(":")[0]
    mariadb.execute(f"REVOKE SELECT ON `{mariadb.name}`.* FROM {user}")
    grants = {"t": "SELECT", "one": "SELECT (id)", "none": "INSERT", "u": "SELECT"}
    mariadb.execute(*(f"GRANT {right} ON `{mariadb.name}`.{n} TO {user}" for n, right in grants.items()))
    source = source_of(mariadb, url=url)
    states = {f.name: f.state for f in source.check()}
    assert {n: states[f"table {mariadb.name}.{n}"] for n in grants} == {
        "t": "ok", "one": "failed", "none": "failed", "u": "ok",
    }  # fmt: skip
    source.close()


@pytest.mark.only_mariadb
@pytest.mark.only_mysql
def test_foreign_keys_are_found_beside_defaults_that_are_no_text(
    mariadb: MysqlDatabase, session: Connection[Any]
) -> None:
    mariadb.execute(
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, b binary(2) DEFAULT X'FFFE',"
        " CONSTRAINT f FOREIGN KEY (id) REFERENCES p (id) ON DELETE CASCADE)",
    )
    assert cascades_of(session, TableName(mariadb.name, "t")) == ["f"]
