"""Which table a tablespace is of."""

from __future__ import annotations

from connector.mysql.table_ids import _names_of_table


def test_a_tablespace_is_of_the_table_with_the_longest_name_that_it_may_be_of() -> None:
    """It may be of a partition, and so may a table's name look."""
    assert [*_names_of_table("d/t")] == ["d/t"]
    assert [*_names_of_table("d/t#p#x#P#y#sp#z")] == ["d/t#p#x#P#y#sp#z", "d/t#p#x", "d/t"]
