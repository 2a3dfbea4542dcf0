"""The manifests of a landing zone, as plans of merges read them, for whoever plans without Spark.

Invariant: what was read once is the same for the life of a reader; of a compacted block, its record was read
with the manifest that ends the block. Readers as of the same time (`AsOf`) show the same, or fail, whatever
maintenance removes or compacts meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property

from connector.errors import ConfigurationError, FormatError, GapError, TransientError
from connector.landing.format import block_of, manifest_path
from connector.landing.manifest import Manifest
from connector.landing.manifest_object import EMPTY, LandingState, StoredManifest, missing_state
from connector.landing.manifest_object import require_one_source as require_one_database
from connector.landing.manifest_store import newest_manifest, read_compacted, read_retained
from connector.store.protocol import Store
from connector.store.read_ahead import read_ahead

MOST_SKEW = timedelta(hours=1)
"""How far the clocks of maintenance and of a reader may differ. Originals of a block stay for a day."""


@dataclass(frozen=True)
class AsOf:
    """A time, and what maintenance had done by then: from manifest `kept` on, all were kept."""

    kept: int
    at: datetime

    @classmethod
    def now(cls, store: Store) -> AsOf:
        """Return what it has done by now."""
        return cls(_first_kept(store), datetime.now(timezone.utc))


class LandedManifests:
    """The manifests of one source, by number. Keeps those that it has read. `as_of`: None for as they are."""

    def __init__(self, store: Store, as_of: AsOf | None = None) -> None:
        self._store, self._as_of = store, as_of
        self._known: dict[int, Manifest] = {}
        self._damaged: dict[int, FormatError] = {}
        self._states: dict[str, LandingState | FormatError] = {}

    def newest(self) -> Manifest:
        """Return the newest manifest there is now. `ConfigurationError` if nothing has landed."""
        return newest_in(self._store)

    def load(self, first: int, last: int) -> None:
        """Read the manifests of a range, several at once; `get` raises for those missing or damaged."""
        unknown = [number for number in range(first, last + 1) if number not in self._known]
        read = zip(unknown, read_ahead(self._store.read, [*map(manifest_path, unknown)]), strict=True)
        # Parsed here: threads that parse wait for each other.
        stored = (self._stored(number, data) for number, data in read if data is not None)
        found = [manifest for manifest in stored if manifest is not None and not manifest.removed]
        require_one_database([*list(self._known.values())[:1], *found], self._store.url)
        self._read_states(found)
        for manifest in found:
            try:
                self._known[manifest.number] = self._whole(manifest)
            except FormatError as error:
                self._damaged[manifest.number] = error

    def get(self, number: int) -> Manifest:
        """Return a manifest; `GapError` if it is missing or damaged. Reads its block's others up to it."""
        if number not in self._known:
            self.load(block_of(number)[0], number)
        try:
            return self._known[number]
        except KeyError:
            self.require_kept(number)
            raise GapError(
                str(self._damaged.get(number, f"manifest {number} is missing in {self._store.url}"))
                + ", whose changes are still to be read",
                hint="merge the lake, whose tables need less of the landing zone then; if a merge fails too,"
                " it says what to do",
            ) from None

    def require_kept(self, number: int) -> None:
        """Raise `TransientError` if a manifest that was kept then has been removed, with what it names."""
        if self._as_of is not None and self._as_of.kept <= number < _first_kept(self._store):
            raise TransientError(
                f"manifest {number} in {self._store.url} was removed since this began: begin again"
            )

    def is_removed(self, number: int) -> bool:
        """Return whether a manifest is from before those that are kept."""
        return number < self.first_kept

    @cached_property
    def first_kept(self) -> int:
        """Return the number of the first manifest from which all are kept."""
        return _first_kept(self._store) if self._as_of is None else self._as_of.kept

    def _read_states(self, manifests: Iterable[StoredManifest]) -> None:
        named = dict.fromkeys(manifest.state.path for manifest in manifests if manifest.state is not None)
        new = [path for path in named if path not in self._states]
        for path, data in zip(new, read_ahead(self._store.read, new), strict=True):
            self._states[path] = self._state(path, data)

    def _state(self, path: str, data: bytes | None) -> LandingState | FormatError:
        name = f"{self._store.url}/{path}"
        try:
            return missing_state(name) if data is None else LandingState.from_json(data, name)
        except FormatError as error:
            return error

    def _stored(self, number: int, data: bytes) -> StoredManifest | None:
        try:
            return StoredManifest.from_json(data, f"{self._store.url}/{manifest_path(number)}")
        except FormatError as error:
            self._damaged[number] = error
            return None

    def _whole(self, stored: StoredManifest) -> Manifest:
        state = EMPTY if stored.state is None else self._states[stored.state.path]
        if isinstance(state, FormatError):
            raise state
        manifest = stored.whole(state)
        if manifest.number == block_of(manifest.number)[1]:
            block = read_compacted(self._store, manifest.number)
            if block is not None and (self._as_of is None or block.at <= self._as_of.at - MOST_SKEW):
                manifest.compacted = block
        return manifest


def _first_kept(store: Store) -> int:
    retained = read_retained(store)
    return 1 if retained is None else retained.first


def newest_in(store: Store) -> Manifest:
    """Return the newest manifest in a store. `ConfigurationError` if nothing has landed."""
    manifest = newest_manifest(store)
    if manifest is None:
        raise ConfigurationError(
            f"nothing has landed in {store.url} yet", hint="start the agent: deltatide run"
        )
    return manifest
