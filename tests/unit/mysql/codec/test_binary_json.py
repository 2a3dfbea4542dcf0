from __future__ import annotations

import json
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.mysql.codec.binary_json import double_text, json_text
from tests.unit.mysql import reference_mysql as reference


def in_order(value):
    """The value with its members in MySQL's order."""
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        return {k: in_order(value[k]) for k in ordered}
    return [in_order(v) for v in value] if isinstance(value, list) else value


texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=25,
)


@given(documents)
def test_documents_become_the_text_of_their_value(value):
    text = json_text(reference.json_document(value))
    assert json.loads(text) == value
    assert list(json.loads(text)) == list(in_order(value)) if isinstance(value, dict) else True


def test_the_text_is_formatted_as_mysql_formats_it():
    value = {"bb": [1, 2.5, None, True, False], "a": 'q"\\\n\x01ü/', "": {}}
    assert (
        json_text(reference.json_document(value))
        == '{"": {}, "a": "q\\"\\\\\\n\\u0001ü/", "bb": [1, 2.5, null, true, false]}'
    )


@pytest.mark.parametrize("count", [3, 30_000])
def test_small_and_large_containers_hold_the_same(count):
    value = {
        "list": list(range(count)),
        "wide": [2**31 - 1, -(2**31), "x" * count],
        "nested": {"k": {"l": []}},
    }
    assert json.loads(json_text(reference.json_document(value))) == value


def test_no_bytes_are_jsons_null():
    assert json_text(b"") == "null"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-2.5, "-2.5"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (1e14, "100000000000000.0"),
        (1e15, "1e15"),
        (123456789012345.6, "123456789012345.6"),
        (1.5e300, "1.5e300"),
        (5e-324, "5e-324"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
    ],
)
def test_doubles_are_formatted_as_my_gcvt_formats_them(value, text):
    assert double_text(value) == text
    assert json_text(b"\x0b" + struct.pack("<d", value)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_doubles_text_is_that_double(value):
    assert float(double_text(value)) == value


def opaque(field_type, data):
    return bytes([15, field_type, len(data)]) + data


def moment(y, mo, d, h, mi, s, micros):
    packed = (((y * 13 + mo) << 5 | d) << 17 | h << 12 | mi << 6 | s) << 24 | micros
    return struct.pack("<q", packed)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (opaque(246, bytes([10, 2]) + reference.decimal(Decimal("-123.40"), 10, 2)), "-123.40"),
        (opaque(246, bytes([65, 30]) + reference.decimal(Decimal("0.5"), 65, 30)), "0.5" + "0" * 29),
        (opaque(12, moment(2026, 11, 21, 1, 2, 3, 45)), '"2026-11-21 01:02:03.000045"'),
        (opaque(7, moment(2026, 11, 21, 1, 2, 3, 0)), '"2026-11-21 01:02:03.000000"'),
        (opaque(10, moment(2026, 11, 21, 0, 0, 0, 0)), '"2026-11-21"'),
        (opaque(11, struct.pack("<q", (100 << 12 | 2 << 6 | 3) << 24 | 5)), '"100:02:03.000005"'),
        (opaque(11, struct.pack("<q", -((1 << 12 | 2 << 6 | 3) << 24))), '"-01:02:03.000000"'),
        (opaque(252, b"abc"), '"base64:type252:YWJj"'),
    ],
)
def test_opaque_values_are_formatted_as_mysql_formats_them(document, text):
    assert json_text(document) == text


@given(documents, st.data())
def test_a_damaged_document_is_refused_or_read_but_never_crashes(value, data):
    document = reference.json_document(value)
    cut = document[: data.draw(st.integers(1, len(document)))]
    try:
        json_text(cut)
    except ValueError:
        pass
