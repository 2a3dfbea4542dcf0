"""Which archive of Java's classes a session uses, and that it appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.errors import PreconditionError
from merge.spark.class_archive import archiving, find_archive, with_archive
from merge.spark.session import S3Settings, local_settings

MADE_BY = "-XX:ArchiveClassesAtExit="


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    return install(tmp_path / "java", "17.0.15", monkeypatch)


def install(home: Path, release: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    home.mkdir(exist_ok=True)
    (home / "release").write_text(f'IMPLEMENTOR="Some"\nJAVA_VERSION="{release}"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def make(content: bytes | None = b"classes") -> None:
    """Make an archive, where Java writes this at its end; None: nothing."""
    written: list[Path] = []

    before = find_archive()

    def end_java() -> None:
        assert find_archive() == before, "it appears once it is whole"
        if content is not None:
            written[0].write_bytes(content)

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
    with pytest.raises(PreconditionError, match="has made no class archive"):
        make(None)
    with pytest.raises(KeyboardInterrupt), archiving(lambda: None):
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
