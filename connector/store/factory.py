"""Opens the store that the configuration names. S3's client is imported only for ``s3://``."""

from __future__ import annotations

from connector.config import LandingConfig
from connector.store.hurried import HurriedStore
from connector.store.local import LocalStore
from connector.store.protocol import Store


def open_store(config: LandingConfig, source: str, *, patient: bool = True) -> Store:
    """Open a source's part of the landing zone (`source`: its name); reads and writes nothing yet.

    `patient`: wait for a slow store as long as an agent may; otherwise only as long as a person would.
    """
    if config.folder is not None:
        return LocalStore(config.folder / source)
    from connector.store.s3 import S3Store

    return S3Store.open(config, source, patient=patient)


def open_stores(config: LandingConfig, source: str, answer_seconds: float) -> tuple[Store, Store]:
    """Open it as an agent does, and once more for requests that it repeats itself.

    Such a request is given up after `answer_seconds`, once, whatever it waits for. A folder's file system
    knows no such limit.
    """
    if config.folder is not None:
        store = LocalStore(config.folder / source)
        return store, store
    from connector.store.s3 import S3Store

    patient, hurried = S3Store.open_both(config, source, answer_seconds)
    return patient, HurriedStore(hurried, answer_seconds)
