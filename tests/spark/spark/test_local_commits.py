"""Delta commits in a local folder: of drivers that write one version of a table, one succeeds."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from merge.spark.log_store import LOCAL_CLASS, LOCAL_SETTINGS
from tests.support.spark.spark_sessions import CONNECT_MODE

HADOOPS_CLASS = "org.apache.hadoop.fs.local.LocalFs"
(SETTING,) = (name.removeprefix("spark.hadoop.") for name in LOCAL_SETTINGS)
DRIVERS, ENTRIES = 4, 5


class LogStore:
    """Delta's log store for local folders, with the session's settings and `changed` ones."""

    def __init__(self, spark: SparkSession, **changed: str) -> None:
        self._java: Any = spark._jvm
        self._conf = self._java.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        for name, value in changed.items():
            self._conf.set(name, value)
        self._store = self._java.io.delta.storage.HDFSLogStore(self._conf)

    def write(self, file: Path, lines: Sequence[str], *, overwrite: bool = False) -> bool:
        """Write a file; return False if it is there."""
        actions = self._java.java.util.ArrayList()
        for line in lines:
            actions.add(line)
        path = self._java.org.apache.hadoop.fs.Path(file.as_uri())
        try:
            self._store.write(path, actions.iterator(), overwrite, self._conf)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True


@pytest.fixture(autouse=True)
def classic() -> None:
    if os.environ.get(CONNECT_MODE):
        pytest.skip("the log store of a Spark Connect server can't be called from here")


def test_of_drivers_that_write_one_entry_of_a_log_one_succeeds(spark: SparkSession, tmp_path: Path) -> None:
    together, store = threading.Barrier(DRIVERS), LogStore(spark)

    def write(driver: int) -> list[bool]:
        written = []
        for entry in range(ENTRIES):
            together.wait(60)
            written.append(store.write(tmp_path / f"{entry:020}.json", [f"by {driver}"]))
        return written

    with ThreadPoolExecutor(DRIVERS) as threads:
        written = list(threads.map(write, range(DRIVERS)))
    for entry in range(ENTRIES):
        (winner,) = (driver for driver in range(DRIVERS) if written[driver][entry])
        assert (tmp_path / f"{entry:020}.json").read_text() == f"by {winner}\n"
    assert not list(tmp_path.glob(".*.tmp*")), "what a driver could not commit stays"


def test_a_file_that_comes_after_the_look_for_it_is_not_overwritten(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A link to nothing stands for it: Hadoop's look finds no file, so its rename puts another there."""
    for class_, is_overwritten in ((LOCAL_CLASS, False), (HADOOPS_CLASS, True)):
        entry = tmp_path / f"{class_}.json"
        entry.symlink_to("nothing")
        assert LogStore(spark, **{SETTING: class_}).write(entry, ["a"]) == is_overwritten
        assert entry.is_symlink() != is_overwritten


def test_files_are_as_hadoops_own_class_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    written = {}
    for class_ in (LOCAL_CLASS, HADOOPS_CLASS):
        folder = tmp_path / class_
        folder.mkdir()
        store = LogStore(spark, **{SETTING: class_, "fs.permissions.umask-mode": "027"})
        assert store.write(folder / "0.json", ["a", "b"])
        assert not store.write(folder / "0.json", ["c"])
        assert store.write(folder / "_last", ["a"])
        assert store.write(folder / "_last", ["b" * 2000], overwrite=True)
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            store.write(folder / "missing" / "0.json", ["a"])
        written[class_] = {
            file.name: (oct(file.stat().st_mode), file.read_bytes()) for file in folder.iterdir()
        }
    assert written[LOCAL_CLASS] == written[HADOOPS_CLASS]
    assert oct(0o100640) in {mode for mode, _ in written[LOCAL_CLASS].values()}
