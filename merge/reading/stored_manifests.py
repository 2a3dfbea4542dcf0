"""Parses what is read of a folder of manifests. Pure.

Invariant: a manifest that is damaged, or whose state object or record of compaction is, fails only readers
that need that manifest. It is kept apart with its error, since manifests are read by blocks of a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from connector.errors import FormatError
from connector.landing.format import compacted_block
from connector.landing.manifest import CompactedBlock, LandedFile, Manifest
from connector.landing.manifest_object import (
    EMPTY,
    LandingState,
    StoredManifest,
    missing_state,
    parse_compacted,
)

States = Mapping[str, LandingState | FormatError]
"""State objects by path; an error for one that is gone or damaged."""


@dataclass
class Folder:
    """What was read of a folder: manifests, without stubs; by number, compacted blocks and errors."""

    stored: list[StoredManifest] = field(default_factory=list)
    blocks: dict[int, CompactedBlock] = field(default_factory=dict)
    damaged: dict[int, FormatError] = field(default_factory=dict)

    @classmethod
    def parsed(cls, texts: Mapping[str, str]) -> Folder:
        """Parse files by name."""
        folder = cls()
        for file, text in texts.items():
            last = compacted_block(file)
            try:
                if last:
                    folder.blocks[last] = parse_compacted(text, file)
                elif not (manifest := StoredManifest.from_json(text, f"manifest {file}")).removed:
                    folder.stored.append(manifest)
            except FormatError as error:
                folder.damaged[last or int(file.partition(".")[0])] = error
        return folder

    def whole(self, read: Callable[[Sequence[str]], States]) -> dict[int, Manifest]:
        """Return the manifests that are intact, by number; `read`: reads state objects."""
        states = read(list(dict.fromkeys(each.state.path for each in self.stored if each.state)))
        found: dict[int, Manifest] = {}
        for each in self.stored:
            state = states[each.state.path] if each.state else EMPTY
            if isinstance(state, FormatError):
                self.damaged.setdefault(each.number, state)
            elif each.number not in self.damaged:
                found[each.number] = each.whole(state)
                found[each.number].compacted = self.blocks.get(each.number)
        return found


def state_of(text: str | None, path: str, root: str) -> LandingState | FormatError:
    """Parse a state object, None if it is gone; return what is wrong with it, if anything is."""
    if text is None:
        return missing_state(f"{root}/{path}")
    try:
        return LandingState.from_json(text, path)
    except FormatError as error:
        return error


def merged_files(manifests: Iterable[Manifest]) -> list[LandedFile]:
    """List the files with events to merge; of a compacted block, those that others were joined to."""
    news = list(manifests)
    blocks = [manifest.compacted for manifest in news if manifest.compacted]
    replaced = {path for block in blocks for path in block.replaced}
    named = [*(f for m in news for f in m.files), *(f for block in blocks for f in block.files)]
    return [file for file in named if file.kind != "verify" and file.path not in replaced]
