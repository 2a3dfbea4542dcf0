"""Updates the objects that record maintenance progress; safe when several runs write at once."""

from __future__ import annotations

from collections.abc import Callable

from connector.store.protocol import Store


def update(store: Store, path: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Replace an object by what `change` makes of its content (None: no object); None leaves it."""
    while True:
        data, version = store.read_versioned(path) or (None, None)
        new = change(data)
        if new is None or store.replace(path, new, version) is not None:
            return
