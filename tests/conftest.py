"""Servers and sessions shared by tests, each started on first use and stopped at the end of the run.

postgres    one PostgreSQL server; all versions: `parametrize("postgres", postgres_versions(), indirect=True)`
database    a database per test on it
mariadb     a database per test on a MariaDB server, and again on MySQL; skipped where there is none
tested      (acceptance) the same on PostgreSQL, MariaDB and MySQL
s3_server   an S3 server; s3: a bucket per test on it
spark       one local Spark session, with Delta, that reaches the S3 server;
            with `--spark-session=connect`, one on the connect_server, a Spark Connect server
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from connector.demo.servers.mariadb import INSTALL_HINT, MariadbServer, find_programs
from connector.demo.servers.mysql import MysqlServer
from connector.demo.servers.postgres import PostgresServer
from connector.demo.servers.server_user import ServerUser
from tests.support.servers import mysql_server as mysql_servers
from tests.support.servers.certificates import Authority
from tests.support.servers.connect_server import ConnectServer
from tests.support.servers.mysql_database import DURABLE_SETTINGS, MysqlDatabase
from tests.support.servers.mysql_database import fresh_database as fresh_mariadb
from tests.support.servers.mysql_server import ChrootedMysqlServer, find_root
from tests.support.servers.postgres import Database, PostgresServers, database_name, fresh_database
from tests.support.servers.s3_server import S3, S3Server
from tests.support.servers.server_programs import find_programs as find_server_programs
from tests.support.spark.spark_sessions import (
    QUICK_JAVA,
    QUICK_QUERIES,
    QUICK_START,
    comes_with_connect,
    connected,
    local_spark,
    served_at,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
FOLDER_MARKERS = ("spark", "integration", "acceptance")

os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # use our credentials or none, never the machine's
# No test needs the machine's certificate authorities, which each connection of PyMySQL takes 20 ms to load.
os.environ["SSL_CERT_FILE"] = os.devnull
# A busy machine is not a failure. `make soak` tries more examples.
for profile, examples in (("default", 50), ("soak", 500)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("default")

_numbers = itertools.count(1)

os.environ["JDK_JAVA_OPTIONS"] = QUICK_START
FURTHER_RELEASES = ("mariadb-11.4", "mysql-8.0")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the Spark tests run in a session of either kind."""
    kinds = ["classic", "connect"]
    parser.addoption("--spark-session", choices=kinds, default="classic", help="what the Spark tests run in")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder; deselect it on servers that it is not about."""
    left_out = [item for item in items if not _wanted(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.path.is_relative_to(TESTS):
            folder = item.path.relative_to(TESTS).parts[0]
            if folder in FOLDER_MARKERS:
                item.add_marker(folder)
        if config.getoption("spark_session") == "connect" and (
            mark := item.get_closest_marker("only_classic")
        ):
            item.add_marker(pytest.mark.skip(reason=f"not over Spark Connect: {mark.args[0]}"))
        server = _server_of(item)
        if server in ("mariadb", "mysql") and item.get_closest_marker(f"soak_on_{server}"):
            item.add_marker("soak")
        if server in FURTHER_RELEASES and item.path.parent.name != "codec":
            item.add_marker("soak")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run Spark tests beside those that wait for servers."""
    from tests.support.side_by_side import scheduler

    return scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once, with its last lines: a run that is ended early has said what failed."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        last = "\n".join(report.longreprtext.splitlines()[-12:])
        print(f"\nfailed in {report.when}: {report.nodeid}\n{last}", flush=True)


def _server_of(item: pytest.Item) -> str | None:
    """Return the server that a test runs on, if it is parametrized by server."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    server = parameters.get("mariadb") or parameters.get("tested") or parameters.get("servers")
    return server if isinstance(server, str) else None


def _wanted(item: pytest.Item) -> bool:
    """Return whether a test should run on its server."""
    server = _server_of(item)
    if server is None:
        return True
    kind = server.partition("-")[0]
    others = {"postgres", "mariadb", "mysql"} - {kind}
    only = {other for other in others if item.get_closest_marker(f"only_{other}")}
    if only and not item.get_closest_marker(f"only_{kind}"):
        return False
    return server not in FURTHER_RELEASES or item.get_closest_marker("every_release") is not None


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """Yield a folder that the servers' user can reach, unlike pytest's own when run as root."""
    folder = Path(tempfile.mkdtemp(prefix="deltatide-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_servers(servers_folder: Path) -> Iterator[PostgresServers]:
    """Yield the servers by major version."""
    with PostgresServers(servers_folder) as servers:
        yield servers


@pytest.fixture
def postgres(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> PostgresServer:
    """Return a server shared by all tests; indirect parametrization may choose another version."""
    return postgres_servers.get(getattr(request, "param", None))


@pytest.fixture
def database(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[Database]:
    """Yield a database named after the test; then drop it with its sessions and slots."""
    with fresh_database(postgres, database_name(request.node.name, next(_numbers))) as fresh:
        yield fresh


@pytest.fixture(scope="session")
def mariadb_server(servers_folder: Path) -> Iterator[MariadbServer]:
    """Start one MariaDB server shared by all tests."""
    if find_programs() is None:
        pytest.skip(f"MariaDB is not installed: {INSTALL_HINT}")
    with MariadbServer.start(servers_folder / "mariadb-server", settings=DURABLE_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server(servers_folder: Path) -> Iterator[MariadbServer]:
    """Start one MySQL server shared by all tests."""
    root = find_root()
    if root is None:
        pytest.skip("MySQL is not installed: .ci/fetch-servers makes .cache/mysql, as root, with debootstrap")
    with ChrootedMysqlServer.start(servers_folder / "mysql-server", base=root) as server:
        yield server


def _programs_or_skip(title: str, name: str, servers_folder: Path) -> Path:
    base = find_server_programs(name, servers_folder)
    if base is None:
        pytest.skip(f"{title} is not installed: .ci/fetch-servers makes .cache/{name}")
    return base


@pytest.fixture(scope="session", name="mariadb-11.4_server")
def newer_mariadb_server(servers_folder: Path) -> Iterator[MariadbServer]:
    """Start one MariaDB 11.4 server shared by all tests."""
    base = _programs_or_skip("MariaDB 11.4", "mariadb-11.4", servers_folder)
    folder = servers_folder / "newer-mariadb-server"
    # The certificate that it makes for itself costs 4 s of CPU at each start, and 60 ms at each connection.
    certificate, key = Authority(servers_folder, "newer-mariadb").issue("localhost")
    ServerUser.choose("mysql").own(key)
    settings = {**DURABLE_SETTINGS, "ssl-cert": str(certificate), "ssl-key": str(key)}
    with MariadbServer.start(folder, settings=settings, base=base) as server:
        yield server


@pytest.fixture(scope="session", name="mysql-8.0_server")
def older_mysql_server(servers_folder: Path) -> Iterator[MariadbServer]:
    """Start one MySQL 8.0 server shared by all tests."""
    base = _programs_or_skip("MySQL 8.0", "mysql-8.0", servers_folder)
    folder = servers_folder / "older-mysql-server"
    with MysqlServer.start(folder, settings=mysql_servers.SETTINGS, base=base) as server:
        yield server


@pytest.fixture(params=["mariadb", "mysql", *FURTHER_RELEASES])
def mariadb(request: pytest.FixtureRequest) -> Iterator[MysqlDatabase]:
    """Yield a database named after the test, once on MariaDB and once on MySQL.

    Tests marked `every_release` also run on the other releases of both: those of the codec always, others
    in make soak.
    """
    yield from _fresh(request, request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def mariadb_database(
    request: pytest.FixtureRequest, mariadb_server: MariadbServer
) -> Iterator[MysqlDatabase]:
    """Yield a database named after the test on MariaDB."""
    yield from _fresh(request, mariadb_server)


@pytest.fixture
def mysql_database(
    request: pytest.FixtureRequest, mysql_server: ChrootedMysqlServer
) -> Iterator[MysqlDatabase]:
    """Yield a database named after the test on MySQL."""
    yield from _fresh(request, mysql_server)


def _fresh(request: pytest.FixtureRequest, server: MariadbServer) -> Iterator[MysqlDatabase]:
    if not server.running:
        server.restart()
    with fresh_mariadb(server, database_name(request.node.name, next(_numbers))) as fresh:
        yield fresh


@pytest.fixture(scope="session")
def s3_server(servers_folder: Path) -> Iterator[S3Server]:
    """Start one S3 server that enforces conditional puts."""
    folder = servers_folder / "s3"
    folder.mkdir()
    with S3Server(folder) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> S3:
    """Return a fresh bucket."""
    return s3_server.s3.with_bucket(f"test-{next(_numbers)}")


@pytest.fixture(scope="session")
def connect_server(servers_folder: Path, s3_server: S3Server) -> Iterator[ConnectServer]:
    """Start one Spark Connect server, with the settings of the tests' local session."""
    pytest.importorskip("pyspark")
    pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
    from merge.spark.session import local_settings

    if not comes_with_connect():
        pytest.skip("this release of Spark has no Spark Connect of its own")
    settings = local_settings("deltatide-tests", s3=s3_server.s3, java_options=QUICK_JAVA)
    with ConnectServer(servers_folder, {**settings, **QUICK_QUERIES}) as server:
        yield server


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Start one session: a local one, or one on the Spark Connect server; s3a paths go to the S3 server."""
    pytest.importorskip("pyspark")
    if request.config.getoption("spark_session") == "connect":
        with connected(request.getfixturevalue("connect_server").url) as session:
            yield session
        return
    s3_server: S3Server = request.getfixturevalue("s3_server")
    with local_spark(s3_server.s3) as session:
        yield session


@pytest.fixture(scope="session")
def spark_url(spark: SparkSession, request: pytest.FixtureRequest) -> str:
    """Return the session's address for commands: they need no Java process of their own, which costs most."""
    if request.config.getoption("spark_session") == "connect":
        return request.getfixturevalue("connect_server").url
    return served_at(spark)
