"""The demonstration's MariaDB and MySQL: which programs count, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.demo.servers import mariadb, mysql
from connector.demo.start import start_source
from connector.errors import PreconditionError


def put_mysqld(folder: Path, version: str) -> Path:
    program = folder / "mysqld"
    folder.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'mysqld  Ver {version} for Linux'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a fetched MySQL would be in; nothing is installed."""
    monkeypatch.setattr(mysql, "FETCHED", tmp_path / "fetched")
    monkeypatch.setattr(mysql, "SYSTEM", str(tmp_path / "system"))
    monkeypatch.setattr(mariadb, "find_programs", lambda _base=None: None)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path / "fetched"


def test_mariadbs_mysqld_is_not_mysql(fetched: Path, tmp_path: Path) -> None:
    put_mysqld(tmp_path / "path", "10.11.9-MariaDB")
    assert mysql.find_mysqld() is None
    ours = put_mysqld(fetched / "bin", "8.0.31")
    assert mysql.find_mysqld() == ours


def test_a_mysql_of_the_system_comes_before_a_fetched_one(fetched: Path, tmp_path: Path) -> None:
    put_mysqld(fetched / "bin", "8.0.31")
    installed = put_mysqld(tmp_path / "system", "8.4.3")
    assert mysql.find_mysqld() == installed


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize(("kind", "name"), [("mariadb", "MariaDB"), ("mysql", "MySQL")])
def test_without_a_server_it_is_said_what_to_install(tmp_path: Path, kind: str, name: str) -> None:
    with (
        pytest.raises(PreconditionError, match=f"no {name} server is installed") as raised,
        start_source(kind, tmp_path / "demo"),
    ):
        pass
    assert f"{kind}-server" in (raised.value.hint or "")
