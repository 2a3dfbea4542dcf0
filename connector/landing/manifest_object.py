"""How manifests are stored: each names a state object, and what has changed since that object.

Most of a manifest's state (tables, dumps) is the same as in the manifest before. So it is written once, to a
state object of its own, and each manifest names that object and the differences from it::

    manifest/000000000000/000000000000123.json    position, files, ...; the tables and dumps that differ
    state/000000000000100-4f1c3a80b2d7e695.json   all tables and dumps as of manifest 100

Invariants:

- A state object is durable before the first manifest that names it, and never changes: its name has the hash
  of its content. Any manifest is read whole from two objects.
- Differences are relative to the state object, never to another manifest.
- A new state object is written once the differences written since the last one add up to a quarter of its
  size. So the amount written for state follows what changes in it, not how much of it there is. After a burst
  of changes, such as the first dumps of all tables, manifests are soon small again.

A small state needs no object: all of it differs from the empty state. This module does no I/O.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, ValidationError

from connector.errors import FormatError
from connector.landing.column_names import ColumnNames
from connector.landing.format import FORMAT, state_path
from connector.landing.manifest import (
    CompactedBlock,
    DumpState,
    Manifest,
    ManifestHeader,
    TableState,
    _Part,
)
from connector.schema import TableName

Stored = TypeVar("Stored", bound=BaseModel)
Record = TypeVar("Record", bound="_Record")

FEW_BYTES = 2048
"""Differences up to this size are not worth a state object."""

RENEWED_AT = 4
"""A state object is renewed when the differences written reach 1/4 of its size."""


class LandingState(_Part):
    """The content of a state object: all tables, and all dumps that manifests still list."""

    format: int = FORMAT
    tables: dict[TableName, TableState] = Field(default_factory=dict)
    dumps: list[DumpState] = Field(default_factory=list)
    former_names: dict[TableName, ColumnNames] = Field(default_factory=dict)

    @cached_property
    def dumps_by_id(self) -> dict[str, DumpState]:
        """Index the dumps."""
        return {dump.id: dump for dump in self.dumps}

    def to_json(self) -> bytes:
        """Serialize for the landing zone."""
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def from_json(cls, data: bytes | str, name: str) -> LandingState:
        """Parse a state object; `FormatError` for a newer format, or if it is not what was written."""
        content = data.encode() if isinstance(data, str) else data
        if _digest(content) not in name:
            raise FormatError(
                f"{name} is damaged: its content does not match its name", hint="restore it from a copy"
            )
        return _parsed(cls, data, name, "state object")


class StateReference(_Part):
    """Names a state object of this size; `written`: bytes of differences from it in all manifests so far."""

    path: str
    bytes: int
    written: int = 0


@dataclass(frozen=True)
class Base:
    """A state object, and the reference by which manifests name it."""

    reference: StateReference
    state: LandingState


EMPTY = LandingState()


class _Record(_Part):
    """What maintenance records in an object of its own."""

    title: ClassVar[str]

    format: int = FORMAT

    def to_json(self) -> bytes:
        """Serialize for the landing zone."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls: type[Record], data: bytes | str, name: str) -> Record:
        """Parse the object; `FormatError` for a newer format, or if it is not one."""
        return _parsed(cls, data, name, cls.title)


class Retained(_Record):
    """Recorded before manifests are removed: all from number `first` on exist, `at` in UTC.

    Those before it may be gone, or only stubs.
    """

    title: ClassVar[str] = "record of what was removed"

    first: int
    at: datetime


class CompactionProgress(_Record):
    """Recorded before compacted files are removed: those up to manifest `removing` may be gone.

    Up to manifest `removed`, nothing is left to compact or to remove. `at`: in UTC.
    """

    title: ClassVar[str] = "record of compaction"

    removing: int = 0
    removed: int = 0
    at: datetime


def parse_compacted(data: bytes | str, name: str) -> CompactedBlock:
    """Parse the record of a compacted block; `FormatError` for a newer format, or if it is not one."""
    return _parsed(CompactedBlock, data, name, "record of a compacted block")


class StoredManifest(ManifestHeader):
    """A manifest as stored: what of its state differs from that of the object that `state` names.

    Without `state` they are complete. An unfinished dump of keys that lists no keys has those of its state
    object: they don't change, and there may be many.

    `removed`: a `stub` that only keeps the number taken; readers treat it as missing. `exact`: as in
    `Manifest`, for readers that read no state object; absent in manifests from before it was recorded.
    """

    tables: dict[TableName, TableState] = Field(default_factory=dict)
    dumps: list[DumpState] = Field(default_factory=list)
    state: StateReference | None = None
    removed: bool = False
    removed_tables: list[TableName] = Field(default_factory=list)
    removed_dumps: list[str] = Field(default_factory=list)
    former_names: dict[TableName, ColumnNames] = Field(default_factory=dict)
    removed_names: list[TableName] = Field(default_factory=list)
    exact: bool | None = None

    @classmethod
    def of(cls, manifest: Manifest, base: Base | None = None) -> StoredManifest:
        """Return a manifest's differences from `base`, counted in its reference."""
        before = base.state if base else EMPTY
        dumps = {dump.id for dump in manifest.dumps}
        stored = cls.model_construct(
            **_header(manifest),
            tables={n: s for n, s in manifest.tables.items() if _differs(s, before.tables.get(n))},
            dumps=[
                _without_known_keys(dump, known)
                for dump in manifest.dumps
                if _differs(dump, known := before.dumps_by_id.get(dump.id))
            ],
            removed_tables=[name for name in before.tables if name not in manifest.tables],
            removed_dumps=[id_ for id_ in before.dumps_by_id if id_ not in dumps],
            former_names={
                n: names for n, names in manifest.former_names.items() if before.former_names.get(n) != names
            },
            removed_names=[name for name in before.former_names if name not in manifest.former_names],
            state=None,
            exact=manifest.exact,
        )
        if base:
            written = base.reference.written + stored.differences
            stored.state = base.reference.model_copy(update={"written": written})
        return stored

    def stub(self) -> StoredManifest:
        """Return what is left of a removed manifest, so that no other is committed under its number."""
        known = {name: getattr(self, name) for name in ("number", "term", "write_id", "source", "epoch")}
        return StoredManifest(**known, position=self.position, committed_at=self.committed_at, removed=True)

    @property
    def differences(self) -> int:
        """The size of what differs from the state object, in bytes."""
        parts = {"tables", "dumps", "removed_tables", "removed_dumps", "former_names", "removed_names"}
        if not any(getattr(self, part) for part in parts):
            return 0
        return len(self.model_dump_json(include=parts, exclude_none=True))

    @property
    def outgrown(self) -> bool:
        """Return whether a new state object should be written."""
        written, size = (self.state.written, self.state.bytes) if self.state else (self.differences, 0)
        return written >= size / RENEWED_AT and self.differences > FEW_BYTES

    def whole(self, state: LandingState = EMPTY) -> Manifest:
        """Return the complete manifest; `state`: the content of the object that `state` names."""
        tables: Mapping[TableName, TableState] = state.tables
        if self.removed_tables:
            removed = set(self.removed_tables)
            tables = {name: table for name, table in tables.items() if name not in removed}
        if self.tables:
            tables = ChainMap(self.tables, tables)  # type: ignore[arg-type]
        names = {**state.former_names, **self.former_names}
        for name in self.removed_names:
            del names[name]
        return Manifest.model_construct(
            **_header(self), tables=tables, dumps=self._all_dumps(state), former_names=names
        )

    def _all_dumps(self, state: LandingState) -> Sequence[DumpState]:
        """Return the dumps in order: those of the state object first, since they were queued earlier."""
        if not (self.dumps or self.removed_dumps):
            return state.dumps
        new = {dump.id: _with_known_keys(dump, state.dumps_by_id.get(dump.id)) for dump in self.dumps}
        removed = set(self.removed_dumps)
        kept = (new.pop(dump.id, dump) for dump in state.dumps if dump.id not in removed)
        return [*kept, *new.values()]

    def to_json(self) -> bytes:
        """Serialize for the landing zone."""
        return self.model_dump_json(exclude_none=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes | str, name: str = "manifest") -> StoredManifest:
        """Parse a manifest; `FormatError` for a newer format or something that is not a manifest."""
        return _parsed(cls, data, name, "manifest")


def new_base(manifest: Manifest) -> tuple[Base, bytes]:
    """Make a manifest's whole state a state object; return it with its content, to be stored first."""
    state = LandingState.model_construct(
        tables=dict(manifest.tables), dumps=list(manifest.dumps), former_names=dict(manifest.former_names)
    )
    data = state.to_json()
    path = state_path(manifest.number, _digest(data))
    return Base(StateReference(path=path, bytes=len(data)), state), data


def first_missing(found: Mapping[int, object], first: int, known: int = 0) -> int | None:
    """Return the first missing number from `first` on; `known`: a number that must exist, 0 for none."""
    return next((n for n in range(first, max([known, *found]) + 1) if n not in found), None)


def require_one_source(manifests: Sequence[ManifestHeader], root: str) -> None:
    """`FormatError` if the manifests of one folder are not all of one database."""
    databases: dict[tuple[str, ...], ManifestHeader] = {}
    for manifest in sorted(manifests, key=lambda each: each.number):
        its = manifest.source
        databases.setdefault((its.kind, its.system_id, its.database), manifest)
    if len(databases) > 1:
        found = " and ".join(
            f"{m.number} (of {kind} database {name}, system id {id_})"
            for (kind, id_, name), m in databases.items()
        )
        raise FormatError(
            f"{root} has manifests of different databases: {found}",
            hint="restore the original ones from a copy; each source needs a folder of its own",
        )


def missing_state(name: str) -> FormatError:
    """Build the error for a missing state object."""
    return FormatError(
        f"{name} is missing; manifests name it for the state of their tables",
        hint="restore it from a copy; never delete objects of the landing zone by hand",
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _header(manifest: ManifestHeader) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in ManifestHeader.model_fields}


def _differs(now: BaseModel, before: BaseModel | None) -> bool:
    return now is not before and now != before


def _without_known_keys(dump: DumpState, known: DumpState | None) -> DumpState:
    if known is None or dump.keys is None or dump.keys != known.keys:
        return dump
    return dump.model_copy(update={"keys": None})


def _with_known_keys(dump: DumpState, known: DumpState | None) -> DumpState:
    if known is None or dump.keys is not None or not dump.active:
        return dump
    return dump.model_copy(update={"keys": known.keys})


class _Version(BaseModel):
    format: int


def _parsed(kind: type[Stored], data: bytes | str, name: str, what: str) -> Stored:
    try:
        version = _Version.model_validate_json(data).format
        if version > FORMAT:
            raise FormatError(
                f"{name} has format {version}; this deltatide reads formats up to {FORMAT}",
                hint="upgrade deltatide where it reads this landing zone",
            )
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise FormatError(
            f"{name} is not a {what}: {error.errors()[0]['msg']}",
            hint="keep everything but deltatide from writing under the landing zone",
        ) from error
