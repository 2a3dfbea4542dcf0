"""Follows the landing zone's manifests as they come: they must form one line, without a hole or a fork.

They are read from the store itself, not through the proxy that fails, and remembered, as `deltatide maintain`
removes old ones meanwhile. In the end each that is still there must be the one that was seen, and none may
follow the last.
"""

from __future__ import annotations

from collections.abc import Callable

from connector.landing.format import is_manifest, manifest_number
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import ManifestReader
from connector.store.protocol import Store
from tests.support.agent.installed import assert_follows
from tests.support.background import Background


class ManifestLine(Background):
    """The manifests of a landing zone, checked in a thread of its own; `problems` lists what is wrong.

    `newest` is the last one seen, `terms` the agents' tenures; `then` is called with each manifest.
    """

    def __init__(self, store: Store, then: Callable[[Manifest], None] = lambda _: None) -> None:
        super().__init__("manifest line")
        self.newest: Manifest | None = None
        self.problems: list[str] = []
        self.terms: set[int] = set()
        self._store, self._then = store, then
        self._reader = ManifestReader(store)
        self._write_ids: dict[int, str] = {}
        self._paths: set[str] = set()

    @property
    def number(self) -> int:
        """Return the number of the last manifest seen; 0 before the first."""
        return self.newest.number if self.newest else 0

    def stop(self) -> None:
        """Follow to the end, stop, and check that what was seen is still there."""
        super().stop()
        self._check_kept()

    def work(self) -> None:
        """Follow the manifests to the one that is newest when it is stopped."""
        while True:
            ends = self.stopping.is_set()
            try:
                self.follow()
            except Exception as error:  # reported by the run
                self.problems.append(f"after manifest {self.number}: {type(error).__name__}: {error}")
                return
            if ends:
                return
            self.stopping.wait(0.2)

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
