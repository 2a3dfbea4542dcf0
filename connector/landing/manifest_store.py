"""Manifests in a store: reads the newest one or any other, and commits new ones by conditional create."""

from __future__ import annotations

from connector.errors import FencedError, TransientError
from connector.landing import format
from connector.landing.manifest import CompactedBlock, Manifest
from connector.landing.manifest_object import (
    Base,
    CompactionProgress,
    LandingState,
    Retained,
    StateReference,
    StoredManifest,
    missing_state,
    new_base,
    parse_compacted,
)
from connector.store.protocol import Store


class ManifestReader:
    """Reads manifests of one store; caches the last state object, which many consecutive manifests name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base: Base | None = None

    def newest(self) -> tuple[Manifest, Base | None] | None:
        """Return the manifest with the greatest number and its state object; None in a new landing zone."""
        return self._whole(self.newest_stored())

    def newest_stored(self) -> StoredManifest | None:
        """Return the newest manifest's own object, without its state; None in a new landing zone.

        Lists the folders of 1,000 manifests, then the last folder: three requests on S3 for a million
        manifests.
        """
        for folder in reversed(self._store.folders(format.MANIFESTS)):
            paths = [p for p in self._store.list(f"{format.MANIFESTS}/{folder}/") if format.is_manifest(p)]
            if paths:
                return self.stored(max(map(format.manifest_number, paths)))
        return None

    def read(self, number: int) -> Manifest | None:
        """Return one manifest; None if it does not exist, `FormatError` if it can't be read."""
        found = self._read(number)
        return found[0] if found else None

    def stored(self, number: int) -> StoredManifest | None:
        """Return a manifest's own object, which may be a stub; None if it does not exist."""
        path = format.manifest_path(number)
        data = self._store.read(path)
        return None if data is None else StoredManifest.from_json(data, f"{self._store.url}/{path}")

    def base_of(self, number: int) -> Base | None:
        """Return the state object that a manifest names, if it names one."""
        found = self._read(number)
        return found[1] if found else None

    def _read(self, number: int) -> tuple[Manifest, Base | None] | None:
        return self._whole(self.stored(number))

    def _whole(self, stored: StoredManifest | None) -> tuple[Manifest, Base | None] | None:
        if stored is None or stored.removed:
            return None
        if stored.state is None:
            return stored.whole(), None
        base = Base(stored.state, self._state(stored.state))
        return stored.whole(base.state), base

    def _state(self, reference: StateReference) -> LandingState:
        if self._base is None or self._base.reference.path != reference.path:
            name = f"{self._store.url}/{reference.path}"
            data = self._store.read(reference.path)
            if data is None:
                raise missing_state(name)
            self._base = Base(reference, LandingState.from_json(data, name))
        return self._base.state


class ManifestWriter:
    """Commits manifests, and the state objects that they name. `base`: the one that the next may name."""

    def __init__(self, store: Store, base: Base | None = None) -> None:
        self._store = store
        self._base = base

    def commit(self, manifest: Manifest) -> None:
        """Create the manifest of this number, once. Durable on return, as is everything it names.

        A lost response is resolved by retrying and then comparing write ids. `FencedError` if another agent
        committed this number; `TransientError` if the outcome is unknown: the newest manifest then shows it.
        """
        stored = StoredManifest.of(manifest, self._base)
        if stored.outgrown:
            base, data = new_base(manifest)
            self._store.put(base.reference.path, data)
            self._base = base
            stored = StoredManifest.of(manifest, base)
        self._create(stored)
        if self._base and stored.state:
            self._base = Base(stored.state, self._base.state)

    def _create(self, manifest: StoredManifest) -> None:
        path, data = format.manifest_path(manifest.number), manifest.to_json()
        try:
            created = self._store.create(path, data)
        except TransientError:
            created = self._store.create(path, data)
        if created:
            return
        stored = self._store.read(path)
        if stored is None:
            raise TransientError(f"{self._store.url}/{path}: exists but can't be read")
        winner = StoredManifest.from_json(stored, f"{self._store.url}/{path}")
        if winner.write_id != manifest.write_id:
            raise FencedError(
                f"{self._store.url}: manifest {manifest.number} was committed by another agent "
                f"(its term is {winner.term}, ours {manifest.term})",
                hint="run one agent per source; a standby waits for the lease",
            )


def newest_manifest(store: Store) -> Manifest | None:
    """Return the manifest with the greatest number; None in a new landing zone."""
    found = ManifestReader(store).newest()
    return found[0] if found else None


def read_manifest(store: Store, number: int) -> Manifest | None:
    """Return one manifest; None if it does not exist, `FormatError` if it can't be read."""
    return ManifestReader(store).read(number)


def read_retained(store: Store) -> Retained | None:
    """Return the record of which manifests are kept; None if none was ever removed."""
    data = store.read(format.RETENTION)
    return None if data is None else Retained.from_json(data, f"{store.url}/{format.RETENTION}")


def read_compaction_progress(store: Store) -> CompactionProgress | None:
    """Return how far compacted files have been removed; None if none have been."""
    data = store.read(format.COMPACTION)
    name = f"{store.url}/{format.COMPACTION}"
    return None if data is None else CompactionProgress.from_json(data, name)


def read_compacted(store: Store, last: int) -> CompactedBlock | None:
    """Return the record of the compacted block that ends with a manifest; None if there is none."""
    path = format.compacted_path(last)
    if format.block_of(last)[1] != last:
        return None
    data = store.read(path)
    return None if data is None else parse_compacted(data, f"{store.url}/{path}")
