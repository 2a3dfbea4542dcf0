"""A source as seen in its landing zone: the newest manifest, the lease, tables by name. For people.

The commands read it from the store; the agent's HTTP side reads the agent itself (`control.live_agent`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cached_property

from connector.config import Config, DumpConfig
from connector.errors import PreconditionError, RequestError
from connector.landing.consumers import Consumer, read_consumers
from connector.landing.layout_history import LayoutVersion, layout_history
from connector.landing.lease import AgentFigures, Holder, read_lease
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.landing.requests import Malformed, Request, read_pending
from connector.landing.verified import Verified, read_verified
from connector.schema import TableName
from connector.store.factory import open_store
from connector.store.protocol import Store


class SourceView:
    """The view of one source. Reads the landing zone again each time."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @cached_property
    def store(self) -> Store:
        """Return the source's part of the landing zone."""
        return open_store(self.config.landing, self.config.source.name, patient=False)

    @property
    def dump_config(self) -> DumpConfig:
        """Return the configured dump settings, which hold unless changed at run time."""
        return self.config.dump

    def newest(self) -> Manifest:
        """Return the newest manifest; `PreconditionError` if nothing has landed yet."""
        manifest = newest_manifest(self.store)
        if manifest is None:
            raise PreconditionError(
                f"{self.store.url} has no manifest yet", hint="start the agent first: deltatide run"
            )
        return manifest

    def lease(self) -> Holder | None:
        """Return the current or last holder of the lease."""
        return read_lease(self.store)

    def figures(self) -> AgentFigures:
        """Return the active agent's figures as of its last renewal."""
        lease = self.lease()
        return lease.status if lease is not None else AgentFigures()

    def lakes(self) -> list[Consumer]:
        """Return the lakes that merge from the landing zone, with their progress."""
        return read_consumers(self.store)

    def waiting_requests(self) -> list[Request | Malformed]:
        """Return the first requests that wait in the landing zone, some of which may have been taken."""
        return read_pending(self.store)

    def verified(self) -> list[Verified]:
        """Return what continuous verification has recorded of each lake that has it."""
        return read_verified(self.store)

    def layouts(self, table: str) -> list[LayoutVersion]:
        """Return a captured table's layouts, newest first; at least one.

        `RequestError` for an unknown table, and for one that never had a layout that can be captured.
        """
        manifest = self.newest()
        name = captured_name(table, manifest.tables)
        found = layout_history(self.store, manifest, name)
        if not found:
            state = manifest.tables[name]
            raise RequestError(
                f"{name} has never had a layout that could be captured: {state.reason}", hint=state.hint
            )
        return found


def captured_name(text: str, captured: Collection[TableName]) -> TableName:
    """Parse the name of a captured table; `RequestError` for any other, suggesting the nearest name."""
    try:
        name = TableName.parse(text)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if name not in captured:
        known = sorted(map(str, captured))
        near = difflib.get_close_matches(str(name), known, 1)
        meant = f"did you mean {near[0]}" if near else f"captured tables: {', '.join(known)}"
        raise RequestError(f"{name} is not a captured table", hint=meant)
    return name
