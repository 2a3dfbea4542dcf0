"""Tests whether a store does what a commit relies on: conditional creates and replaces."""

from __future__ import annotations

import uuid

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from connector.errors import PreconditionError
from connector.store.protocol import Store

PROBE = "probe"
_PROBE_TRIES = 3


def probe(store: Store) -> None:
    """Try everything that a commit relies on, with temporary objects, and remove them.

    `PreconditionError` if the store can't be written to, or ignores conditions (some do so silently). Also
    removes what a killed probe left: objects that existed before this probe and still do afterwards. That may
    fail a slower concurrent probe, or one whose response was lost, so a failed probe is repeated.
    """
    left = list(store.list(f"{PROBE}/"))
    _retrying(_probe_once, store)
    for path in left:
        store.delete(path)


class _UnfitError(PreconditionError):
    """the store does not do what a commit relies on."""


_retrying = Retrying(
    retry=retry_if_exception_type(_UnfitError), stop=stop_after_attempt(_PROBE_TRIES), reraise=True
)


def _probe_once(store: Store) -> None:
    path = f"{PROBE}/{uuid.uuid4().hex}.json"
    try:
        if not store.create(path, b"first"):
            raise _UnfitError(f"{store.url}: refuses to create {path}, although it does not exist")
        second = store.create(path, b"second")
        if second or store.read(path) != b"first":
            raise _unfit(store, "conditional creates")
        current = store.read_versioned(path)
        if current is None or store.replace(path, b"third", current[1]) is None:
            raise _UnfitError(f"{store.url}: does not read back what was written")
        if store.replace(path, b"fourth", current[1]) is not None or store.read(path) != b"third":
            raise _unfit(store, "conditional replaces")
        if path not in store.list(f"{PROBE}/"):
            raise _UnfitError(f"{store.url}: does not list what was written")
    finally:
        store.delete(path)


def _unfit(store: Store, what: str) -> _UnfitError:
    return _UnfitError(
        f"{store.url}: the store ignores {what}, so two agents could both commit",
        hint="use a store that honors If-None-Match and If-Match on PUT: AWS S3, MinIO, versitygw, Ceph 19+",
    )
