"""What a local session is started with."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from connector.errors import PreconditionError
from merge.spark import log_store_jar
from merge.spark.log_store import LOCAL_CLASS, LOCAL_SETTINGS
from merge.spark.session import S3Settings, local_settings


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own.jar"
    write_jar(path, LOCAL_CLASS)
    monkeypatch.setattr(log_store_jar, "JAR", path)
    return path


def write_jar(path: Path, class_: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{class_.replace('.', '/')}.class", b"")


def test_a_local_session_commits_to_local_folders_by_our_class(jar: Path) -> None:
    settings = local_settings("test", s3=None)
    assert settings["spark.jars"] == str(jar)
    assert LOCAL_SETTINGS.items() <= settings.items()


@pytest.mark.parametrize("given", ["--jars theirs.jar", "--conf spark.jars=theirs.jar"])
def test_jars_that_the_user_names_stay(given: str, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{given} pyspark-shell")
    settings = local_settings("test", s3=None)
    assert "spark.jars" not in settings
    assert not LOCAL_SETTINGS.items() & settings.items(), "commits to local folders would fail"
    assert "spark.jars" in local_settings("test", s3=S3Settings())


def test_so_do_those_in_sparks_file_of_defaults(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages a:b:1\n")
    assert "spark.jars" in local_settings("test", s3=None)
    (tmp_path / "spark-defaults.conf").write_text("spark.jars   theirs.jar\n")
    assert "spark.jars" not in local_settings("test", s3=None)


def test_a_session_starts_without_the_jar(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jar(jar, "deltatide.Former")
    assert not LOCAL_SETTINGS.items() & local_settings("test", s3=None).items()
    jar.write_bytes(jar.read_bytes()[:-1])
    assert not {"spark.jars", *LOCAL_SETTINGS} & local_settings("test", s3=None).keys()
    with pytest.raises(PreconditionError, match="is damaged"):
        local_settings("test", s3=S3Settings())
    jar.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(jar.parent))
    monkeypatch.setenv("JAVA_HOME", str(jar.parent / "no-java"))
    assert not {"spark.jars", *LOCAL_SETTINGS} & local_settings("test", s3=None).keys()
