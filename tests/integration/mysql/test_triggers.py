"""Triggers that change what virtual columns are made of, for which MariaDB logs former values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from connector.landing.manifest import TableState
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import DumpRequest, submit
from connector.mysql.log.transaction import ShownByLog
from connector.mysql.source import MysqlSource
from connector.schema import TableName
from connector.source import Finding
from connector.store.local import LocalStore
from tests.support.agent.mysql_agents import agent, is_equal, short_waits, wait_caught_up
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import reader_of, source_of, user_of
from tests.support.waiting import wait_until

__all__ = ["short_waits"]

pytestmark = [pytest.mark.only_mariadb, pytest.mark.every_release]

CHANGED = "may change what its virtual columns (v, w) are made of"
TABLES = ("made", "stamped", "after", "twice")


def create(mariadb: MysqlDatabase) -> None:
    """Create tables with virtual columns made of `a`, and triggers; two of them change it."""
    mariadb.execute(
        "CREATE TABLE beside (id int PRIMARY KEY)", "INSERT INTO beside VALUES (1)",
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY, a int, t varchar(9) COLLATE utf8mb4_bin, u int,"
            " v int AS (a + 1) VIRTUAL, w varchar(20) AS (concat(v, t)) VIRTUAL)"
            for name in TABLES
        ),
        *(f"INSERT INTO {name} (id, a, t) VALUES (1, 1, 'x')" for name in TABLES),
        "CREATE TRIGGER made_it BEFORE UPDATE ON made FOR EACH ROW SET NEW.A = NEW.a + 10",
        "CREATE TRIGGER stamped_it BEFORE UPDATE ON stamped FOR EACH ROW SET NEW.u = 5",
        "CREATE TRIGGER did BEFORE DELETE ON stamped FOR EACH ROW SET @a = OLD.a",
        "CREATE TRIGGER after_it AFTER UPDATE ON after FOR EACH ROW SET @a = NEW.a",
    )  # fmt: skip


def state_of(mariadb: MysqlDatabase, store: LocalStore, name: str) -> TableState:
    newest = newest_manifest(store)
    assert newest is not None
    return newest.tables[TableName(mariadb.name, name)]


def by_table(source: MysqlSource) -> dict[str, Finding]:
    """What `check` says of each table, by its bare name."""
    return {f.name.rpartition(".")[2]: f for f in source.check() if f.name.startswith("table ")}


def joined(name: str) -> str:
    return f"UPDATE beside STRAIGHT_JOIN {name} USING (id) SET {name}.a = 7"


@contextmanager
def with_triggers_in_the_log(mariadb: MysqlDatabase, url: str) -> Iterator[MysqlSource]:
    """A source whose log has shown that table t has triggers."""
    with closing(source_of(mariadb, url=url)) as source:
        source._shown = ShownByLog(triggering={TableName(mariadb.name, "t")})
        yield source


def reason_of(source: MysqlSource) -> str:
    """Why the only table that is unfit is."""
    (unfit,) = source.check_catalog().unfit.values()
    return unfit.reason


CHANGING = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, v int AS (a + 1) VIRTUAL)",
    "CREATE TRIGGER it BEFORE UPDATE ON t FOR EACH ROW SET NEW.a = NEW.a + 10",
)


def test_a_table_is_quarantined_as_soon_as_a_trigger_changes_what_a_virtual_column_is_made_of(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    """A stored function that first updates it plainly hides the other update from the log."""
    create(mariadb)
    mariadb.execute(
        "CREATE FUNCTION h() RETURNS int DETERMINISTIC BEGIN UPDATE twice SET a = 5;"
        f" {joined('twice')}; RETURN 1; END"
    )  # fmt: skip
    with closing(source_of(mariadb)) as source:
        found = by_table(source)
    assert {name for name, each in found.items() if each.state == "failed"} == {"made"}
    assert CHANGED in found["made"].detail
    with agent(mariadb, tmp_path) as store:
        wait_until(lambda: is_equal(mariadb, store, "twice"), "it was dumped", seconds=20)
        assert state_of(mariadb, store, "made").state == "quarantined"
        mariadb.execute(
            "CREATE TRIGGER twice_it BEFORE UPDATE ON twice FOR EACH ROW SET NEW.a = NEW.a + 10",
            "SELECT h()",
        )  # fmt: skip
        quarantined = lambda: state_of(mariadb, store, "twice").state == "quarantined"  # noqa: E731
        wait_until(quarantined, "it is quarantined", seconds=20)
        mariadb.execute(*map(joined, TABLES))
        for name in ("made", "twice"):
            state = state_of(mariadb, store, name)
            assert CHANGED in (state.reason or "")
            mariadb.execute((state.hint or "").partition("; ")[0])
            submit(store, DumpRequest(tables=[TableName(mariadb.name, name)]))
        wait_until(lambda: all(is_equal(mariadb, store, t) for t in TABLES), "all are equal", seconds=20)
        mariadb.execute(*map(joined, TABLES), "SELECT h()")
        wait_caught_up(mariadb, store)
        assert all(is_equal(mariadb, store, name) for name in TABLES)
        assert {state_of(mariadb, store, name).state for name in TABLES} == {"captured"}


def test_a_left_out_virtual_column_does_not_matter(mariadb: MysqlDatabase) -> None:
    create(mariadb)
    for settings, unfit in (
        ({"exclude_columns": ["W", "v"]}, False),
        ({"exclude_columns": ["w", "v"], "where": "v > 1"}, True),
        ({"exclude_columns": ["w"]}, True),
    ):
        with closing(source_of(mariadb, settings={f"{mariadb.name}.made": settings})) as source:
            assert bool(source.check_catalog().unfit) == unfit


def test_a_table_whose_triggers_may_not_be_seen_is_unfit_once_the_log_shows_some(
    mariadb: MysqlDatabase, tmp_path: Path
) -> None:
    create(mariadb)
    url = reader_of(mariadb)
    user = user_of(url)
    table = TableName(mariadb.name, "stamped")
    with closing(source_of(mariadb, url=url)) as source:
        found = by_table(source)
    assert {name: found[name].state for name in ("beside", *TABLES)} == {
        "beside": "ok", **dict.fromkeys(TABLES, "warning")
    }  # fmt: skip
    mariadb.execute(f"GRANT CREATE, SELECT, INSERT, UPDATE ON deltatide.* TO {user}")
    with agent(mariadb, tmp_path, url=url) as store:
        wait_until(lambda: is_equal(mariadb, store, "stamped"), "it was dumped", seconds=20)
        mariadb.execute(joined("stamped"))
        quarantined = lambda: state_of(mariadb, store, "stamped").state == "quarantined"  # noqa: E731
        wait_until(quarantined, "it is quarantined", seconds=20)
        hint = state_of(mariadb, store, "stamped").hint or ""
        mariadb.execute(hint.partition(" TO ")[0] + f" TO {user}")
        submit(store, DumpRequest(tables=[table]))
        wait_until(lambda: state_of(mariadb, store, "stamped").state == "captured", "it is captured")
        wait_until(lambda: is_equal(mariadb, store, "stamped"), "it was dumped again", seconds=20)


@pytest.mark.parametrize("grant", ["GRANT TRIGGER ON {}", "GRANT ALL PRIVILEGES ON {}"])
def test_a_right_to_see_triggers_is_known_from_grants_on_the_database(
    mariadb: MysqlDatabase, grant: str
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, v int AS (id + 1) VIRTUAL)")
    url = reader_of(mariadb)
    user = user_of(url)
    with with_triggers_in_the_log(mariadb, url) as source:
        (unfit,) = source.check_catalog().unfit.values()
        assert f"GRANT TRIGGER ON `{mariadb.name}`.`t`" in unfit.hint
        assert by_table(source)["t"].state == "warning"
        mariadb.execute(grant.format(f"`{mariadb.name}`.*") + f" TO {user}")
    with with_triggers_in_the_log(mariadb, url) as source:
        assert source.check_catalog().unfit == {}
        assert by_table(source)["t"].state == "ok"


@pytest.mark.parametrize("where", ["*.*", "`{}`.*", "`{}`.t"])
@pytest.mark.parametrize("by_role", [False, True])
def test_a_right_that_is_granted_while_a_session_is_open_shows_triggers_in_it(
    mariadb: MysqlDatabase, where: str, *, by_role: bool
) -> None:
    """SHOW GRANTS has it at once, where it does not count yet."""
    mariadb.execute(*CHANGING)
    url = reader_of(mariadb)
    user = grantee = user_of(url)
    mariadb.execute(f"GRANT CREATE, SELECT, INSERT, UPDATE ON deltatide.* TO {user}")
    if by_role:
        grantee = f"{user}_role"
        mariadb.execute(
            f"CREATE ROLE {grantee}",
            f"GRANT {grantee} TO {user}",
            f"SET DEFAULT ROLE {grantee} FOR {user}",
        )
    with with_triggers_in_the_log(mariadb, url) as source:
        assert "may not see them" in reason_of(source)
        mariadb.execute(f"GRANT TRIGGER ON {where.format(mariadb.name)} TO {grantee}")
        assert "BEFORE trigger it" in reason_of(source)
        if by_role:
            mariadb.execute(f"DROP ROLE {grantee}")
            assert "may not see them" in reason_of(source)


def test_a_right_on_a_database_of_the_same_name_in_other_case_shows_no_triggers(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute(*CHANGING)
    url = reader_of(mariadb)
    user = user_of(url)
    mariadb.execute(
        f"REVOKE SELECT ON `{mariadb.name}`.* FROM {user}",
        f"GRANT SELECT ON *.* TO {user}",
        f"GRANT TRIGGER ON `{mariadb.name.upper()}`.* TO {user}",
    )
    with with_triggers_in_the_log(mariadb, url) as source:
        assert "may not see them" in reason_of(source)
