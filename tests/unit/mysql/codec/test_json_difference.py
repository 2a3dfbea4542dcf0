from __future__ import annotations

import pytest

from connector.mysql.codec.json_difference import changed_text
from tests.unit.mysql import reference_mysql as reference

REPLACE, INSERT, REMOVE = range(3)


def changed(before, *operations):
    data = b""
    for kind, path, *value in operations:
        data += bytes([kind]) + reference.packed_text(path)
        data += b"".join(reference.packed_text(reference.json_document(v)) for v in value)
    return changed_text(reference.json_document(before), data)


def test_operations_act_on_what_the_ones_before_have_made():
    text = changed([1], (INSERT, "$[0]", {}), (INSERT, "$[0].k", 2), (REMOVE, "$[1]"), (REPLACE, "$[0].k", 3))
    assert text == '[{"k": 3}]'


def test_new_members_take_their_place_in_mysqls_order():
    text = changed({"b": 1, "ü": 2}, (INSERT, "$.aa", 3), (INSERT, "$.a", 4), (INSERT, '$.""', 5))
    assert text == '{"": 5, "a": 4, "b": 1, "aa": 3, "ü": 2}'


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("$.a", "a"),
        ('$."a b"', "a b"),
        ('$."a.\\"[0]"', 'a."[0]'),
        ("$.ü", "ü"),
        ('$."\\u0001"', "\x01"),
        ('$."last"', "last"),
    ],
)
def test_members_are_named_as_mysql_names_them(path, name):
    assert changed({name: 1, "z": 2}, (REMOVE, path)) == '{"z": 2}'


@pytest.mark.parametrize(
    ("path", "left"), [("$[0]", "[2, 3]"), ("$[last]", "[1, 2]"), ("$[last-1]", "[1, 3]")]
)
def test_elements_are_counted_from_either_end(path, left):
    assert changed([1, 2, 3], (REMOVE, path)) == left


def test_an_element_beyond_the_end_is_the_new_last_one():
    assert changed([1], (INSERT, "$[7]", 2), (INSERT, "$[0]", 0)) == "[0, 1, 2]"


@pytest.mark.parametrize(
    "operation",
    [
        (REPLACE, "$.x", 1), (REPLACE, "$[0]", 1), (REMOVE, "$.a[5]"), (REMOVE, "$.a.b"),
        (REMOVE, "$.a[last-9]"), (INSERT, "$.a", 1), (INSERT, "$.a.b", 1), (INSERT, "$.n[0]", 1),
        (INSERT, "$.x.y", 1), (REMOVE, "$.a[*]"), (REMOVE, "$"), (REMOVE, "$..a"), (REMOVE, "a"), (9, "$.a"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_document_is_refused(operation):
    with pytest.raises(ValueError, match="JSON difference"):
        changed({"a": [1], "n": 1}, operation)


def test_a_difference_cut_short_is_refused_and_one_with_a_long_value_is_read():
    data = (
        bytes([REPLACE])
        + reference.packed_text("$.a")
        + reference.packed_text(reference.json_document("x" * 70_000))
    )
    before = reference.json_document({"a": 1})
    assert len(changed_text(before, data)) > 70_000
    for end in (1, 3, 7, 60_000, len(data) - 1):
        with pytest.raises(ValueError, match="JSON difference"):
            changed_text(before, data[:end])
