"""What a Python process of Spark does beside its tasks is spared, and nobody else's process is touched."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

from connector.config import LandingConfig
from merge.reading import python_process
from merge.reading.python_process import WORKER, opened


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Import a module from an archive like Spark's, and one from somebody's; yield the archives' paths."""
    found = [str(tmp_path / name) for name in ("pyspark.zip", "theirs.zip")]
    for number, archive in enumerate(found):
        with ZipFile(archive, "w") as file:
            file.writestr(f"of_archive_{number}.py", "")
            file.writestr(f"more_of_archive_{number}.py", "")
        monkeypatch.syspath_prepend(archive)
        __import__(f"of_archive_{number}")
    yield found
    gc.unfreeze()
    for path in found:
        sys.path_importer_cache.pop(path, None)
    python_process._spare_modules.cache_clear()


def test_a_process_of_spark_searches_no_modules_again_and_keeps_its_store(
    archives: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, frozen = LandingConfig(url=str(tmp_path)), gc.get_freeze_count()
    assert opened(config, "shop") is not opened(config, "shop")
    assert gc.get_freeze_count() == frozen
    assert all(archive in sys.path_importer_cache for archive in archives)
    monkeypatch.setitem(sys.modules, WORKER, ModuleType(WORKER))
    monkeypatch.setattr(python_process, "_stores", {})
    assert opened(config, "shop") is opened(config, "shop") is not opened(config, "other")
    assert gc.get_freeze_count() > frozen + 1000
    assert [archive in sys.path_importer_cache for archive in archives] == [False, True]
    __import__("more_of_archive_0")
    assert archives[0] in sys.path_importer_cache
