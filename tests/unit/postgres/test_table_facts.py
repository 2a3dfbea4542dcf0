"""Which columns of the log identify a table's rows, as the catalog says."""

from __future__ import annotations

import pytest

from connector.postgres.definitions.table_facts import Index, TableFacts
from connector.schema import TableName


def _facts(identity: str, columns: tuple[str, ...], generated: tuple[str, ...] = ()) -> TableFacts:
    index = Index(frozenset(), "i", columns, (), generated, identity != "i", identity == "i", True)
    return TableFacts(1, TableName("public", "t"), False, identity, (index,), None)


@pytest.mark.parametrize("identity", ["d", "i"])
def test_a_generated_column_of_the_key_is_not_missed_in_the_log(identity: str) -> None:
    """It never has it: the table, even if unfit, would keep all others waiting for a synchronous standby."""
    facts = _facts(identity, ("id", "day"), ("day",))
    assert facts.identifies_by({"id"}, {"id", "v"})
    assert facts.identifies_by({"id", "day"}, {"id", "day", "v"}), "a publication may have it"
    assert not facts.identifies_by({"id", "v"}, {"id", "v"})


def test_the_whole_row_identifies_where_the_log_has_all_columns_of_the_old_one() -> None:
    facts = _facts("f", ("id", "day"), ("day",))
    assert facts.identifies_by({"id", "v"}, {"id", "v"})
    assert not facts.identifies_by({"id"}, {"id", "v"})
