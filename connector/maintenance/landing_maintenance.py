"""Maintenance of the configured landing zone, for `deltatide maintain`: retention, then compaction."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from connector.config import Config
from connector.errors import ConfigurationError
from connector.landing.consumers import Consumer, forget, read_consumers
from connector.maintenance.compaction import Compaction, compact
from connector.maintenance.retention import (
    History,
    Horizon,
    Removal,
    RemovedMeanwhileError,
    horizon,
    remove_unneeded,
)
from connector.store.factory import open_store
from connector.store.protocol import Store

ATTEMPTS = 5
"""More concurrent runs than this never get ahead of one."""


@dataclass(frozen=True)
class LandingMaintenance:
    """What was done, or would be. `needed` is None if nothing has landed yet."""

    forgotten: list[Consumer] = field(default_factory=list)
    needed: Horizon | None = None
    removal: Removal = field(default_factory=Removal)
    compaction: Compaction = field(default_factory=Compaction)


def maintain_landing_zone(
    config: Config,
    *,
    dry_run: bool = False,
    forget_lake: str | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    stop: threading.Event | None = None,
    compaction_seconds: float = math.inf,
) -> LandingMaintenance:
    """Remove what nobody needs, then compact the rest.

    `forget_lake`: a lake's url, schema or id, or a streaming query (``stream NAME``), for which nothing is
    kept any longer. A forgotten lake that merges again needs a full dump, which it requests on its own; a
    forgotten query can't continue past what is removed. `progress` is called with what was done so far, the
    total, and the unit: manifests or blocks. After `compaction_seconds`, the rest of the compaction is left
    to the next run. `ConfigurationError` for an unknown lake; also raises what the store raises.
    """
    store = open_store(config.landing, config.source.name, patient=False)
    forgotten = [] if forget_lake is None else [_named(store, forget_lake)]
    if not dry_run:
        for consumer in forgotten:
            forget(store, consumer)
    retention, now = timedelta(days=config.landing.retention_days), datetime.now(timezone.utc)

    def attempt() -> LandingMaintenance:
        history = History.of(store)
        if history is None:
            return LandingMaintenance(forgotten)
        needed = horizon(history, retention, now, forgotten)
        count = needed.first - needed.oldest
        removal = remove_unneeded(
            history, needed, now=now, dry_run=dry_run, stop=stop,
            progress=lambda done: progress(done.manifests, count, "manifests to remove"),
        )  # fmt: skip
        compaction = compact(
            store, needed.first, needed.newest, dry_run=dry_run, stop=stop, seconds=compaction_seconds,
            progress=lambda done, of: progress(done, of, "blocks of manifests"),
        )  # fmt: skip
        return LandingMaintenance(forgotten, needed, removal, compaction)

    again = retry_if_exception_type(RemovedMeanwhileError)
    return Retrying(retry=again, stop=stop_after_attempt(ATTEMPTS), reraise=True)(attempt)


def check_lake(config: Config, name: str) -> None:
    """Raise `ConfigurationError` unless exactly one lake has this name; reads only the lakes' records."""
    _named(open_store(config.landing, config.source.name, patient=False), name)


def _named(store: Store, name: str) -> Consumer:
    consumers = read_consumers(store)
    found = [consumer for consumer in consumers if name.rstrip("/") in (consumer.title, consumer.id)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(f"{c.id} (manifest {c.manifest}, {c.at:%Y-%m-%d %H:%M}Z)" for c in found)
        raise ConfigurationError(f"several lakes are called {name}", hint=f"name one by its id: {ids}")
    known = ", ".join(consumer.title for consumer in consumers) or "none"
    raise ConfigurationError(f"no lake {name} merges from this landing zone", hint=f"lakes that do: {known}")
