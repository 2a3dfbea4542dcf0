"""The last manifests, summed up by table. A manifest never changes, so each is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from connector.errors import TransientError
from connector.landing.manifest import Manifest
from connector.landing.manifest_object import StoredManifest
from connector.position import format_position

MOST = 100


@dataclass(frozen=True)
class ManifestSummary:
    """One manifest: `rows` by table; its notices, oldest first. UTC.

    `exact`: whether its cut is; None where that was not recorded yet.
    """

    number: int
    position: str
    epoch: int
    committed_at: datetime
    source_committed_at: datetime | None
    files: int
    bytes: int
    exact: bool | None
    rows: dict[str, int]
    notices: list[dict[str, Any]]

    @classmethod
    def of(cls, manifest: Manifest | StoredManifest) -> ManifestSummary:
        """Sum up a manifest."""
        rows: Counter[str] = Counter()
        for file in manifest.files:
            rows[str(file.table)] += file.rows
        return cls(
            number=manifest.number,
            position=format_position(manifest.position, manifest.source.kind),
            epoch=manifest.epoch,
            committed_at=manifest.committed_at,
            source_committed_at=manifest.source_committed_at,
            files=len(manifest.files),
            bytes=sum(file.bytes for file in manifest.files),
            exact=manifest.exact,
            rows=dict(rows),
            notices=[notice.model_dump(mode="json") for notice in manifest.notices],
        )


class ManifestList:
    """The summaries of the last manifests; `read` reads a manifest's own object by its number."""

    def __init__(self, read: Callable[[int], StoredManifest | None]) -> None:
        self._read = read
        self._known: dict[int, ManifestSummary] = {}

    def last(self, newest: Manifest, count: int) -> list[ManifestSummary]:
        """Return up to `count` manifests (at most `MOST`), the newest first.

        Leaves out removed ones and, if the store does not answer, those not read before.
        """
        wanted = range(newest.number, max(0, newest.number - min(count, MOST)), -1)
        known = {
            number: found for number, found in list(self._known.items()) if number > newest.number - MOST
        }
        known[newest.number] = ManifestSummary.of(newest)
        with suppress(TransientError):
            for number in wanted:
                if number not in known and (stored := self._read(number)) and not stored.removed:
                    known[number] = ManifestSummary.of(stored)
        self._known = known
        return [known[number] for number in wanted if number in known]
