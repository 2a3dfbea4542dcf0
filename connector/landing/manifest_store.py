"""Manifests in a store: the newest one, and the create that commits a manifest."""

from __future__ import annotations

from connector.errors import FencedError, TransientError
from connector.landing import format
from connector.landing.manifest import Manifest
from connector.store.protocol import Store


def newest_manifest(store: Store) -> Manifest | None:
    """Return the manifest with the greatest number; None in a new landing zone.

    Lists the folders of 1,000 manifests, then the last of them: three requests on S3 for a million.
    """
    for folder in reversed(store.folders(format.MANIFESTS)):
        paths = [p for p in store.list(f"{format.MANIFESTS}/{folder}/") if _is_manifest(p)]
        if paths:
            return read_manifest(store, max(map(format.manifest_number, paths)))
    return None


def read_manifest(store: Store, number: int) -> Manifest | None:
    """Return one manifest; None if it does not exist, `FormatError` if it is not readable."""
    path = format.manifest_path(number)
    data = store.read(path)
    return None if data is None else Manifest.from_json(data, f"{store.url}/{path}")


def commit_manifest(store: Store, manifest: Manifest) -> None:
    """Commit: create the manifest of this number, once. Durable on return.

    A lost response is resolved by retrying and then comparing write ids. `FencedError` if somebody else
    committed this number; `TransientError` if the outcome is unknown: `newest_manifest` then shows it.
    """
    path, data = format.manifest_path(manifest.number), manifest.to_json()
    try:
        created = store.create(path, data)
    except TransientError:
        created = store.create(path, data)
    if created:
        return
    winner = read_manifest(store, manifest.number)
    if winner is None:
        raise TransientError(f"{store.url}/{path}: exists but can't be read")
    if winner.write_id != manifest.write_id:
        raise FencedError(
            f"{store.url}: manifest {manifest.number} was committed by another agent "
            f"(its term is {winner.term}, ours {manifest.term})",
            hint="run one agent per source; a standby waits for the lease",
        )


def _is_manifest(path: str) -> bool:
    try:
        format.manifest_number(path)
    except ValueError:
        return False
    return True
