"""Where the Delta tables of a source's tables are."""

from __future__ import annotations

import pytest

from connector.errors import ConfigurationError
from connector.schema import TableName
from merge.lake.target import targets_of
from merge.shapes.shape import targets_with_shapes
from tests.support.landing.landed import config_of

FOLDER = config_of("/landing", "/lake")


def located(*names: str) -> dict[str, str]:
    """The folders of some tables of one source, none of which hinders another."""
    found = targets_of(FOLDER, map(TableName.parse, names))
    assert not [target for target in found.values() if target.rival]
    assert len({target.name.lower() for target in found.values()}) == len(names)
    return {str(table): target.name.removeprefix("delta.`/lake/")[:-1] for table, target in found.items()}


def test_masks_under_a_name_in_another_case_are_refused() -> None:
    """MySQL may keep names in lower case: the masks would be of no table."""
    masked = {"Sales.T": {"mask": {"card": "null"}}}
    (lower,) = map(TableName.parse, ["sales.t"])
    with pytest.raises(ConfigurationError, match=r"Sales.T.* but the table's name is 'sales.t'"):
        targets_of(config_of("/landing", "/lake", **masked), [lower])
    both = config_of("/landing", "/lake", **masked, **{"sales.t": {}})
    assert targets_of(both, [lower])[lower].columns is None


def test_masks_of_no_captured_table_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("/landing", "/lake", **{"sales.misspelled": {"mask": {"card": "null"}}})
    for _ in range(2):
        targets_with_shapes(config, targets_of(config, [TableName("sales", "spelled")]), {})
    assert caplog.messages == [
        '[tables."sales.misspelled"] masks, leaves out and filters nothing: no such table is captured'
    ]


@pytest.mark.parametrize("names", [("Sales.t", "sales.t"), ("Sales.T", "sales.t"), ("sales.T", "sales.t")])
def test_of_names_that_differ_only_by_case_the_lower_one_stays_plain(names: tuple[str, str]) -> None:
    odd, plain = names
    found = located(*names)
    assert found[plain] == "sales/t"
    assert found[odd].startswith(f"{odd.replace('.', '/')}_")
    assert located(odd) == {odd: odd.replace(".", "/")}


def test_two_odd_names_have_two_folders_and_another_table_of_theirs_keeps_its_name() -> None:
    found = located("SALES.t", "Sales.t", "sales.u", "Sales.V")
    assert (found["sales.u"], found["Sales.V"]) == ("sales/u", "Sales/V")


def test_in_one_namespace_only_the_name_counts() -> None:
    found = located("Sales.T", "Sales.t")
    assert found["Sales.T"].partition("/")[2] == located("s.T", "s.t")["s.T"][2:]
    assert found["Sales.t"] == "Sales/t"
