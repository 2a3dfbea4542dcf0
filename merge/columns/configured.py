"""Checks the tables' sections of a configuration against the tables that have landed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.manifest import Manifest
from connector.schema import TableName

log = logging.getLogger(__name__)

_WARNED: set[TableName] = set()


def check_new_lake(
    config: Config, manifest: Manifest, placeless: Mapping[TableName, ConfigurationError]
) -> None:
    """Refuse to begin a lake if sections hide key columns, or name shapes that have no place.

    `placeless`: these shapes, and why. `ConfigurationError` with all problems: nothing is written yet. Later,
    a key may have changed at the source, or a table been added, which stops that table (`Projection.schema`)
    or that shape alone.
    """
    misfits = {name: config.table(name).misfit_of_key(table.key) for name, table in manifest.tables.items()}
    wrong = sorted((name, misfit) for name, misfit in misfits.items() if misfit)
    hints = [f"change {', '.join(name.section for name, _ in wrong)} in the configuration"] if wrong else []
    problems = [*(f"{name}: {misfit}" for name, misfit in wrong), *map(str, placeless.values())]
    if problems:
        hints += [each.hint for each in placeless.values() if each.hint is not None]
        raise ConfigurationError("\n".join(problems), hint="; ".join(hints))


def warn_of_unused(config: Config, tables: Collection[TableName]) -> None:
    """Log once which tables with a projection are not among those captured: perhaps misspelled."""
    for table in config.tables.keys() - set(tables) - _WARNED:
        if config.table(table).narrows:
            _WARNED.add(table)
            log.warning("%s masks, leaves out and filters nothing: no such table is captured", table.section)
