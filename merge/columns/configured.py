"""Checks the tables' sections of a configuration against the tables that have landed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from connector.config import Config
from connector.errors import ConfigurationError
from connector.schema import TableName

log = logging.getLogger(__name__)

_WARNED: set[TableName] = set()


def check_keys(config: Config, keys: Mapping[TableName, Collection[str]]) -> None:
    """Raise `ConfigurationError` if sections mask or leave out key columns. `keys`: of the landed tables.

    For a lake that nothing has been written to: a mistake of the configuration. Later, a key may have changed
    at the source, or a table been added, which stops that table alone (`Projection.schema`).
    """
    misfits = {name: config.table(name).misfit_of_key(key) for name, key in keys.items()}
    if wrong := sorted((name, misfit) for name, misfit in misfits.items() if misfit):
        raise ConfigurationError(
            "\n".join(f"{name}: {misfit}" for name, misfit in wrong),
            hint=f"change {', '.join(name.section for name, _ in wrong)} in the configuration",
        )


def warn_of_unused(config: Config, tables: Collection[TableName]) -> None:
    """Log once which tables with a projection are not among those captured: perhaps misspelled."""
    for table in config.tables.keys() - set(tables) - _WARNED:
        if config.table(table).narrows:
            _WARNED.add(table)
            log.warning("%s masks, leaves out and filters nothing: no such table is captured", table.section)
