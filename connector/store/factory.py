"""Opens the store that the configuration names. S3's client is imported only for ``s3://``."""

from __future__ import annotations

from connector.config import LandingConfig
from connector.store.local import LocalStore
from connector.store.protocol import Store


def open_store(
    config: LandingConfig, source: str, *, patient: bool = True, answer_seconds: float | None = None
) -> Store:
    """Open a source's part of the landing zone (`source`: its name); reads and writes nothing yet.

    `patient`: wait for a slow store as long as an agent may; otherwise only as long as a person would.
    `answer_seconds`: give up each request after that instead, once, for a caller who repeats it; a folder's
    file system knows no such limit.
    """
    if config.folder is not None:
        return LocalStore(config.folder / source)
    from connector.store.s3 import S3Store

    return S3Store.open(config, source, patient=patient, answer_seconds=answer_seconds)
