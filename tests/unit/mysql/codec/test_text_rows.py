from __future__ import annotations

import datetime
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.codec.cells import gather
from connector.errors import BugError
from connector.landing.event_batch import arrow_type
from connector.mysql.codec.charsets import decode_texts
from connector.mysql.codec.text_rows import RowStream, decode_rows, decode_text, split_rows
from connector.mysql.codec.types import DOUBLE, FLOAT, ColumnType, select_expression, type_of_catalog
from tests.unit.mysql import reference_mysql as reference

cells = st.none() | st.binary(max_size=6) | st.sampled_from([b"x" * 250, b"y" * 251])
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), max_size=8))


def values(rows, columns):
    found = [gather(rows.data, *ranges).to_pylist() for ranges in split_rows(rows, columns)]
    return [list(row) for row in zip(*found, strict=True)]


@given(tables, st.integers(1, 2_000))
def test_rows_come_back_however_their_bytes_are_cut(table, size):
    data = b"".join(map(reference.text_row, table)) + reference.EOF + b"next"
    stream, found = RowStream(), []
    for low in range(0, len(data), size):
        stream.feed(data[low : low + size])
        if not stream.ended:
            found += values(stream.take(), len(table[0]) if table else 1)
    assert found == table
    assert stream.ended
    assert bytes(stream.rest) == b"next"
    assert stream.error is None


def test_rows_that_span_packets_are_joined():
    table = [[b"a"], [b"z" * 70_000], [b"x" * (1 << 24)], [b"y" * (0xFFFFFF - 9)], [b"b"]]
    stream = RowStream()
    data = b"".join(map(reference.text_row, table)) + reference.EOF
    found = []
    for low, high in ((0, 70_010), (70_010, 70_017), (70_017, 1 << 24), (1 << 24, len(data))):
        stream.feed(data[low:high])
        found += values(stream.take(), 1)
        while stream.pending:
            found += values(stream.take(), 1)
    assert found == table
    assert stream.ended


def test_an_error_ends_the_rows():
    stream = RowStream()
    error = b"\xff\x16\x04#3D000lost"
    stream.feed(reference.text_row([b"1"]) + reference.packet(error))
    assert values(stream.take(), 1) == [[b"1"]]
    assert (stream.ended, stream.error) == (True, error)


def test_rows_of_other_columns_are_a_bug():
    for row in ([b"1"], [b"1", b"2", b"3"]):
        stream = RowStream()
        stream.feed(reference.text_row(row))
        with pytest.raises(BugError, match="does not have 2 columns"):
            split_rows(stream.take(), 2)


UTC = datetime.timezone.utc
LANDED = [
    ("tinyint(1)", "-128", -128),
    ("bigint(20) unsigned", "18446744073709551615", Decimal(2**64 - 1)),
    ("int(10) unsigned zerofill", "0000000042", 42),
    ("year(4)", "0000", 0),
    ("decimal(10,2)", "-0.01", Decimal("-0.01")),
    ("decimal(8,2) unsigned zerofill", "000012.50", Decimal("12.50")),
    ("decimal(65,30)", "0.5" + "0" * 29, "0.5" + "0" * 29),
    ("decimal(40,1) unsigned zerofill", "0" * 38 + "1.5", "1.5"),
    ("decimal(40,1) unsigned zerofill", "0" * 39 + ".5", "0.5"),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    ("float", "0.10000000149011612", struct.unpack("f", struct.pack("f", 0.1))[0]),
    ("date", "0001-01-01", datetime.date(1, 1, 1)),
    ("datetime(6)", "9999-12-31 23:59:59.999999", datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("timestamp(2)", "2026-07-01 00:00:00.12", datetime.datetime(2026, 7, 1, 0, 0, 0, 120000, UTC)),
    ("time(1)", "-838:59:58.5", "-838:59:58.5"),
    ("json", '{"a": "ü"}', '{"a": "ü"}'),
    ("enum('a','b')", "b", "b"),
    ("uuid", "01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8057"),
]


@pytest.mark.parametrize(("column_type", "text", "value"), LANDED)
def test_texts_land_as_values_of_their_type(column_type, text, value):
    type_ = type_of_catalog(column_type, "utf8mb4" if "enum" in column_type else None)
    array, raw = decode_text(pa.array([None, text.encode()], pa.binary()), type_)
    array.validate(full=True)
    assert array.type == arrow_type(type_.landing)
    assert (array.to_pylist(), raw) == ([None, value], None)


@pytest.mark.parametrize(
    ("column_type", "good", "text"),
    [
        ("date", "2024-02-29", "0000-00-00"),
        ("date", "2024-02-29", "2023-02-29"),
        ("date", "2024-02-29", "0000-01-01"),
        ("datetime(3)", "2024-02-29 00:00:00.000", "2024-00-10 01:02:03.004"),
        ("timestamp", "2024-02-29 00:00:00", "0000-00-00 00:00:00"),
    ],
)
def test_dates_that_do_not_exist_are_null_with_their_text_beside(column_type, good, text):
    texts = pa.array([good.encode(), None, text.encode()], pa.binary())
    array, raw = decode_text(texts, type_of_catalog(column_type, None))
    assert array.is_valid().to_pylist() == [True, False, False]
    assert raw.to_pylist() == [None, None, text]


def test_a_year_of_two_digits_is_refused_as_its_log_has_four():
    assert type_of_catalog("year(4)", None).code == type_of_catalog("year", None).code
    with pytest.raises(ValueError, match="change it to year"):
        type_of_catalog("year(2)", None)


@pytest.mark.parametrize(
    ("column_type", "text"), [("int", "x"), ("date", "today"), ("decimal(4,1)", "12345.6")]
)
def test_a_text_that_is_no_value_of_its_type_is_refused(column_type, text):
    with pytest.raises(ValueError):
        decode_text(pa.array([b"1", text.encode()], pa.binary()), type_of_catalog(column_type, None))


def test_bits_come_as_bytes_and_land_as_numbers():
    stream = RowStream()
    stream.feed(b"".join(map(reference.text_row, [[b"\x01\xff", b"a"], [None, None], [b"\x00\x05", b"b"]])))
    types = [type_of_catalog("bit(9)", None), type_of_catalog("char(1)", "utf8mb4")]
    arrays, raws = decode_rows(stream.take(), types)
    assert [array.to_pylist() for array in arrays] == [[511, None, 5], ["a", None, "b"]]
    assert raws == [None, None]


def point(value):
    return None if value is None else struct.pack("<IBIdd", 0, 1, 1, value, 0)


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_floats_and_doubles_come_as_points_whose_x_they_are(numbers):
    stream = RowStream()
    table = [[point(number), b"a", point(number)] for number in numbers]
    stream.feed(b"".join(map(reference.text_row, table)))
    types = [type_of_catalog(name, "utf8mb4") for name in ("float", "char(1)", "double")]
    (floats, _, doubles), raws = decode_rows(stream.take(), types)
    for array, type_ in ((floats, pa.float32()), (doubles, pa.float64())):
        array.validate(full=True)
        assert (array.type, list(map(repr, array.to_pylist()))) == (type_, list(map(repr, numbers)))
    assert raws == [None] * 3


def test_a_double_that_does_not_come_as_a_point_is_a_bug():
    stream = RowStream()
    stream.feed(b"".join(map(reference.text_row, [[point(1.0)], [b"1.5"]])))
    with pytest.raises(BugError, match="a double did not come as a point"):
        decode_rows(stream.take(), [type_of_catalog("double", None)])


def test_only_floats_need_another_expression():
    for code in (FLOAT, DOUBLE):
        assert select_expression("`f`", ColumnType(code)) == "Point(`f`, 0)"
    assert select_expression("`i`", type_of_catalog("int", None)) == "`i`"


@given(st.lists(st.none() | st.text(st.characters(codec="cp1252"), max_size=9), max_size=9))
def test_latin1_is_cp1252(texts):
    encoded = pa.array([None if t is None else t.encode("cp1252") for t in texts], pa.binary())
    decoded = decode_texts(encoded, "latin1")
    decoded.validate(full=True)
    assert decoded.to_pylist() == texts


def test_the_five_bytes_that_cp1252_leaves_out_are_control_characters_in_mysql():
    found = decode_texts(pa.array([bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])], pa.binary()), "latin1")
    assert found.to_pylist() == ["\x81\x8d\x8f\x90\x9d"]


@pytest.mark.parametrize(
    ("charset", "data", "text"),
    [
        ("utf16", "a😀".encode("utf-16-be"), "a😀"),
        ("ucs2", "日".encode("utf-16-be"), "日"),
        ("sjis", b"\x81\x5f", "\\"),
        ("koi8u", b"\x95\xeb", "•К"),
        ("cp866", b"\xfc\xfd", "ⁿ²"),
        ("gbk", "汉".encode("gbk"), "汉"),
    ],
)
def test_character_sets_map_as_the_server_maps_them(charset, data, text):
    assert decode_texts(pa.array([data, None], pa.binary()), charset).to_pylist() == [text, None]


@pytest.mark.parametrize(("charset", "data"), [("utf8mb4", b"\xff"), ("ascii", b"\x80"), ("cp1257", b"\x81")])
def test_bytes_that_a_character_set_does_not_define_are_refused(charset, data):
    with pytest.raises(ValueError):
        decode_texts(pa.array([b"ok", data], pa.binary()), charset)


def test_gathered_ranges_are_the_bytes_they_span():
    data = np.frombuffer(b"abcdef", np.uint8)
    starts, ends = np.array([0, 1, 1, 4]), np.array([1, 3, 3, 4])
    assert gather(data, starts, ends).to_pylist() == [b"a", b"bc", b"bc", b""]
