"""Follows the landing zone's manifests as they come: they must form one line, without a hole or a fork.

They are read from the store itself, not through the proxy that fails, and remembered, as `deltatide maintain`
removes old ones meanwhile. In the end each that is still there must be the one that was seen, and none may
follow the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from connector.landing.format import is_manifest, manifest_number
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import ManifestReader
from connector.store.protocol import Store
from tests.support.agent.installed import assert_follows


class ManifestLine:
    """The manifests of a landing zone, checked in a thread of its own; `problems` lists what is wrong.

    `newest` is the last one seen, `terms` the agents' tenures; `then` is called with each manifest.
    """

    def __init__(self, store: Store, then: Callable[[Manifest], None] = lambda _: None) -> None:
        self.newest: Manifest | None = None
        self.problems: list[str] = []
        self.terms: set[int] = set()
        self._store, self._then = store, then
        self._reader = ManifestReader(store)
        self._write_ids: dict[int, str] = {}
        self._paths: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manifest line", daemon=True)

    @property
    def number(self) -> int:
        """Return the number of the last manifest seen; 0 before the first."""
        return self.newest.number if self.newest else 0

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def stop(self) -> None:
        """Follow to the end, stop, and check that what was seen is still there."""
        self._stopping.set()
        self._thread.join()
        self._check_kept()

    def _run(self) -> None:
        while True:
            ends = self._stopping.is_set()
            try:
                self.follow()
            except Exception as error:  # reported by the run
                self.problems.append(f"after manifest {self.number}: {type(error).__name__}: {error}")
                return
            if ends:
                return
            self._stopping.wait(0.2)

    def follow(self) -> None:
        """Read and check the manifests that have come since."""
        while (manifest := self._reader.read(self.number + 1)) is not None:
            if self.newest is not None:
                try:
                    assert_follows(self.newest, manifest)
                except AssertionError as error:
                    self.problems.append(str(error))
            again = self._paths & {file.path for file in manifest.files}
            if again:
                self.problems.append(f"manifest {manifest.number} commits again: {sorted(again)}")
            if manifest.epoch != 1:
                self.problems.append(f"manifest {manifest.number} begins epoch {manifest.epoch}: a gap")
            self._paths |= {file.path for file in manifest.files}
            self._write_ids[manifest.number] = manifest.write_id
            self.terms.add(manifest.term)
            self.newest = manifest
            self._then(manifest)

    def _check_kept(self) -> None:
        for number in sorted(
            n for p in self._store.list("manifest/") if is_manifest(p) for n in [manifest_number(p)]
        ):
            stored = self._reader.stored(number)
            if number not in self._write_ids:
                self.problems.append(f"there is a manifest {number} beyond a hole after {self.number}")
            elif stored is not None and not stored.removed and stored.write_id != self._write_ids[number]:
                self.problems.append(f"manifest {number} was replaced")
