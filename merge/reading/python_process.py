"""Opens the landing zone in one of Spark's Python processes, which run one task after another.

What such a process does beside a task costs more than what a live view has it do. Before each task, it reads
the directories of all archives of modules again, once for each package that was ever imported from them, and
after each, it collects garbage among the objects of all modules: together a tenth of a second, three times
for each query. Neither finds anything: Spark's own archives don't change, and modules are no garbage.
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING
from zipimport import zipimporter

from connector.store.factory import open_store

if TYPE_CHECKING:
    from connector.config import LandingConfig
    from connector.store.protocol import Store

WORKER = "pyspark.worker"
"""The program of such a process."""

ARCHIVES = ("pyspark.zip", "py4j-*.zip")
"""Spark's own. In others, a query of somebody else may have put new modules."""

_stores: dict[tuple[str, str], Store] = {}


def opened(config: LandingConfig, source: str) -> Store:
    """Return a source's part of the landing zone; in Spark's Python process, the same for all its tasks.

    A client for S3 takes longer to make than what it is made for.
    """
    if WORKER not in sys.modules:
        return open_store(config, source)
    key = (config.model_dump_json(), source)
    if key not in _stores:
        _stores[key] = open_store(config, source)
    _spare_modules()
    _forget_archives()
    return _stores[key]


@cache
def _spare_modules() -> None:
    """Keep the modules that are imported by now, once, from being searched for garbage."""
    gc.collect()  # else what is garbage by now would stay
    gc.freeze()


def _forget_archives() -> None:
    """Forget who finds modules in Spark's archives; who imports another one of them looks that up."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and any(map(PurePath(finder.archive).match, ARCHIVES)):
            del sys.path_importer_cache[path]
