from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.codec.cells import combine_raw, gather
from connector.codec.decoding import decoded as decoded_parts
from connector.landing.event_batch import arrow_type
from connector.postgres.codec.arrays import parse_array
from connector.postgres.codec.column_decoder import decode_column
from connector.schema import TableName
from tests.unit.postgres.codec.reference_codec import array_text, decode


def cells(texts):
    return pa.array([None if t is None else t.encode() for t in texts], pa.binary())


def decoded(texts, type_name):
    values, raw = decode_column(cells(texts), type_name)
    values.validate(full=True)
    assert values.type == arrow_type(type_name)
    if raw is not None:
        raw.validate(full=True)
        assert raw.type == pa.string()
    return values.to_pylist(), [None] * len(texts) if raw is None else raw.to_pylist()


def expected(texts, type_name):
    pairs = [decode(t, type_name) for t in texts]
    return [value for value, _ in pairs], [raw for _, raw in pairs]


LIMITS = {
    "smallint": ["-32768", "32767", "0"],
    "int": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "float": ["3.4028235e+38", "1e-45", "-0", "Infinity", "-Infinity", "0.1"],
    "double": ["1.7976931348623157e+308", "5e-324", "-0", "Infinity", "-Infinity", "0.1"],
    "boolean": ["t", "f"],
    "string": ["", "a", "ü\U0001f600", "NULL", "\\N", "\x01\x7f"],
    "binary": ["\\x", "\\x00", "\\xDEADbeef", "\\x5c78", "\\x" + bytes(range(256)).hex()],
    "decimal(38,0)": ["9" * 38, "-" + "9" * 38, "0", "1" + "0" * 38, "NaN"],
    "decimal(38,38)": ["0." + "9" * 38, "-0." + "9" * 38, "1." + "0" * 38],
    "decimal(4,2)": ["99.99", "-99.99", "0.00", "0.01", "100.00", "NaN", "Infinity", "-Infinity", "1.234"],
    "decimal(1,1)": ["0.9", "-0.1", "1.0"],
    "date": [
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "0044-03-15 BC",
        "infinity",
        "-infinity",
        "1582-10-10",
    ],
    "timestamp_ntz": [
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "2026-02-28 12:00:00.5",
        "2026-02-28 12:00:00.120000",
        "294276-12-31 23:59:59.999999",
        "4713-01-01 00:00:00 BC",
        "infinity",
        "-infinity",
    ],
    "timestamp": [
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
        "2026-02-28 12:00:00.5+00",
        "10000-01-01 00:00:00+00",
        "0001-12-31 23:00:00+00 BC",
        "infinity",
        "-infinity",
    ],
    "array<smallint>": ["{}", "{-32768,32767}", "{NULL}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{1,NULL,2}"],
    "array<int>": ["{}", "{1}", "{NULL,NULL}", "{{1}}", "[-1:0]={1,2}"],
    "array<bigint>": ["{9223372036854775807}", "{}"],
    "array<string>": [
        "{}",
        "{a}",
        '{"a b",c}',
        '{"",NULL,"NULL",null}',
        '{"\\"\\\\","{",","}',
        '{{"a"}}',
        "[2:2]={a}",
    ],
}


@pytest.mark.parametrize("type_name", LIMITS)
def test_limits_decode_as_the_oracle_says_alone_and_together(type_name):
    texts = LIMITS[type_name]
    assert decoded(texts, type_name) == expected(texts, type_name)
    with_nulls = [None, *texts, None]
    assert decoded(with_nulls, type_name) == expected(with_nulls, type_name)
    for text in texts:
        assert decoded([text], type_name) == expected([text], type_name), text


@pytest.mark.parametrize("type_name", LIMITS)
def test_no_rows_and_nulls_alone_decode(type_name):
    assert decoded([], type_name) == ([], [])
    assert decoded([None, None], type_name) == ([None, None], [None, None])


@pytest.mark.parametrize("type_name", LIMITS)
def test_a_slice_decodes_as_its_rows_do(type_name):
    texts = ["skipped" if type_name == "string" else LIMITS[type_name][0], *LIMITS[type_name], None]
    values, raw = decode_column(cells(texts)[1:], type_name)
    want = expected(texts[1:], type_name)
    assert values.to_pylist() == want[0]
    assert (raw.to_pylist() if raw is not None else [None] * len(want[1])) == want[1]


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int", "2147483648"),
        ("int", "x1"),
        ("bigint", "NaN"),
        ("double", "one"),
        ("boolean", "true"),
        ("boolean", ""),
        ("decimal(4,2)", "banana"),
        ("date", "today"),
        ("timestamp_ntz", "2026-02-30 00:00:00"),
        ("timestamp", "never"),
        ("binary", "\\x0g"),
        ("binary", "\\x012"),
        ("binary", "abcd"),
        ("binary", ""),
        ("array<int>", "{1,x}"),
        ("array<int>", "1,2"),
        ("array<string>", '{"open}'),
        ("array<string>", "{a,}"),
        ("array<string>", "{a}b"),
    ],
)
def test_a_text_that_is_no_value_of_its_type_is_refused(type_name, text):
    good = next(t for t in LIMITS[type_name] if decode(t, type_name)[1] is None)
    with pytest.raises(ValueError):
        decode_column(cells([good, None, text, good]), type_name)


@pytest.mark.parametrize(
    ("text", "type_name", "why"),
    [
        ("banana", "decimal(4,2)", "a text of 6 characters is not a value of decimal"),
        ("banana", "boolean", "a text of 6 characters is not a boolean"),
        ("{banana}", "array<int>", "an element is not a value of array<int>"),
        ("banana", "array<string>", "a text of 6 characters is not an array"),
        ('{"banana}', "array<string>", "a text of 9 characters is not an array: a quote is not closed"),
    ],
)
def test_a_refused_value_is_told_by_its_length_alone(text, type_name, why):
    """The reason is in the log, the manifest and on the status page."""
    with pytest.raises(ValueError, match=f"^{why}") as refused:
        decode_column(cells([None, text]), type_name)
    assert "banana" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_invalid_utf8_never_becomes_a_string():
    with pytest.raises(ValueError):
        decode_column(pa.array([b"ok", b"\xff"]), "string")


def test_nan_is_held_by_double_and_float():
    for type_name in ("double", "float"):
        values, raw = decode_column(cells(["NaN"]), type_name)
        assert np.isnan(values[0].as_py())
        assert raw is None


elements = st.lists(
    st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), max_size=4
)


@given(st.lists(st.none() | elements, max_size=6))
def test_text_arrays_come_back_as_they_were_written(lists):
    texts = [None if value is None else array_text(value) for value in lists]
    assert decoded(texts, "array<string>")[0] == lists
    assert [parse_array(t) for t in texts if t is not None] == [v for v in lists if v is not None]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4), max_size=6))
def test_integer_arrays_come_back_as_they_were_written(lists):
    texts = [None if value is None else array_text(value) for value in lists]
    assert decoded(texts, "array<int>")[0] == lists


@given(st.lists(st.none() | st.binary(max_size=9), max_size=8))
def test_bytea_comes_back_as_it_was_written(values):
    texts = [None if value is None else "\\x" + value.hex() for value in values]
    assert decoded(texts, "binary")[0] == values


@given(st.binary(max_size=30), st.data())
def test_gathered_ranges_are_the_bytes_they_span(data, draw):
    bounds = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=10)))
    bounds = bounds[: len(bounds) // 2 * 2]
    ranges = [
        pair
        for pair in zip(bounds[::2], bounds[1::2], strict=True)
        for _ in range(draw.draw(st.integers(1, 2)))
    ]
    starts, ends = (np.array([r[i] for r in ranges], np.int64) for i in (0, 1))
    got = gather(np.frombuffer(data, np.uint8), starts, ends)
    assert got.to_pylist() == [data[low:high] for low, high in ranges]


def test_raw_texts_of_columns_become_a_map_per_row():
    raws = {"a": pa.array([None, "x", None, "w"]), "b": None, "c": pa.array(["z", "y", None, None])}
    combined = combine_raw(raws)
    combined.validate(full=True)
    assert combined.type == pa.map_(pa.string(), pa.string())
    assert combined.to_pylist() == [[("c", "z")], [("a", "x"), ("c", "y")], None, [("a", "w")]]


def test_no_raw_texts_make_no_map():
    assert combine_raw({"a": None, "b": None}) is None
    assert combine_raw({}) is None


@pytest.mark.parametrize("texts", [["\\x00ff"], ["\\x", None, "\\xABcd"], ["\\x0g"], ["\\x0"], ["00"], [""]])
def test_large_bytea_is_decoded_as_small(texts, monkeypatch):
    def outcome():
        try:
            return decoded(texts, "binary")[0]
        except ValueError:
            return "refused"

    small = outcome()
    monkeypatch.setattr("connector.postgres.codec.column_decoder._LARGE_BYTES", 0)
    assert outcome() == small


@pytest.mark.parametrize(
    ("values", "into", "said"),
    [
        (["it's secret"], pa.int32(), "Failed to parse string: '...' as a scalar of type int32"),
        ([12345], pa.int8(), "Integer value ... not in range: ... to ..."),
        ([-1.2345], pa.int64(), "Float value ... was truncated converting to int64"),
    ],
)
def test_what_arrow_says_of_a_value_is_no_reason_for_a_quarantine(values, into, said):
    class Part:
        table, lsn = TableName("public", "t"), 7

        def decode(self):
            yield pa.array(values).cast(into)

    (notice,) = decoded_parts([Part()])
    assert notice.reason == said
