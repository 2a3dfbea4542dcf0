"""Which manifests are read at once, and that no one reads events past a table's masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from connector.errors import FormatError, GapError, TableError
from connector.landing.column_names import ColumnNames
from connector.landing.format import compacted_path, manifest_path, schema_path
from connector.landing.manifest import LandedFile, Manifest
from connector.landing.manifest_object import StoredManifest
from merge import landing_zone
from merge.lake.retry import UNEXPECTED
from merge.landing_zone import LandingZone
from tests.support.landing.landed import Event, Landed, config_of, schema_of


class Counting(LandingZone):
    """A landing zone of 1,050 manifests that are their numbers."""

    reads = 0
    missing: int | range = 0

    def _lost(self, number: int) -> bool:
        return number in self.missing if isinstance(self.missing, range) else number == self.missing

    def _numbers(self) -> set[int]:
        return {number for number in range(1, 1051) if not self._lost(number)}

    def _read_first_kept(self) -> int:
        return 0

    def _read_folder(self, folder: int, first: int, last: int | None) -> dict[int, Any]:
        self.reads += 1
        upto = min(last or 1050, 1050, 1000 * folder + 999)
        numbers = range(max(first, 1000 * folder), upto + 1)
        return {number: number for number in numbers if not self._lost(number)}


def test_manifests_that_are_needed_again_are_read_in_blocks_forward_and_back() -> None:
    numbers = range(1, 1051)
    for order in (numbers, reversed(numbers)):
        landing: Any = Counting(None, "folder", "shop")  # type: ignore[arg-type]
        assert [landing.get(number) for number in order] in ([*numbers], [*reversed(numbers)])
        assert landing.reads == 11


def test_what_a_table_has_to_catch_up_with_is_read_by_folders_and_once() -> None:
    landing: Any = Counting(None, "folder", "shop")  # type: ignore[arg-type]
    landing.load(1, 1050)
    landing.load(3, 1050)
    assert [landing.get(number) for number in range(1, 1051)] == [*range(1, 1051)]
    assert landing.reads == 2


@pytest.mark.parametrize("missing", [998, 999, 1000])
@pytest.mark.parametrize("after", [1, 997, 998])
def test_a_manifest_that_is_missing_where_a_folder_ends_is_a_hole(missing: int, after: int) -> None:
    landing: Any = Counting(None, "folder", "shop")  # type: ignore[arg-type]
    assert landing.newest(after) == 1050
    landing.missing = missing
    with pytest.raises(GapError, match=f"manifest {missing} is missing"):
        landing.newest(after)


@pytest.mark.parametrize("missing", [1, 999, range(1, 1001), range(5, 1000)])
def test_with_nothing_merged_yet_the_newest_is_found_though_old_ones_are_gone(missing: int | range) -> None:
    """The tables start at their full dumps then, or say which manifest they need."""
    landing: Any = Counting(None, "folder", "shop")  # type: ignore[arg-type]
    landing.missing = missing
    assert landing.newest(0) == 1050
    with pytest.raises(GapError, match="is missing"):
        landing.get(missing if isinstance(missing, int) else missing[-1])
    assert landing.get(1001) == 1001


def test_with_nothing_merged_yet_and_nothing_landed_there_is_no_newest() -> None:
    landing: Any = Counting(None, "folder", "shop")  # type: ignore[arg-type]
    landing.missing = range(1, 1051)
    assert landing.newest(0) == 0
    landing.missing = range(4, 1051)
    assert (landing.newest(0), landing.newest(0, until=2)) == (3, 2)


def test_a_folder_of_manifests_is_of_the_database_of_the_folder_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = Landed.local(tmp_path)
    landed.commit(10)
    own = [StoredManifest.of(landed.commit(20).model_copy(update={"number": n}), None) for n in (999, 1000)]
    source = own[1].source.model_copy(update={"system_id": "another"})
    stored = {0: own[0], 1: own[1].model_copy(update={"source": source})}

    def texts(self: LandingZone, paths: list[str], _: Any) -> list[tuple[str, str]]:
        manifest = stored.get(int(paths[0].rpartition("/")[2]))
        return [(f"{manifest.number:015d}.json", manifest.to_json().decode())] if manifest else []

    monkeypatch.setattr(LandingZone, "texts", texts)
    functions = MagicMock()
    functions.col.return_value.__ge__.return_value = functions
    monkeypatch.setattr(landing_zone, "F", functions)
    nothing: Any = None
    with pytest.raises(FormatError, match=r"different databases: 999 \(.*\) and 1000 \("):
        LandingZone(nothing, str(tmp_path), "shop").newest(999)


@pytest.mark.parametrize("damaged", ["manifest", "state", "state gone", "block"])
def test_a_damaged_manifest_stops_only_who_needs_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Not who needs others of its block, as a table that fell behind does: they are read together."""

    def texts(_: LandingZone, paths: list[str], _wanted: Any = None) -> list[tuple[str, str]]:
        found = [[*Path(path).glob("*.json")] if Path(path).is_dir() else [Path(path)] for path in paths]
        if not all(files[0].exists() for files in found):  # Spark then reads none
            return []
        return [(file.name, file.read_text()) for files in found for file in files]

    monkeypatch.setattr(LandingZone, "texts", texts)
    functions = MagicMock()
    functions.col.return_value.__ge__.return_value = functions
    functions.col.return_value.__le__.return_value = functions
    monkeypatch.setattr(landing_zone, "F", functions)
    landed = Landed.local(tmp_path)
    landed.state_objects = 1  # each names its own
    for number in range(1, 101):
        landed.commit(10 * number)
    folder = tmp_path / "shop"
    (state,) = folder.glob("state/*03-*")
    needs = 100 if damaged == "block" else 3
    file = {"manifest": folder / manifest_path(3), "block": folder / compacted_path(100)}.get(damaged, state)
    good = file.read_text() if file.exists() else None
    file.unlink() if damaged == "state gone" else file.write_text("{")
    landing = LandingZone(cast(Any, None), str(tmp_path), "shop")
    assert landing.get(5).number == 5
    assert landing.get(needs - 1).number == needs - 1
    with pytest.raises(GapError, match=r"(?s)is not a|is damaged|is missing") as stopped:
        landing.get(needs)
    assert "dump the tables" in str(stopped.value.hint)
    with pytest.raises(FormatError):
        landing.newest(2)
    file.unlink(missing_ok=True) if good is None else file.write_text(good)
    assert landing.get(needs).number == needs
    assert landing.newest(2) == 100


def test_a_hidden_column_that_a_manifest_knows_by_another_name_stops_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's catalog shows it, layouts do not: that column may just have been dropped."""

    def texts(_: LandingZone, paths: list[str], _wanted: Any = None) -> list[tuple[str, str]]:
        found = (sorted(Path(path).glob("*.json")) if Path(path).is_dir() else [Path(path)] for path in paths)
        return [(file.name, file.read_text()) for files in found for file in files if file.exists()]

    monkeypatch.setattr(LandingZone, "texts", texts)
    functions = MagicMock()
    functions.col.return_value.__ge__.return_value = functions
    functions.col.return_value.__le__.return_value = functions
    monkeypatch.setattr(landing_zone, "F", functions)
    before = schema_of("public.orders", id="int", ssn="string", note="string")
    after = schema_of("public.orders", id="int", note="string")
    landed = Landed.local(tmp_path)
    landed.table(before)
    landed.commit(10)
    landed.table(after)
    landed.commit(20)
    config = config_of(str(tmp_path), str(tmp_path / "lake"), public__orders={"mask": {"ssn": "null"}})
    landing = LandingZone.of(cast(Any, None), config)
    wanted = [(after.table, after.id)]
    assert landing.get(2).tables[after.table].column_names is None
    assert landing.schemas(wanted)[after.id].columns == after.columns
    state, names = landed.tables[after.table], ColumnNames(ids={"id": 1, "ssn": 2, "note": 3})
    landed.tables[after.table] = state.changed(column_names=names.seen({"id": 1, "note": 2}))
    landed.commit(30)
    assert landing.get(3).tables[after.table].column_names is not None
    with pytest.raises(TableError, match="column 'note' may be 'ssn'"):
        landing.schemas(wanted)


def test_the_merge_opens_landing_zones_with_the_projections_of_their_tables() -> None:
    """`LandingZone.of` does; its constructor would show left-out and masked values.

    Live views open one so for a layout alone, and read no event with it.
    """
    root = Path(landing_zone.__file__).parent
    opened = [path.name for path in root.rglob("*.py") if " LandingZone(" in path.read_text()]
    assert opened == ["live_views.py"]


class Reading(LandingZone):
    """A landing zone in a local folder that notes what is read; as in Spark, nothing is if a file is gone."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(None, str(folder), "shop")  # type: ignore[arg-type]
        self._manifests[manifest.number] = manifest
        self.reads: list[list[str]] = []

    def texts(self, paths: Sequence[str], wanted: Any = None) -> list[tuple[str, str]]:
        self.reads.append([path.rpartition("/")[2] for path in paths])
        files = [Path(path) for path in paths]
        return [(file.name, file.read_text()) for file in files] if all(map(Path.exists, files)) else []

    def _of_known_size(self, files: Collection[LandedFile]) -> set[str]:
        return {file.path for file in files}


def test_layouts_of_new_files_are_read_at_once_and_one_that_is_gone_or_damaged_stops_its_table_alone(
    tmp_path: Path,
) -> None:
    landed = Landed.local(tmp_path)
    layouts = [schema_of(f"public.{type_}", id="int", a=type_) for type_ in ("int", "string")]
    for layout in layouts:
        landed.table(layout)
    events = [Event("insert", 5, 0, {"id": 1, "a": None})]
    manifest = landed.commit(10, [landed.log(layout, events) for layout in layouts])
    landing = Reading(tmp_path, manifest)
    landing.read_ahead(0)
    assert landing.reads == [[f"{layout.id}.json" for layout in layouts]]
    pairs = [(layout.table, layout.id) for layout in layouts]
    assert landing.schemas(pairs) == {layout.id: layout for layout in layouts}
    assert len(landing.reads) == 1
    path = tmp_path / "shop" / schema_path(*pairs[0])
    for harm in (path.unlink, lambda: path.write_text("{")):
        harm()
        landing = Reading(tmp_path, manifest)
        landing.read_ahead(0)
        assert landing.schemas(pairs[1:]) == {layouts[1].id: layouts[1]}
        with pytest.raises((TableError, *UNEXPECTED)):
            landing.schemas(pairs[:1])
