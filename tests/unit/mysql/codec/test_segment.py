"""Row events of random tables, encoded by the reference, against the values that they were made of."""

from __future__ import annotations

import datetime
import zlib
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import BugError, TableError
from connector.landing.event_batch import EventBatch, QuarantineNotice
from connector.mysql.codec import rows_event as rows_module
from connector.mysql.codec import segment as segment_module
from connector.mysql.codec.rows_event import make_truncate_event
from connector.mysql.codec.segment import MysqlSegment, SegmentLayout, Transactions
from connector.mysql.codec.table_map import parse_table_map
from connector.mysql.codec.types import type_of_catalog
from connector.position import pack_binlog_position
from connector.schema import TableName
from connector.source import ResumePoint
from tests.unit.mysql import reference_mysql as reference
from tests.unit.mysql.reference_mysql import Col

UTF8, LATIN1, BINARY = 45, 8, 63


@dataclass
class Kind:
    """A kind of column: its description, and a strategy of (bytes in the log, landed value[, raw text])."""

    column: Col
    cells: Any
    type_name: str = ""


def integers(code, width, unsigned, type_name):
    low, high = (0, 2 ** (8 * width) - 1) if unsigned else (-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1)
    cells = st.integers(low, high).map(lambda v: (reference.integer(v, width), v))
    return Kind(Col("", code, unsigned=unsigned), cells, type_name)


def decimals(precision, scale):
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    values = (
        digits.map(lambda d: Decimal(d).scaleb(-scale))
        if precision < 28
        else digits.map(lambda d: Decimal((int(d < 0), tuple(map(int, str(abs(d)))), -scale)))
    )
    cells = values.map(lambda v: (reference.decimal(v, precision, scale), f"{v:f}" if precision > 38 else v))
    return Kind(
        Col("", 246, bytes([precision, scale]), unsigned=False), cells, f"decimal({precision},{scale})"
    )


def strings(code, meta, prefix, collation, texts, encoding, type_name):
    cells = texts.map(lambda t: (reference.varchar(t.encode(encoding), prefix), t))
    return Kind(Col("", code, meta, collation=collation), cells, type_name)


def binaries(code, meta, prefix, width, type_name):
    def cell(value):
        stored = value.rstrip(b"\0") if width else value
        return reference.varchar(stored, prefix), value.ljust(width or 0, b"\0")

    return Kind(Col("", code, meta, collation=BINARY), st.binary(max_size=width or 20).map(cell), type_name)


moments = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))


def datetimes(scale):
    def cell(m):
        m = m.replace(microsecond=m.microsecond // 10 ** (6 - scale) * 10 ** (6 - scale))
        fields = (m.year, m.month, m.day, m.hour, m.minute, m.second, m.microsecond)
        return reference.datetime2(*fields, scale), m

    return Kind(Col("", 18, bytes([scale])), moments.map(cell), f"datetime({scale})" if scale else "datetime")


def timestamps(scale):
    def cell(pair):
        micros = pair[1] // 10 ** (6 - scale) * 10 ** (6 - scale)
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        landed = epoch + datetime.timedelta(seconds=pair[0], microseconds=micros)
        return reference.timestamp2(pair[0], micros, scale), landed

    seconds = st.integers(1, 2**32 - 1)
    cells = st.tuples(seconds, st.integers(0, 999_999)).map(cell)
    return Kind(Col("", 17, bytes([scale])), cells, f"timestamp({scale})" if scale else "timestamp")


def times(scale):
    def cell(parts):
        negative, h, m, s, micros = parts
        micros = micros // 10 ** (6 - scale) * 10 ** (6 - scale)
        negative = negative and bool(h or m or s or micros)
        fraction = f".{micros:06d}"[: scale + 1] if scale else ""
        text = f"{'-' if negative else ''}{h:02d}:{m:02d}:{s:02d}{fraction}"
        return reference.time2(negative, h, m, s, micros, scale), text

    sixty = st.integers(0, 59)
    cells = st.tuples(st.booleans(), st.integers(0, 838), sixty, sixty, st.integers(0, 999_999)).map(cell)
    return Kind(Col("", 19, bytes([scale])), cells, f"time({scale})" if scale else "time")


def old_time(value):
    sign, value = ("-" if value < 0 else ""), abs(value)
    return f"{sign}{value // 3600:02d}:{value // 60 % 60:02d}:{value % 60:02d}"


def old_time_number(value):
    size = abs(value)
    number = size // 3600 * 10_000 + size // 60 % 60 * 100 + size % 60
    return reference.integer(-number if value < 0 else number, 3)


LETTERS = ("a", "ü", "c,d", "'")
latin1 = st.text(st.characters(codec="cp1252"), max_size=20)
utf8 = st.text(st.characters(codec="utf-8"), max_size=5)
KINDS = [
    integers(1, 1, False, "tinyint"),
    integers(1, 1, True, "tinyint unsigned"),
    integers(2, 2, False, "smallint"),
    integers(2, 2, True, "smallint unsigned"),
    integers(9, 3, False, "mediumint"),
    integers(9, 3, True, "mediumint unsigned"),
    integers(3, 4, False, "int"),
    integers(3, 4, True, "int unsigned"),
    integers(8, 8, False, "bigint"),
    Kind(
        Col("", 8, unsigned=True),
        st.integers(0, 2**64 - 1).map(lambda v: (reference.integer(v, 8), Decimal(v))),
        "bigint unsigned",
    ),
    *(decimals(p, s) for p, s in ((1, 0), (3, 3), (10, 2), (18, 9), (19, 0), (38, 38), (38, 11), (65, 30))),
    Kind(
        Col("", 13, unsigned=True),
        st.integers(0, 255).map(lambda v: (bytes([v]), v + 1900 if v else 0)),
        "year",
    ),
    Kind(
        Col("", 16, bytes([1, 1])),
        st.integers(0, 511).map(lambda v: (v.to_bytes(2, "big"), v)),
        "bit(9)",
    ),
    Kind(
        Col("", 16, bytes([0, 8])),
        st.integers(0, 2**64 - 1).map(lambda v: (v.to_bytes(8, "big"), Decimal(v))),
        "bit(64)",
    ),
    Kind(Col("", 10), st.dates().map(lambda d: (reference.date(d.year, d.month, d.day), d)), "date"),
    *(datetimes(scale) for scale in (0, 1, 4, 6)),
    *(timestamps(scale) for scale in (0, 3, 6)),
    *(times(scale) for scale in (0, 1, 2, 3, 5, 6)),
    Kind(
        Col("", 12),
        moments.map(
            lambda m: (
                reference.integer(int(m.strftime("%Y").lstrip("0") + m.strftime("%m%d%H%M%S")), 8),
                m.replace(microsecond=0),
            )
        ),
        "datetime",
    ),
    Kind(
        Col("", 11),
        st.integers(-(838 * 3600 + 3599), 838 * 3600 + 3599).map(lambda v: (old_time_number(v), old_time(v))),
        "time",
    ),
    strings(15, b"\x50\x00", 1, UTF8, utf8, "utf-8", "varchar(20)"),
    strings(15, b"\xb0\x04", 2, UTF8, utf8, "utf-8", "varchar(300)"),
    strings(15, b"\x14\x00", 1, LATIN1, latin1, "cp1252", "varchar(20)"),
    strings(254, b"\xfe\x28", 1, UTF8, utf8, "utf-8", "char(10)"),
    strings(254, b"\xce\xfc", 2, UTF8, utf8, "utf-8", "char(255)"),
    strings(252, b"\x01", 1, UTF8, utf8, "utf-8", "tinytext"),
    strings(252, b"\x02", 2, LATIN1, latin1, "cp1252", "text"),
    strings(252, b"\x03", 3, UTF8, utf8, "utf-8", "mediumtext"),
    strings(252, b"\x04", 4, UTF8, utf8, "utf-8", "longtext"),
    binaries(254, b"\xfe\x08", 1, 8, "binary(8)"),
    binaries(15, b"\x2c\x01", 2, None, "varbinary(300)"),
    binaries(252, b"\x03", 3, None, "mediumblob"),
    Kind(
        Col("", 254, b"\xf7\x01", collation=UTF8, values=LETTERS, real=247),
        st.integers(0, len(LETTERS)).map(lambda v: (bytes([v]), ("", *LETTERS)[v])),
        "enum('a','ü','c,d','''')",
    ),
    Kind(
        Col("", 254, b"\xf8\x01", collation=UTF8, values=LETTERS, real=248),
        st.integers(0, 15).map(
            lambda v: (bytes([v]), ",".join(x for b, x in enumerate(LETTERS) if v >> b & 1))
        ),
        "set('a','ü','c,d','''')",
    ),
    Kind(
        Col("", 245, b"\x04"),
        st.integers(0, 9).map(
            lambda v: (reference.varchar(reference.json_document({"v": v}), 4), f'{{"v": {v}}}')
        ),
        "json",
    ),
    Kind(
        Col("", 255, b"\x04"),
        st.binary(max_size=9).map(lambda v: (reference.varchar(v, 4), v.hex().upper())),
        "geometry",
    ),
]


@dataclass
class Written:
    """Events of one table, and the rows that must land of them."""

    columns: list[Col]
    events: list[bytes] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def segment(self, events=None, **options) -> MysqlSegment:
        events = self.events if events is None else events
        mapped = parse_table_map(reference.table_map(7, self.columns, key=[0]), mariadb=False)
        transactions = Transactions()
        transactions.add(0, pack_binlog_position(3, 4), 1_700_000_000_000_000, "uuid:1")
        layout = SegmentLayout(0, 7, mapped, mapped.schema(), partial_images=True)
        return MysqlSegment(
            1, ResumePoint(99), None, events, range(len(events)), transactions, [layout], **options
        )


def landed(segment):
    batches = list(segment.decode())
    assert all(isinstance(batch, EventBatch) for batch in batches), batches
    for batch in batches:
        batch.table.validate(full=True)
    return [row for batch in batches for row in batch.table.to_pylist()]


def reread(raw):
    return dict(raw) if raw else {}


@st.composite
def histories(draw):
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=9))
    columns = [Col("id", 3, unsigned=False)]
    for number, kind in enumerate(kinds):
        columns.append(Col(**{**kind.column.__dict__, "name": f"c{number}"}))
    written, second = Written(columns), draw(st.booleans())
    key = st.integers(-(2**31), 2**31 - 1)

    def row(key_value):
        cells = [draw(st.none() | kind.cells) for kind in kinds]
        return [(reference.integer(key_value, 4), key_value), *(c or (None, None) for c in cells)]

    def present():
        return [True, *(draw(st.booleans()) for _ in kinds)]

    for event in range(draw(st.integers(1, 6))):
        operation = draw(st.sampled_from(["insert", "update", "delete"]))
        first, after = present(), present()
        images, count = [], draw(st.integers(1, 4))
        for ordinal in range(count):
            seq, old_key = (event << 32) + 2 * ordinal, draw(key)
            old = row(old_key)
            new = row(draw(st.just(old_key) | key))
            image = lambda cells, bits: reference.image([c[0] for c in cells], bits)  # noqa: E731
            if operation == "insert":
                images.append(image(new, first))
                written.rows.append(("insert", seq, expected(new, first), lacking(columns, first)))
            elif operation == "delete":
                images.append(image(old, first))
                written.rows.append(("delete", seq, [old_key, *[None] * len(kinds)], None))
            else:
                images.append(image(old, first) + image(new, after))
                merged = [n if a else o for o, n, a in zip(old, new, after, strict=True)]
                both = [a or b for a, b in zip(first, after, strict=True)]
                whole = expected(merged, both), lacking(columns, both)
                # MariaDB, whose events are of version 1, logs a REPLACE as an update that lacks columns.
                if new[0][1] == old_key and (second or all(both)):
                    written.rows.append(("update", seq, *whole))
                else:
                    written.rows.append(("delete", seq, [old_key, *[None] * len(kinds)], None))
                    written.rows.append(("insert", seq + 1, *whole))
        kind = {"insert": 30, "update": 31, "delete": 32}[operation] - (0 if second else 7)
        bitmaps = [first, after] if operation == "update" else [first]
        written.events.append(reference.rows_event(kind, 7, len(columns), images, bitmaps))
    return written


def expected(cells, bits):
    return [cell[1] if bit else None for cell, bit in zip(cells, bits, strict=True)]


def lacking(columns, bits):
    return [c.name for c, bit in zip(columns, bits, strict=True) if not bit] or None


@pytest.mark.parametrize("few_events", [0, 1000])
@given(written=histories())
def test_histories_land_as_they_were_written(few_events, written):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_FEW_EVENTS", few_events)
        found = landed(written.segment())
    names = [column.name for column in written.columns]
    assert [
        (r["_cdc"]["op"], r["_cdc"]["seq"], [r[n] for n in names], r["_cdc"]["unchanged"]) for r in found
    ] == [(op, seq, values, unchanged) for op, seq, values, unchanged in written.rows]
    assert all(r["_cdc"]["raw"] is None for r in found)
    assert {(r["_cdc"]["lsn"], r["_cdc"]["txid"]) for r in found} == {(pack_binlog_position(3, 4), "uuid:1")}


@given(written=histories(), base=st.integers(0, 3), tail=st.integers(0, 4), window=st.integers(1, 4))
def test_windows_base_and_tail_change_nothing(written, base, tail, window):
    wrapped = [b"\xaa" * base + event + b"\xbb" * tail for event in written.events]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "WINDOW_EVENTS", window)
        assert landed(written.segment(wrapped, base=base, tail=tail)) == landed(written.segment())


@pytest.mark.parametrize(("dimensions", "prefix"), [(1, 1), (63, 1), (64, 2), (1536, 2)])
def test_a_vector_of_mariadb_is_a_varying_binary_in_the_log(dimensions, prefix):
    """Only the catalog says that it is a vector. It lands as from a dump, and as MySQL's."""
    width = 4 * dimensions
    binary = Col("b", 15, width.to_bytes(2, "little"), collation=BINARY)
    columns = [Col("id", 3, unsigned=False), replace(binary, name="v"), binary]
    value = bytes(range(1, 5)) * dimensions
    cells = [reference.integer(7, 4), *[reference.varchar(value, prefix)] * 2]
    event = reference.rows_event(23, 7, 3, [reference.image(cells, [True] * 3)], [[True] * 3])
    aliases = {"v": f"vector({dimensions})", "b": f"varbinary({width})"}
    mapped = parse_table_map(reference.table_map(7, columns, key=[0]), mariadb=True).with_aliases(aliases)
    of_catalog = [type_of_catalog(aliases[name], None) for name in ("v", "b")]
    assert [(c.type, c.source_type) for c in mapped.schema().columns[1:]] == [
        (type_.landing, type_.type_name) for type_ in of_catalog
    ]
    transactions = Transactions()
    transactions.add(0, pack_binlog_position(3, 4), 0, None)
    layout = SegmentLayout(0, 7, mapped, mapped.schema())
    (row,) = landed(MysqlSegment(1, ResumePoint(99), None, [event], [0], transactions, [layout]))
    assert (row["v"], row["b"]) == (value.hex().upper(), value)


def compressed(event):
    """An event as MariaDB compresses it: all that follows its bitmaps."""
    begin = 19 + 6 + 2 + 1 + (2 if event[4] == 24 else 1)
    rows = event[begin:]
    packed = bytes([0x84]) + len(rows).to_bytes(4, "big") + zlib.compress(rows)
    return event[:4] + bytes([event[4] - 23 + 166]) + event[5:begin] + packed


def test_compressed_events_are_decoded_few_at_a_time(monkeypatch):
    """However small they are together in the log."""
    monkeypatch.setattr(segment_module, "WINDOW_BYTES", 40_000)
    columns = [Col("id", 3, unsigned=False), Col("v", 252, b"\x04", collation=UTF8)]
    written = Written(columns)
    for number in range(60):
        text = chr(97 + number % 26) * (50_000 if number == 30 else 9000)
        cells = [reference.integer(number, 4), reference.varchar(text.encode(), 4)]
        image = reference.image(cells, [True, True])
        written.events.append(reference.rows_event(23, 7, 2, [image], [[True, True]]))
        written.rows.append((number, text))
    packed = [b"\xaa" + compressed(event) + b"\xbb" * 4 for event in written.events]
    assert sum(map(len, packed)) < 10_000
    segment = written.segment(packed, base=1, tail=4)
    assert [(row["id"], row["v"]) for row in landed(segment)] == written.rows
    assert [r["_cdc"] for r in landed(segment)] == [r["_cdc"] for r in landed(written.segment())]
    sizes = [len(window.events.data) for window in segment._windows()]
    assert max(sizes) < 52_000
    assert sum(size < 41_000 for size in sizes) == len(sizes) - 1 == 16


@given(written=histories(), data=st.data())
def test_a_damaged_event_quarantines_the_table(written, data):
    which = data.draw(st.integers(0, len(written.events) - 1))
    event = written.events[which]
    cut = data.draw(st.integers(27, len(event) - 1))
    events = [*written.events[:which], event[:cut], *written.events[which + 1 :]]
    found = list(written.segment(events).decode())
    whole = not found or not isinstance(found[-1], QuarantineNotice)
    if whole:  # cut between two rows: nothing tells
        assert sum(b.table.num_rows for b in found) < len(written.rows)
    else:
        assert found[-1].table == TableName("d", "t")
        assert found[-1].lsn == pack_binlog_position(3, 4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type_name)
def test_types_are_formatted_as_the_catalog_formats_them(kind):
    column = Col(**{**kind.column.__dict__, "name": "c"})
    mapped = parse_table_map(reference.table_map(7, [column]), mariadb=False)
    assert mapped.columns[0].type.type_name == kind.type_name


def one_column(column, values):
    columns = [Col("id", 3, unsigned=False), column]
    images = [reference.image([reference.integer(n, 4), v], [True, True]) for n, v in enumerate(values)]
    return Written(columns, [reference.rows_event(30, 7, 2, images, [[True, True]])])


@pytest.mark.parametrize(
    ("column", "value", "raw"),
    [
        (Col("c", 10), reference.date(0, 0, 0), "0000-00-00"),
        (Col("c", 10), reference.date(2024, 2, 30), "2024-02-30"),
        (Col("c", 10), reference.date(0, 1, 1), "0000-01-01"),
        (Col("c", 18, b"\0"), reference.datetime2(0, 0, 0, 0, 0, 0, 0, 0), "0000-00-00 00:00:00"),
        (Col("c", 18, b"\3"), reference.datetime2(2023, 2, 29, 1, 2, 3, 4000, 3), "2023-02-29 01:02:03.004"),
        (Col("c", 18, b"\6"), reference.datetime2(2023, 0, 9, 1, 2, 3, 4, 6), "2023-00-09 01:02:03.000004"),
        (Col("c", 17, b"\0"), reference.timestamp2(0, 0, 0), "0000-00-00 00:00:00"),
        (Col("c", 17, b"\2"), reference.timestamp2(0, 0, 2), "0000-00-00 00:00:00.00"),
        (Col("c", 12), reference.integer(20230200000000, 8), "2023-02-00 00:00:00"),
    ],
)
def test_dates_that_do_not_exist_are_null_with_their_text_beside(column, value, raw):
    rows = landed(one_column(column, [None, value]).segment())
    assert [(r["c"], reread(r["_cdc"]["raw"])) for r in rows] == [(None, {}), (None, {"c": raw})]


def test_a_truncate_is_an_event_of_its_own():
    written = one_column(Col("c", 3, unsigned=False), [reference.integer(5, 4)])
    rows = landed(written.segment([*written.events, make_truncate_event(7), *written.events]))
    assert [(r["_cdc"]["op"], r["id"], r["c"], r["_cdc"]["unchanged"]) for r in rows] == [
        ("insert", 0, 5, None),
        ("truncate", None, None, None),
        ("insert", 0, 5, None),
    ]


def test_tables_with_many_columns_have_a_wide_column_count():
    columns = [Col(f"c{n}", 3, unsigned=False) for n in range(300)]
    bits = [n % 7 != 3 for n in range(300)]
    image = reference.image([reference.integer(n, 4) if n % 2 == 0 else None for n in range(300)], bits)
    event = reference.rows_event(30, 7, 300, [image, image], [bits])
    rows = landed(Written(columns, [event]).segment())
    assert [rows[0][f"c{n}"] for n in range(300)] == [
        n if bits[n] and n % 2 == 0 else None for n in range(300)
    ]
    assert rows[1]["_cdc"]["unchanged"] == [f"c{n}" for n in range(300) if not bits[n]]


JSON_COLUMNS = [Col("id", 3, unsigned=False), Col("j", 245, b"\4")]


def partial_update(options, after=None, before=(True, True)):
    """An update of key 1 and JSON ``{"a": [1]}``; `after`: the document's bytes in the after image."""
    key, document = reference.integer(1, 4), reference.varchar(reference.json_document({"a": [1]}), 4)
    old = reference.image([key, document], before)
    new = options + reference.image(
        [key, document if after is None else reference.varchar(after, 4)], [True, True]
    )
    return reference.rows_event(39, 7, 2, [old + new], [before, [True, True]])


def difference(kind, path, value=None):
    return (
        bytes([kind])
        + reference.packed_text(path)
        + (b"" if value is None else reference.packed_text(reference.json_document(value)))
    )


def test_a_partial_update_without_differences_is_an_update():
    rows = landed(Written(JSON_COLUMNS, [partial_update(b"\0")]).segment())
    assert [(r["_cdc"]["op"], r["j"]) for r in rows] == [("update", '{"a": [1]}')]
    rows = landed(Written(JSON_COLUMNS, [partial_update(b"\1\0")]).segment())
    assert rows[0]["j"] == '{"a": [1]}'


def test_a_difference_of_json_is_carried_out_on_the_document_before():
    change = difference(0, "$.a[0]", "x") + difference(1, "$.b", {"c": None}) + difference(1, "$.a[9]", 2)
    events = [partial_update(b"\1\1", change), partial_update(b"\0"), partial_update(b"\1\1", b"")]
    rows = landed(Written(JSON_COLUMNS, events).segment())
    assert [r["j"] for r in rows] == ['{"a": ["x", 2], "b": {"c": null}}', '{"a": [1]}', '{"a": [1]}']


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            partial_update(b"\1\1", difference(2, "$.a"), (True, False)),
            "only a difference to the JSON in column j",
        ),
        (partial_update(b"\1\1", difference(2, "$.b")), "has a path that the old document lacks"),
        (partial_update(b"\1\1", difference(1, "$.a", 1)), "adds to a path that the old document lacks"),
        (partial_update(b"\1\1", difference(0, "$", 1)), ": a path of a JSON difference is malformed"),
        (partial_update(b"\1\1", difference(7, "$.a", 1)), "operation 7"),
        (partial_update(b"\1\1", b"\2\x09$"), "can't parse a JSON difference: IndexError"),
    ],
)
def test_a_difference_that_cannot_be_carried_out_quarantines_the_table(event, reason):
    found = list(Written(JSON_COLUMNS, [event]).segment().decode())
    assert isinstance(found[0], QuarantineNotice)
    assert reason in found[0].reason
    assert "column j" in found[0].reason
    assert "binlog_row_value_options" in found[0].hint


def test_an_update_that_lacks_the_old_key_quarantines_the_table():
    columns = [Col("id", 3, unsigned=False), Col("c", 3, unsigned=False)]
    values = [reference.integer(1, 4), reference.integer(2, 4)]
    bitmaps = [[False, True], [True, False]]
    event = reference.rows_event(31, 7, 2, [b"".join(reference.image(values, b) for b in bitmaps)], bitmaps)
    found = list(Written(columns, [event]).segment().decode())
    assert "old value of key column id" in found[0].reason
    assert "binlog_row_image" in found[0].hint


def test_a_layout_with_a_problem_quarantines_only_its_table():
    good = one_column(Col("c", 3, unsigned=False), [reference.integer(5, 4)])
    mapped = parse_table_map(reference.table_map(7, good.columns, key=[0]), mariadb=False)
    transactions = Transactions()
    transactions.add(0, 5, 0, None)
    other = good.events[0][:19] + (8).to_bytes(6, "little") + good.events[0][25:]
    problem = TableError(TableName.parse("d.t"), "it cannot be read", hint="fix it")
    schema = mapped.schema()
    renamed = type(schema)(schema.table._replace(name="u"), schema.columns, schema.key)
    layouts = [SegmentLayout(0, 7, None, schema, problem), SegmentLayout(0, 8, mapped, renamed)]
    found = list(
        MysqlSegment(
            1, ResumePoint(9), None, [good.events[0], other, good.events[0]], [0, 1, 2], transactions, layouts
        ).decode()
    )
    assert [type(f).__name__ for f in found] == ["QuarantineNotice", "EventBatch"]
    assert (str(found[0].table), found[0].reason, found[0].hint) == ("d.t", "it cannot be read", "fix it")
    assert found[1].table.to_pylist()[0]["_cdc"]["seq"] == 1 << 32


def test_a_table_map_without_names_is_refused():
    body = reference.table_map(7, [Col("id", 3, unsigned=False)], names=False)
    with pytest.raises(TableError, match="does not name its columns") as caught:
        parse_table_map(body, mariadb=False)
    assert "binlog_row_metadata" in caught.value.hint


def test_a_character_set_that_cannot_be_decoded_exactly_is_refused():
    with pytest.raises(TableError, match="character set dec8"):
        parse_table_map(reference.table_map(7, [Col("c", 15, b"\x14\0", collation=3)]), mariadb=False)


def test_rows_without_a_layout_are_a_bug():
    written = one_column(Col("c", 3, unsigned=False), [reference.integer(5, 4)])
    transactions = Transactions()
    transactions.add(0, 5, 0, None)
    with pytest.raises(BugError, match="arrives before its layout"):
        list(MysqlSegment(1, ResumePoint(9), None, written.events, [0], transactions, []).decode())
