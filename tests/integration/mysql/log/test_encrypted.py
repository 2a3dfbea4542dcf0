"""A binary log that the server encrypts in its files: a reader gets it in plain, wherever it begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.demo.servers.mariadb import MariadbServer, find_programs
from connector.source import ResumePoint
from tests.support.servers.mysql_database import MysqlDatabase, fresh_database
from tests.support.source.mysql_source import read_all, source_of
from tests.support.source.reading import following, opened, ops


@pytest.fixture
def encrypted(servers_folder: Path) -> Iterator[MysqlDatabase]:
    if find_programs() is None:
        pytest.skip("MariaDB is not installed")
    keys = servers_folder / "encryption-keys"
    keys.write_text(f"1;{'ab' * 32}\n")
    settings = {
        "plugin-load-add": "file_key_management",
        "file-key-management-filename": str(keys),
        "encrypt-binlog": "ON",
    }
    with (
        MariadbServer.start(servers_folder / "encrypted", settings=settings) as server,
        fresh_database(server, "encrypted") as database,
    ):
        yield database


def test_an_encrypted_log_is_read_from_any_position(encrypted: MysqlDatabase) -> None:
    encrypted.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = source_of(encrypted)
    with following(source) as log:
        encrypted.execute(
            "INSERT INTO t VALUES (1, 'plain words')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')"
        )
        assert ops(read_all(encrypted, log), "id", "v") == [("insert", 1, "plain words"), ("insert", 2, "b")]
        position = log.position
    with opened(source, ResumePoint(position, ())) as log:
        encrypted.execute("INSERT INTO t VALUES (3, 'c')")
        assert ops(read_all(encrypted, log), "id") == [("insert", 3)]
    assert isinstance(encrypted.server, MariadbServer)
    files = list(encrypted.server.data_dir.glob("binlog.0*"))
    assert len(files) == 2
    assert not any(b"plain words" in file.read_bytes() for file in files)
