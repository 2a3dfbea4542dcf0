"""What every store must do, for the tests of each."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

from connector.landing.manifest import Manifest, SourceIdentity
from connector.store.protocol import Store


def replace_needs_the_version_that_is_there(store: Store, no_version: str) -> None:
    """Replace an object by version, and in vain by another. `no_version`: a text that could be a version."""
    assert store.replace("lease.json", b"x", no_version) is None
    first = store.replace("lease.json", b"one", None)
    assert first is not None
    assert store.replace("lease.json", b"other", None) is None
    second = store.replace("lease.json", b"two", first)
    assert store.replace("lease.json", b"three", first) is None
    assert store.read_versioned("lease.json") == (b"two", second)


def a_manifest(number: int) -> Manifest:
    """Return a manifest without files."""
    return Manifest(
        number=number,
        term=3,
        write_id=uuid.uuid4().hex,
        source=SourceIdentity(name="shop", kind="postgres", system_id="7", database="shop"),
        epoch=1,
        position=number * 10,
        committed_at=datetime.now(timezone.utc),
    )
