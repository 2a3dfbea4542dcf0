"""The layouts that a table has had, from the manifests: what `deltatide schema` shows.

Each manifest records the number of the manifest that adopted a table's layout; the one before it names the
previous layout. So the history costs one manifest and one schema object per layout, however many manifests
there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from connector.errors import PreconditionError
from connector.landing.format import schema_path
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import read_manifest, read_retained
from connector.schema import Column, TableName, TableSchema
from connector.store.protocol import Store


@dataclass(frozen=True)
class LayoutVersion:
    """One layout of a table: the manifest that adopted it, and the differences from the previous layout.

    `changed` pairs a column's old definition with its new one. In the first version all columns are `added`.
    `images_changed`: from then on before-images land, or no longer land.
    """

    schema: TableSchema
    manifest: int
    position_text: str
    committed_at: datetime
    added: list[Column] = field(default_factory=list)
    dropped: list[Column] = field(default_factory=list)
    changed: list[tuple[Column, Column]] = field(default_factory=list)
    key_before: tuple[str, ...] | None = None
    images_changed: bool = False

    @property
    def is_first(self) -> bool:
        """Return whether no earlier layout is known."""
        return self.key_before is None


def layout_history(store: Store, newest: Manifest, table: TableName) -> list[LayoutVersion]:
    """Return a captured table's layouts, newest first.

    The history ends where the table was not captured, or where manifests have been removed; it is empty if
    the table has never had a layout that could be captured.
    Raises `PreconditionError` if a schema object is missing.
    """
    found = list(_layouts(store, newest, table))
    before = [schema for schema, _ in found[1:]]
    return [
        _version(schema, manifest, former)
        for (schema, manifest), former in zip(found, [*before, None], strict=False)
    ]


def _layouts(store: Store, newest: Manifest, table: TableName) -> Iterator[tuple[TableSchema, Manifest]]:
    manifest: Manifest | None = newest
    while manifest is not None and (state := manifest.tables.get(table)) is not None:
        if state.schema_id is None:
            return
        since = read_manifest(store, state.schema_since) or _oldest(store)
        yield _schema(store, table, state.schema_id), since or manifest
        manifest = read_manifest(store, state.schema_since - 1)


def _oldest(store: Store) -> Manifest | None:
    """Return the oldest kept manifest: a layout from before it is at least that old."""
    retained = read_retained(store)
    return read_manifest(store, retained.first) if retained else None


def _schema(store: Store, table: TableName, schema_id: str) -> TableSchema:
    data = store.read(schema_path(table, schema_id))
    if data is None:
        raise PreconditionError(
            f"{schema_path(table, schema_id)} is missing in {store.url}",
            hint="restore it from a copy; never delete objects of the landing zone by hand",
        )
    return TableSchema.from_json(data)


def _version(schema: TableSchema, manifest: Manifest, former: TableSchema | None) -> LayoutVersion:
    known = {c.name: c for c in former.columns} if former else {}
    now = {c.name: c for c in schema.columns}
    return LayoutVersion(
        schema,
        manifest.number,
        manifest.position_text,
        manifest.committed_at,
        added=[c for c in schema.columns if c.name not in known],
        dropped=[c for name, c in known.items() if name not in now],
        changed=[(known[n], c) for n, c in now.items() if n in known and known[n] != c],
        key_before=former.key if former else None,
        images_changed=former is not None and former.before_images != schema.before_images,
    )
