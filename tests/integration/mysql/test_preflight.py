"""Every precondition on real servers: found when it does not hold, and fixed by the statement told."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from connector.demo.servers.mariadb import MariadbServer
from connector.errors import LogOffError
from connector.mysql import server
from connector.mysql.catalog import TableFacts, find_tables
from connector.mysql.connection import close, connect, query
from connector.mysql.definitions.layouts import RENAME
from connector.schema import TableName
from connector.source import Finding
from tests.support.servers.mysql_database import MysqlDatabase
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following
from tests.support.waiting import wait_until


def findings(
    mariadb: MysqlDatabase,
    tables: Sequence[str] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    url: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    partial_images: bool = False,
) -> dict[str, Finding]:
    source = source_of(mariadb, tables, keys, url=url, settings=settings, partial_images=partial_images)
    try:
        return {finding.name: finding for finding in source.check()}
    finally:
        source.close()


def fixed(found: Finding) -> str:
    assert found.fix is not None
    return found.fix.split(";")[0]


@pytest.fixture
def agent(mariadb: MysqlDatabase) -> Iterator[str]:
    """The url of a user without any right but to connect."""
    name = mariadb.name[-30:]
    mariadb.execute(f"CREATE USER `{name}` IDENTIFIED BY 'secret'")
    yield mariadb.server.url(user=name, password="secret")
    mariadb.execute(f"DROP USER `{name}`")


@pytest.mark.every_release
def test_a_fit_server_has_nothing_to_fix(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = findings(mariadb)
    assert found.pop("durability").state == "warning"  # the tests' servers flush little
    assert {f.state for f in found.values()} == {"ok"}
    assert found["version"].detail.startswith("MySQL " if mariadb.is_mysql else "MariaDB ")
    assert found[f"table {mariadb.name}.t"].detail == "can be captured"


@pytest.mark.parametrize(
    ("name", "bad", "state"),
    [
        ("binlog_format", "MIXED", "failed"),
        ("binlog_row_metadata", "MINIMAL", "failed"),
        pytest.param("binlog_order_commits", "OFF", "failed", marks=pytest.mark.only_mysql),
        pytest.param("binlog_error_action", "IGNORE_ERROR", "warning", marks=pytest.mark.only_mysql),
        ("binlog_row_image", "MINIMAL", "failed"),
        ("binlog_expire_logs_seconds", "3600", "warning"),
        ("innodb_flush_log_at_trx_commit", "0", "warning"),
    ],
)
def test_a_setting_that_does_not_fit_is_reported_with_what_fixes_it(
    mariadb: MysqlDatabase, name: str, bad: str, state: str
) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (before,) = mariadb.execute(f"SELECT @@GLOBAL.{name}")
    findings_of = {"binlog_expire_logs_seconds": "retention", "innodb_flush_log_at_trx_commit": "durability"}
    reported = findings_of.get(name, name)
    try:
        mariadb.execute(f"SET GLOBAL {name} = {bad}")
        found = findings(mariadb)[reported]
        assert found.state == state
        mariadb.execute(fixed(found))
        assert findings(mariadb)[reported].state == "ok"
    finally:
        value = before[0] if isinstance(before[0], int) else f"'{before[0]}'"
        mariadb.execute(f"SET GLOBAL {name} = {value}")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_partial_row_images_that_are_allowed_are_reported(mariadb: MysqlDatabase, image: str) -> None:
    name = "binlog_row_image"
    try:
        mariadb.execute(f"SET GLOBAL {name} = {image}")
        found = findings(mariadb)[name]
        assert (found.state, "source.allow_partial_row_images" in (found.fix or "")) == ("failed", True)
        found = findings(mariadb, partial_images=True)[name]
        assert (found.state, "merged by column" in found.detail) == ("warning", True)
    finally:
        mariadb.execute(f"SET GLOBAL {name} = FULL")


@pytest.mark.every_release
@pytest.mark.only_mariadb
def test_row_images_that_may_lack_virtual_columns_are_reported(mariadb: MysqlDatabase) -> None:
    try:
        mariadb.execute("SET GLOBAL binlog_row_image = FULL_NODUP")
    except pymysql.Error:
        pytest.skip("this release has no such image")
    try:
        found = findings(mariadb)["binlog_row_image"]
        assert (found.state, "virtual columns" in found.detail) == ("warning", True)
        mariadb.execute(fixed(found))
        assert findings(mariadb)["binlog_row_image"].state == "ok"
    finally:
        mariadb.execute("SET GLOBAL binlog_row_image = FULL")


@pytest.mark.only_mariadb
def test_a_server_that_would_run_triggers_of_its_own_as_a_replica_is_reported(mariadb: MysqlDatabase) -> None:
    name = "slave_run_triggers_for_rbr"
    assert name not in findings(mariadb)
    try:
        mariadb.execute(f"SET GLOBAL {name} = LOGGING")
        found = findings(mariadb)[name]
        assert (found.state, "virtual columns" in found.detail) == ("warning", True)  # it is no replica
        mariadb.execute(fixed(found))
        assert name not in findings(mariadb)
    finally:
        mariadb.execute(f"SET GLOBAL {name} = NO")


@pytest.mark.every_release
@pytest.mark.only_mariadb
def test_a_limit_on_the_size_of_the_log_is_reported(mariadb: MysqlDatabase) -> None:
    name = "binlog_space_limit"
    if not mariadb.execute(f"SHOW VARIABLES LIKE '{name}'"):
        pytest.skip("this release has none")
    assert name not in findings(mariadb)
    mariadb.execute(f"SET GLOBAL {name} = 1000000000")
    try:
        found = findings(mariadb)[name]
        assert found.state == "warning"
        mariadb.execute(fixed(found))
        assert name not in findings(mariadb)
    finally:
        mariadb.execute(f"SET GLOBAL {name} = 0")


def test_a_replica_under_the_agents_own_server_id_is_reported(mariadb: MysqlDatabase) -> None:
    ours = int(findings(mariadb)["server_id"].detail.rpartition(" ")[2])
    with following(source_of(mariadb)) as log:  # another agent of this name gives way, and is no mistake
        log.read(0.1, 1 << 20)
        assert findings(mariadb)["server_id"].state == "ok"
    with mariadb.connect() as other:
        body = struct.pack("<IB", ours, 5) + b"elses" + b"\0\0" + struct.pack("<HII", 3306, 0, 0)
        other._execute_command(0x15, body)
        other._read_ok_packet()
        found = findings(mariadb)["server_id"]
        assert (found.state, "replica elses" in found.detail) == ("failed", True)
        assert "another source.name" in fixed(found)
    assert findings(mariadb)["server_id"].state == "ok"


def test_virtual_columns_that_depend_on_the_session_are_reported(mariadb: MysqlDatabase) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp, text varchar(19) AS (cast(at AS char)) VIRTUAL,"
        " more varchar(50) AS (concat(text, id)) VIRTUAL, twice int AS (id * 2) VIRTUAL)",
        "CREATE TABLE u (id int PRIMARY KEY, at datetime, text varchar(40) AS (cast(at AS char)) VIRTUAL)",
    )
    found = findings(mariadb)
    finding = found[f"table {mariadb.name}.t"]
    assert (finding.state, "(text, more)" in finding.detail) == ("warning", True)
    assert found[f"table {mariadb.name}.u"].state == "ok"


UNCERTAIN = {
    "day": "dayname(d)",
    "month": "concat('/', monthname(d))",
    "named": "date_format(d, '%d/%M')",
    "by_format": "date_format(d, s)",
    "week": "week(d)",
    "week_of": "week(str_to_date(s, '%d,%m'), 1)",
    "extracted": "extract(week from d)",
    "share": "a / b",
    "made": "concat(a / b, '/')",
    "since": "cast(t as datetime)",
    "day_of_text": "cast(s as date)",
    "last": "last_day(s)",
    "counted": "from_days(a)",
    "secret": "hex(aes_encrypt(s, 'k'))",
    "later": "greatest(d, s)",
    "earlier": "least(a, d)",
    "least_of_literal": "least(s, date'2026-01-01')",
}
OF_MYSQL = {
    "year_of_text": "year(s)",
    "from_text": "extract(month from s)",
    "days": "datediff(s, d)",
    "text_again": "date_format(s, '%Y-%m-%d')",
    "is_later": "(a > b) and (s > d)",
    "is_before": "d <= s",
    "is_new": "s >= date'2026-01-01'",
    "is_old": "date'2026-01-01' > s",
}
OF_MARIADB = {
    "matches": "s regexp '^a.b'",
    "changed": "regexp_replace(s, 'a.b', 'c')",
    "release": "version()",
}
CERTAIN = {
    "numbers": "date_format(d, '%Y/%m-%d %H')",
    "week_by_mode": "week(d, 3)",
    "week_by_year": "yearweek(d)",
    "added": "d + interval 1 week",
    "whole": "a div b",
    "path": "concat('a/b''/', s, '`/\\\\')",
    "seconds": "time_to_sec(t)",
    "day_of_time": "date(d)",
    "quoted": "concat(`a/b`, 1)",
    "year_of_time": "year(d)",
    "greater": "greatest(a, b) + greatest(s, 'x')",
    "latest": "greatest(d, d + interval 1 day)",
    "is_past": "(d < d) or (s > 'd') or (a > b)",
    "is_past_text": "if(d > '2026-01-01', s, 'x')",
}


def test_virtual_columns_by_functions_that_depend_on_settings_are_reported_and_no_others(
    mariadb: MysqlDatabase,
) -> None:
    uncertain = UNCERTAIN | (OF_MYSQL if mariadb.is_mysql else OF_MARIADB)
    if mariadb.is_mysql:  # it writes the mode of the session that creates the table into it
        uncertain = {name: expression for name, expression in uncertain.items() if name != "week"}
    columns = [f"`{name}` varchar(99) AS ({each}) VIRTUAL" for name, each in {**CERTAIN, **uncertain}.items()]
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d datetime, t time, a int, b int, `a/b` int, s varchar(20),"
        f" {', '.join(columns)})"
    )
    finding = findings(mariadb)[f"table {mariadb.name}.t"]
    assert finding.detail.partition("(")[2].partition(")")[0].split(", ") == [*uncertain]


@pytest.mark.only_mariadb
def test_virtual_columns_that_the_row_image_leaves_out_are_reported(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, g int AS (id + 1) VIRTUAL)", "CREATE TABLE u LIKE t")
    mariadb.execute("ALTER TABLE u DROP g, ADD g int AS (id + 1) STORED")
    name = f"table {mariadb.name}.t"
    assert findings(mariadb)[name].state == "ok"
    try:
        mariadb.execute("SET GLOBAL binlog_row_image = NOBLOB")
        found = findings(mariadb)
        assert (found[name].state, "virtual columns (g)" in found[name].detail) == ("failed", True)
        assert found[f"table {mariadb.name}.u"].state == "ok"
        mariadb.execute(fixed(found[name]))
        assert findings(mariadb)[name].state == "ok"
    finally:
        mariadb.execute("SET GLOBAL binlog_row_image = FULL")


@pytest.mark.only_mysql
def test_partial_json_without_the_document_before_is_reported(mariadb: MysqlDatabase) -> None:
    name = "binlog_row_value_options"
    assert findings(mariadb)[name].detail == "is empty"
    try:
        mariadb.execute(f"SET GLOBAL {name} = PARTIAL_JSON")
        assert (findings(mariadb)[name].state, findings(mariadb)[name].detail[:15]) == (
            "ok",
            "is PARTIAL_JSON",
        )
        mariadb.execute("SET GLOBAL binlog_row_image = MINIMAL")
        found = findings(mariadb)[name]
        assert (found.state, "binlog_row_image is MINIMAL" in found.detail) == ("failed", True)
        mariadb.execute(fixed(found))
        assert findings(mariadb)[name].state == "ok"
    finally:
        mariadb.execute(f"SET GLOBAL {name} = ''", "SET GLOBAL binlog_row_image = FULL")


def test_tables_that_others_drop_and_rename_meanwhile_hinder_nothing(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE kept (id int PRIMARY KEY)")
    source, done = source_of(mariadb), threading.Event()

    def drop_and_rename() -> None:
        while not done.wait(0.05):
            mariadb.execute(
                "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b LIKE a", "RENAME TABLE a TO c",
                "DROP TABLE b, c",
            )  # fmt: skip

    thread = threading.Thread(target=drop_and_rename)
    thread.start()
    try:
        for _ in range(15):
            assert [f for f in source.check() if f.state == "failed"] == []
            listed = source.tables()
            assert not listed.unfit
            assert TableName(mariadb.name, "kept") in listed.existing
            assert not source.check_catalog().unfit
    finally:
        done.set()
        thread.join()
        source.close()


def found_once_unlocked(mariadb: MysqlDatabase, making: str, busy: set[TableName] | None) -> list[TableFacts]:
    """List the tables while a statement, held up in `{lock}` until it was listed, creates another one."""
    config, found = source_of(mariadb)._config, list[TableFacts]()
    session, holder = connect(mariadb.url, "test"), mariadb.connect()
    holder.cursor().execute(f"SELECT GET_LOCK('{mariadb.name}', 0)")

    def create() -> None:
        with contextlib.suppress(pymysql.err.IntegrityError):  # the statement may fail
            mariadb.execute(making.format(lock=f"GET_LOCK('{mariadb.name}', 60)"))

    creating = threading.Thread(target=create)
    looking = threading.Thread(target=lambda: found.extend(find_tables(session, config, busy)))
    creating.start()
    in_state = "SELECT 1 FROM information_schema.processlist WHERE state LIKE '{}%' AND info LIKE '{}%'"
    wait_until(lambda: mariadb.execute(in_state.format("User lock", "CREATE")), "the table is locked")
    query(session, "SET SESSION lock_wait_timeout = 3")
    looking.start()
    waiting = in_state.format("Waiting for table metadata lock", "SELECT 1 FROM `")
    wait_until(lambda: mariadb.execute(waiting), "it was listed without an engine, and is waited for")
    holder.close()
    creating.join()
    looking.join()
    close(session)
    return found


@pytest.mark.only_mariadb
def test_a_table_that_is_gone_once_it_is_unlocked_is_not_taken_for_a_broken_one(
    mariadb: MysqlDatabase,
) -> None:
    """MariaDB shows no engine. One that is created under its name meanwhile is a different one."""
    mariadb.execute("CREATE TABLE kept (id int PRIMARY KEY)")
    busy = set[TableName]()
    fails = "CREATE TABLE slow (id int PRIMARY KEY) SELECT 1 AS id, {lock} AS s UNION ALL SELECT 1, 1"
    found = found_once_unlocked(mariadb, fails, busy)
    assert [facts.table.name for facts in found] == ["kept"]
    assert not busy


@pytest.mark.only_mariadb
def test_what_kind_a_table_is_of_is_read_once_it_is_unlocked(mariadb: MysqlDatabase) -> None:
    """Until then, MariaDB calls each a base table: of one with versions, ids of all partitions counted."""
    making = "CREATE TABLE slow (id int PRIMARY KEY) WITH SYSTEM VERSIONING SELECT 1 AS id, {lock} AS s"
    found = found_once_unlocked(mariadb, making, None)
    assert [facts.kind for facts in found] == ["SYSTEM VERSIONED"]


@pytest.mark.every_release
def test_each_missing_right_is_reported_with_its_grant(mariadb: MysqlDatabase, agent: str) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name, formatted = f"{mariadb.name}.t", f"`{mariadb.name}`.`t`"
    found = findings(mariadb, url=agent)
    assert found["rights"].state == "failed"
    assert ("REPLICATION CLIENT" if mariadb.is_mysql else "BINLOG MONITOR") in fixed(found["rights"])
    assert found["own table"].state == "warning"
    assert ("gtid_executed" in found["own table"].detail) == mariadb.is_mysql
    assert found[f"tables {mariadb.name}.*"].state == "failed"  # nothing can be seen
    mariadb.execute(fixed(found["rights"]), fixed(found["own table"]))
    user = agent.partition("//")[2].partition(":")[0]
    mariadb.execute(f"GRANT INSERT ON {formatted} TO `{user}`")  # it can be seen now, and not be read
    found = findings(mariadb, url=agent)
    assert found["rights"].state == found["own table"].state == "ok"
    mariadb.execute(fixed(found[f"table {name}"]))
    if not mariadb.is_mysql:
        mariadb.execute(fixed(found["process"]))
    found = findings(mariadb, url=agent)
    del found["durability"]
    assert {f.state for f in found.values()} == {"ok"}
    with following(source_of(mariadb, url=agent)) as log:  # and it is enough to read the log
        log.read(0.1, 1 << 20)


@pytest.mark.only_mariadb
def test_whether_the_server_is_a_replica_must_be_seen(mariadb: MysqlDatabase, agent: str) -> None:
    """A replica that does not log what it applies would look like a quiet primary."""
    user = agent.partition("//")[2].partition(":")[0]
    mariadb.execute(f"GRANT BINLOG MONITOR, REPLICATION SLAVE ON *.* TO `{user}`")
    found = findings(mariadb, url=agent)["rights"]
    assert (found.state, "a replica" in found.detail) == ("failed", True)
    mariadb.execute(fixed(found))
    assert findings(mariadb, url=agent)["rights"].state == "ok"


@pytest.mark.parametrize(
    ("definition", "reason", "fix"),
    [
        ("(id int)", "no primary key", None),
        ("(id int PRIMARY KEY) ENGINE = MyISAM", "which has no snapshots", "ENGINE = InnoDB"),
    ],
)
def test_a_table_that_cannot_be_captured_is_reported(
    mariadb: MysqlDatabase, definition: str, reason: str, fix: str | None
) -> None:
    mariadb.execute(f"CREATE TABLE t {definition}", "CREATE TABLE u (id int PRIMARY KEY)")
    found = findings(mariadb)[f"table {mariadb.name}.t"]
    assert (found.state, reason in found.detail) == ("failed", True)
    if fix:
        assert fix in fixed(found)
        mariadb.execute(fixed(found).partition("; or")[0])
        assert findings(mariadb)[f"table {mariadb.name}.t"].state == "ok"
    assert findings(mariadb)[f"table {mariadb.name}.u"].state == "ok"


@pytest.mark.only_mariadb
def test_a_table_with_versions_of_its_rows_can_be_captured(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
    assert findings(mariadb)[f"table {mariadb.name}.t"].state == "ok"


def test_a_configured_key_needs_a_unique_index_that_is_never_null(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (a int NOT NULL, b int)")
    name = f"{mariadb.name}.t"
    assert "no column nope" in findings(mariadb, keys={name: ["nope"]})[f"table {name}"].detail
    found = findings(mariadb, keys={name: ["a", "b"]})[f"table {name}"]
    assert "no unique index" in found.detail
    mariadb.execute(fixed(found))
    found = findings(mariadb, keys={name: ["b", "a"]})[f"table {name}"]
    assert "may be null" in found.detail
    mariadb.execute("ALTER TABLE t MODIFY b int NOT NULL")
    assert findings(mariadb, keys={name: ["b", "a"]})[f"table {name}"].state == "ok"
    if mariadb.is_mysql:
        mariadb.execute("CREATE TABLE u (a int NOT NULL, b int NOT NULL, UNIQUE ((a + b), b), UNIQUE (a, b))")
    else:  # adds the end of the version to the index
        mariadb.execute(
            "CREATE TABLE u (a int NOT NULL, b int NOT NULL, s timestamp(6) GENERATED ALWAYS AS ROW START,"
            " e timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e), UNIQUE (a, b))"
            " WITH SYSTEM VERSIONING"
        )
    name = f"{mariadb.name}.u"
    assert findings(mariadb, keys={name: ["a", "b"]})[f"table {name}"].state == "ok"


def test_a_key_column_that_is_masked_is_warned_of_before_anything_lands(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    name = f"{mariadb.name}.t"
    found = findings(mariadb, settings={name: {"mask": {"ID": "null"}}})[f"table {name}"]
    assert (found.state, found.fix) == ("warning", f'change [tables."{name}"] in the configuration')
    assert found.detail.startswith("merges will refuse it: column 'id' is in the key")
    assert findings(mariadb, settings={name: {"columns": ["id"]}})[f"table {name}"].state == "ok"


@pytest.fixture(params=[1, 0])
def quoting(mariadb: MysqlDatabase, request: pytest.FixtureRequest) -> Iterator[None]:
    mariadb.execute(f"SET GLOBAL sql_quote_show_create = {request.param}")
    yield
    mariadb.execute("SET GLOBAL sql_quote_show_create = 1")


@pytest.mark.usefixtures("quoting")
def test_foreign_keys_that_change_rows_below_the_log_are_reported(mariadb: MysqlDatabase) -> None:
    reference = "FOREIGN KEY (p) REFERENCES parent (id)"
    mariadb.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        f"CREATE TABLE plain (id int PRIMARY KEY, p int, CONSTRAINT a {reference})",
        f"CREATE TABLE gone (id int PRIMARY KEY, p int, CONSTRAINT `b c` {reference} ON DELETE CASCADE)",
        f"CREATE TABLE nulled (id int PRIMARY KEY, p int, CONSTRAINT d {reference} ON UPDATE SET NULL)",
        "INSERT INTO parent VALUES (1), (2)", "INSERT INTO gone VALUES (1, 1)",
    )  # fmt: skip
    found = findings(mariadb)
    states = {
        name: found[f"table {mariadb.name}.{name}"].state for name in ("parent", "plain", "gone", "nulled")
    }
    with following(source_of(mariadb)) as log:  # what the log says of it decides whether it matters
        mariadb.execute("DELETE FROM parent WHERE id = 1")
        tables = {row["_table"].rpartition(".")[2] for row in read_all(mariadb, log)}
    wanted = "ok" if "gone" in tables else "failed"
    assert states == {"parent": "ok", "plain": "ok", "gone": wanted, "nulled": wanted}
    if wanted == "failed":
        reported = found[f"table {mariadb.name}.gone"]
        assert "(b c)" in reported.detail
        mariadb.execute(fixed(reported))
        assert findings(mariadb)[f"table {mariadb.name}.gone"].state == "ok"


def test_names_that_match_nothing_and_views_are_reported(mariadb: MysqlDatabase) -> None:
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE VIEW v AS SELECT * FROM t")
    name = mariadb.name
    found = findings(mariadb, [f"{name}.t", f"{name}.nope", f"{name}.v"], {f"{name}.other": ["id"]})
    assert found[f"tables {name}.nope"].state == "failed"
    assert found[f"table {name}.v"].state == "failed"
    assert found[f'[tables."{name}.other"]'].state == "warning"
    assert found[f"table {name}.t"].state == "ok"


def test_check_and_the_running_agent_find_a_table_with_a_name_of_ours_unfit_alone(
    mariadb: MysqlDatabase,
) -> None:
    mariadb.execute(
        "CREATE TABLE ours (id int PRIMARY KEY, `_Cdc.holds` int)", "CREATE TABLE t (id int PRIMARY KEY)"
    )
    found = findings(mariadb)
    reason = "its column _Cdc.holds has the name of our own column _cdc.holds"
    assert (found[f"table {mariadb.name}.ours"].detail, found[f"table {mariadb.name}.t"].state) == (
        reason,
        "ok",
    )
    source = source_of(mariadb)
    seen = source.check_catalog()
    source.close()
    assert {table.name: unfit.reason for table, unfit in seen.unfit.items()} == {"ours": reason}
    assert {table.name for table in seen.tables} == {"t"}


def test_a_server_without_a_log_is_reported(mariadb_server: MariadbServer, servers_folder: object) -> None:
    from pathlib import Path

    settings = {**mariadb_server.settings}
    del settings["log-bin"]
    with MariadbServer.start(Path(str(servers_folder)) / "no-log", settings={"skip-log-bin": ""}) as server:
        database = MysqlDatabase(server, "mysql")
        source = source_of(database, ["mysql.*"])
        with pytest.raises(LogOffError):
            source.ensure_logging()
        source.close()
        assert "rights" not in findings(database, ["mysql.*"])  # no grant would help


def test_a_table_that_the_log_names_otherwise_than_the_catalog_is_not_captured(
    mariadb: MysqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lower_case_table_names = 2, which a server refuses on a file system that has regard to case."""
    mariadb.execute("CREATE TABLE Orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    found_here = server.find_server
    monkeypatch.setattr(server, "find_server", lambda c: replace(found_here(c), keeps_case=True))
    found = findings(mariadb)
    assert found[f"table {mariadb.name}.items"].state == "ok"
    orders = found[f"table {mariadb.name}.Orders"]
    assert (orders.state, fixed(orders)) == ("failed", RENAME.split(";")[0])
    source = source_of(mariadb)
    try:
        assert [x.table.name for x in source.tables().unfit] == ["Orders"]
    finally:
        source.close()
