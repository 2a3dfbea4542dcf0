"""Which archive of Java's classes a session uses, and that it appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from connector.errors import PreconditionError
from merge.spark.class_archive import archiving, find_archive, with_archive
from merge.spark.gateway import Ended
from merge.spark.session import S3Settings, local_settings, main

MADE_BY = "-XX:ArchiveClassesAtExit="
WELL = Ended(True, "")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    return install(tmp_path / "java", "17.0.15", monkeypatch)


def install(home: Path, release: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    home.mkdir(exist_ok=True)
    (home / "release").write_text(f'IMPLEMENTOR="Some"\nJAVA_VERSION="{release}"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def make(
    content: bytes | None = b"classes", ended: Ended = WELL, meanwhile: Callable[[], None] | None = None
) -> None:
    """Make an archive, where Java writes this at its end; None: nothing. `meanwhile`: after that."""
    written: list[Path] = []

    before = find_archive()

    def end_java() -> Ended:
        assert find_archive() == before, "it appears once it is whole"
        if content is not None:
            written[0].write_bytes(content)
        if meanwhile is not None:
            meanwhile()
        return ended

    with archiving(end_java) as option:
        assert with_archive(option) == option, "Java makes none of a session that uses one"
        written.append(Path(option.strip("'").removeprefix(MADE_BY)))


def test_an_archive_is_used_once_java_has_written_it_whole(java: Path) -> None:
    assert with_archive("-Xmx1g") == "-Xmx1g"
    make()
    found = find_archive()
    assert found is not None
    assert found.read_bytes() == b"classes"
    assert [path.name for path in found.parent.iterdir()] == [found.name]
    assert with_archive("-Xmx1g") == f"'-XX:SharedArchiveFile={found}' -Xmx1g", "the path has a space"
    options = local_settings("test", s3=S3Settings())["spark.driver.extraJavaOptions"]
    assert str(found) in options


def test_one_that_lost_its_end_is_not_used_and_makes_way_for_the_next(java: Path) -> None:
    make(b"many classes")
    damaged = find_archive()
    assert damaged is not None
    damaged.write_bytes(b"many")  # a machine that lost power
    assert with_archive("-Xmx1g") == "-Xmx1g"
    make(b"other classes")
    found = find_archive()
    assert found is not None
    assert list(found.parent.iterdir()) == [found]


def test_none_is_used_of_another_java_or_another_class_path(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    with monkeypatch.context() as changed:
        changed.setenv("SPARK_DIST_CLASSPATH", str(tmp_path / "more.jar"))
        assert find_archive() is None
    with monkeypatch.context() as changed:
        install(java, "17.0.16", changed)
        assert find_archive() is None
    install(java, "17.0.15", monkeypatch)
    assert find_archive() is not None
    install(tmp_path / "other", "17.0.15", monkeypatch)
    assert find_archive() is None


def test_nothing_is_left_where_java_fails(java: Path, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no class archive; its last output: non-empty directory"):
        make(None, Ended(True, "non-empty directory"))
    with pytest.raises(KeyboardInterrupt), archiving(lambda: WELL):
        raise KeyboardInterrupt
    assert list((tmp_path / "the cache" / "deltatide").iterdir()) == []


def test_java_that_is_too_old_is_named(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("1.8.0_412", "11.0.2"):
        install(java, release, monkeypatch)
        with pytest.raises(PreconditionError, match="needs Java 17"):
            make()
    (java / "release").unlink()
    with pytest.raises(PreconditionError, match="needs Java 17"):
        make()


def test_what_java_was_writing_when_it_was_killed_takes_no_archives_place(java: Path) -> None:
    """It was kept under its own size, as if it were whole, and a whole one removed."""
    make()
    before = find_archive()
    with pytest.raises(PreconditionError, match="killed"):
        make(b"cla", Ended(False, ""))
    assert find_archive() == before


def test_of_two_that_are_made_at_once_the_last_one_stays(java: Path) -> None:
    """Each removed the other's."""
    last: list[Path] = []

    def made_later() -> None:
        make(b"others")
        found = find_archive()
        assert found is not None
        last.append(found)
        os.utime(found, ns=(later := found.stat().st_mtime_ns + 10**9, later))

    make(meanwhile=made_later)
    assert last[0].exists()


def test_a_session_starts_without_an_archive_that_cant_be_looked_for(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    found = find_archive()
    assert found is not None
    found.unlink()
    found.symlink_to(found)  # any error of the file system
    assert with_archive("-Xmx1g") == "-Xmx1g"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert with_archive("-Xmx1g") == "-Xmx1g"
    with pytest.raises(PreconditionError, match="no home"):
        make()


def test_a_cache_that_cant_be_written_is_named(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert main(["--resolve", "--class-archive"]) == 1
    assert f"'{file}/deltatide'" in capsys.readouterr().err
