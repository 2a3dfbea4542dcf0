"""The least-privilege users of conf/security/, and verified TLS, on real MariaDB and MySQL servers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import pymysql
import pytest

from connector.demo.servers.mariadb import MariadbServer, find_programs
from connector.demo.servers.server_user import ServerUser
from connector.errors import DeltatideError, PreconditionError
from connector.mysql.connection import connect, rows
from connector.mysql.load.gauge import MysqlGauge
from connector.source import Finding
from tests.support.agent.captured import CapturedDatabase, landed_tables
from tests.support.servers.certificates import Authority
from tests.support.servers.mysql_database import MysqlDatabase, fresh_database
from tests.support.source.mysql_source import source_of
from tests.support.source.security import script

FLUSHED = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1"}


@pytest.fixture(scope="module")
def authority(servers_folder: Path) -> Authority:
    folder = servers_folder / "mysql-certificates"
    folder.mkdir()
    return Authority(folder, "authority")


@pytest.fixture(scope="module", name="secured-mariadb")
def secured_mariadb(servers_folder: Path, authority: Authority) -> Iterator[MariadbServer]:
    if find_programs() is None:
        pytest.skip("MariaDB is not installed")
    certificate, key = authority.issue("localhost")
    ServerUser.choose("mysql").own(key)
    settings = {"ssl-cert": str(certificate), "ssl-key": str(key), **FLUSHED}
    with MariadbServer.start(servers_folder / "secured-mariadb", settings=settings) as server:
        yield server


@pytest.fixture(scope="module", name="secured-mysql")
def secured_mysql(mysql_server: MariadbServer, authority: Authority) -> Iterator[MariadbServer]:
    """The shared server, with another certificate for as long as this module runs."""
    settings = {}
    files = (authority.certificate, *authority.issue("localhost"))
    for name, file in zip(("ssl_ca", "ssl_cert", "ssl_key"), files, strict=True):
        copy = mysql_server.data_dir / f"test-{file.name}"
        copy.write_bytes(file.read_bytes())
        mysql_server._user.own(copy)
        settings[name] = f"'{copy.name}'"
    server = MysqlDatabase(mysql_server, "")
    before = {name: server.execute(f"SELECT @@{name}")[0][0] for name in settings}

    def use(settings: Mapping[str, str]) -> None:
        assigned = (f"GLOBAL {name} = {value}" for name, value in settings.items())
        server.execute(f"SET {', '.join(assigned)}", "ALTER INSTANCE RELOAD TLS")

    use({**settings, **{name.replace("-", "_"): value for name, value in FLUSHED.items()}})
    yield mysql_server
    use({**{name: f"'{file}'" for name, file in before.items()}, "innodb_flush_log_at_trx_commit": "2"})


@dataclass(frozen=True)
class Shop:
    """A database with the agent's user, on a server whose certificate `authority` has signed."""

    database: MysqlDatabase
    authority: Authority
    user: str
    grants: list[str]

    def url(self, host: str = "localhost", **tls: str) -> str:
        plain = self.database.server.url(user=self.user, password="secret")
        settings = {"ssl_mode": "verify_identity", "ssl_ca": str(self.authority.certificate), **tls}
        return f"{plain.replace('127.0.0.1', host)}?{urlencode(settings)}"

    def problems(self) -> dict[str, Finding]:
        """What `check` finds that is not in order."""
        with closing(source_of(self.database, url=self.url())) as source:
            return {finding.name: finding for finding in source.check() if finding.state != "ok"}


@pytest.fixture(params=["mariadb", "mysql"])
def shop(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Shop]:
    server: MariadbServer = request.getfixturevalue(f"secured-{request.param}")
    with fresh_database(server, f"shop_{secrets.token_hex(4)}") as database:
        database.execute(
            "DROP DATABASE IF EXISTS deltatide",  # as on a server that no agent has used
            "CREATE TABLE orders (id int PRIMARY KEY, v text)",
            "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        )
        user = f"agent_{secrets.token_hex(4)}"
        statements = script(
            f"{request.param}.sql", {r"deltatide(?!\.)": user, "shop": _escaped(database.name)}
        )
        database.execute(*statements, f"ALTER USER {user} IDENTIFIED BY 'secret' ACCOUNT UNLOCK")
        yield Shop(database, authority, user, [s for s in statements if s.startswith("GRANT")])
        database.execute(f"DROP USER {user}")


def _escaped(name: str) -> str:
    """Return a database's name as the scripts ask for it: in a grant, ``_`` is any one character."""
    return name.replace("_", r"\_")


def test_the_user_reads_no_database_whose_name_looks_alike_and_may_have_any_password(shop: Shop) -> None:
    shop.database.execute(f"ALTER USER {shop.user} IDENTIFIED BY 'café, пароль'")
    url = shop.url().replace("secret", quote("café, пароль"))
    with (
        fresh_database(shop.database.server, shop.database.name.replace("_", "X")) as other,
        closing(connect(url, "test")) as connection,
    ):
        other.execute("CREATE TABLE salaries (id int PRIMARY KEY)")
        assert len(rows(connection, f"SELECT * FROM `{shop.database.name}`.orders")) == 2
        with pytest.raises(pymysql.OperationalError, match="denied"):
            rows(connection, f"SELECT * FROM `{other.name}`.salaries")


def test_the_user_captures_dumps_and_watches_over_verified_tls(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.problems() == {}
    tables = [f"{shop.database.name}.*"]
    captured = CapturedDatabase(shop.database, tmp_path, monkeypatch, url=shop.url(), tables=tables)
    with captured.running():
        captured.wait_settled()
        shop.database.execute(
            "UPDATE orders SET v = 'c' WHERE id = 2", "CREATE TABLE late (id int PRIMARY KEY)",
            "INSERT INTO late VALUES (7)",
        )  # fmt: skip
        captured.dump()
    landed = landed_tables(captured.store)
    assert {table.name: len(landed[table].events) for table in landed} == {"orders": 2, "late": 1}
    with closing(MysqlGauge(captured.config.source)) as gauge:
        assert "threads_running" in gauge.measure()
    assert shop.problems() == {}


def test_check_names_a_right_that_is_missing(shop: Shop) -> None:
    name = shop.database.name
    user = shop.user
    lost = {
        f"REVOKE REPLICATION SLAVE ON *.* FROM {user}": "rights",
        f"REVOKE BINLOG MONITOR ON *.* FROM {user}": "rights",
        f"REVOKE INSERT ON deltatide.* FROM {user}": "own table",
        f"REVOKE SELECT ON `{_escaped(name)}`.* FROM {user}": f"tables {name}.*",
    }
    if not shop.database.is_mysql:
        lost |= {f"REVOKE {r} ON *.* FROM {user}": n for r, n in MARIADB_RIGHTS.items()}
    for statement, finding in lost.items():
        shop.database.execute(statement)
        found = shop.problems()
        assert finding in found, statement
        if not finding.startswith("tables"):  # what can't be seen can't be named
            shop.database.execute((found[finding].fix or "").split(";")[0])
        shop.database.execute(*shop.grants)
        assert shop.problems() == {}, statement


MARIADB_RIGHTS = {"REPLICA MONITOR": "rights", "PROCESS": "process"}


@pytest.mark.parametrize(
    ("change", "problem", "hint"),
    [
        ({"ssl_ca": "other.crt"}, "certificate is refused", "set ssl_ca"),
        ({"host": "127.0.0.1"}, "mismatch", "host name of the server"),
    ],
)
def test_a_server_that_is_not_the_one_meant_is_refused(
    change: Mapping[str, str], problem: str, hint: str, shop: Shop, tmp_path: Path
) -> None:
    Authority(tmp_path, "other")
    given = {name: str(tmp_path / value) if name == "ssl_ca" else value for name, value in change.items()}
    with pytest.raises(DeltatideError) as refused:
        connect(shop.url(**given), "test")
    assert isinstance(refused.value, PreconditionError), "no retry would help"
    assert problem in str(refused.value)
    assert hint in (refused.value.hint or "")
    with pytest.raises(PreconditionError, match="access denied"):  # the user needs TLS
        connect(shop.url().partition("?")[0] + "?ssl_mode=disabled", "test")
