from __future__ import annotations

import re
import struct
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.errors import BugError
from connector.landing.event_batch import EventBatch, QuarantineNotice, arrow_schema
from connector.position import Position
from connector.postgres.codec import segment as pgoutput
from connector.postgres.codec.column_decoder import decode_column
from connector.postgres.codec.copytext import CopiedRows, split_rows
from connector.postgres.codec.pgoutput import (
    Begin,
    Commit,
    Relation,
    RelationColumn,
    Truncate,
    parse_begin,
    parse_commit,
    parse_relation,
    parse_truncate,
    to_datetime,
)
from connector.postgres.codec.segment import PostgresSegment, RelationLayout, Transactions
from connector.schema import Column, TableName, TableSchema
from connector.source import ResumePoint
from tests.unit.postgres.codec.reference_codec import (
    array_text,
    copy_row,
    decode,
    delete,
    insert,
    truncate,
    tuple_data,
    update,
)

EPOCH = 3
COMMITTED = 1_790_000_000_123_456
ORDERS, ITEMS = 7, 0x01020308


def table(relid, name, columns, key=("id",), identity="d"):
    """A layout from message 0 on; columns are (name, landing type)."""
    schema = TableSchema(TableName("public", name), tuple(Column(c, t, t) for c, t in columns), tuple(key))
    is_key = {c: identity == "f" or c in key for c, _ in columns}
    parts = tuple(RelationColumn(c, 25, -1, is_key[c]) for c, _ in columns)
    return RelationLayout(0, Relation(relid, "public", name, identity, parts), schema)


orders = table(ORDERS, "orders", [("id", "bigint"), ("note", "string"), ("total", "decimal(6,2)")])
items = table(ITEMS, "items", [("a", "string"), ("b", "int"), ("text", "string")], key=("a", "b"))


def segment(payloads, starts=(0,), layouts=(orders, items), first_ordinal=0, base=0):
    transactions = Transactions()
    for number, start in enumerate(starts):
        transactions.add(start, Begin(1000 + 10 * number, COMMITTED + number, 2**31 + number))
    payloads = [b"x" * base + p for p in payloads]
    return PostgresSegment(
        EPOCH,
        ResumePoint(5000),
        None,
        payloads,
        transactions,
        layouts,
        base=base,
        first_ordinal=first_ordinal,
    )


def decoded(*args, **settings):
    results = list(segment(*args, **settings).decode())
    for batch in results:
        if isinstance(batch, EventBatch):
            check_batch(batch)
    return results


def check_batch(batch):
    batch.table.validate(full=True)
    assert batch.table.schema == arrow_schema(batch.schema)
    cdc = batch.table["_cdc"].to_pylist()
    positions = [Position(r["epoch"], r["lsn"], r["seq"]) for r in cdc]
    assert positions == sorted(positions)
    assert (positions[0], positions[-1]) == (batch.first, batch.last)
    assert batch.partial == any(r["unchanged"] is not None for r in cdc)
    assert batch.truncates == any(r["op"] == "truncate" for r in cdc)


def events(batch):
    """Rows as (op, lsn, seq, values..., unchanged)."""
    rows = []
    for row in batch.table.to_pylist():
        cdc = row.pop("_cdc")
        rows.append((cdc["op"], cdc["lsn"], cdc["seq"], *row.values(), cdc["unchanged"]))
    return rows


def only(results):
    (batch,) = results
    assert isinstance(batch, EventBatch), batch
    return events(batch)


def num(text):
    return decode(text, "decimal(6,2)")[0]


# Messages that are no changes


def test_begin_and_commit_carry_lsn_time_and_xid():
    micros = COMMITTED - 946_684_800_000_000
    assert parse_begin(b"B" + struct.pack(">QqI", 16, micros, 2**32 - 1)) == Begin(16, COMMITTED, 2**32 - 1)
    assert parse_commit(b"C\0" + struct.pack(">QQq", 16, 24, micros)) == Commit(16, 24, COMMITTED)
    assert parse_begin(b"." * 18 + b"B" + struct.pack(">QqI", 16, micros, 1), 18) == Begin(16, COMMITTED, 1)
    assert to_datetime(COMMITTED) == datetime(2026, 9, 21, 14, 13, 20, 123456, tzinfo=timezone.utc)


def relation_message(relation):
    head = b"R" + struct.pack(">I", relation.relid) + f"{relation.namespace}\0{relation.name}\0".encode()
    body = b"".join(
        bytes([c.is_key]) + c.name.encode() + b"\0" + struct.pack(">Ii", c.type_oid, c.typmod)
        for c in relation.columns
    )
    return head + relation.identity.encode() + struct.pack(">H", len(relation.columns)) + body


@pytest.mark.parametrize("base", [0, 18])
def test_a_relation_comes_back_as_it_was_sent(base):
    columns = (RelationColumn("größe", 1700, 655366, True), RelationColumn("b c", 4_000_000_000, -1, False))
    relation = Relation(4_000_000_001, "my schema", "täble", "i", columns)
    assert parse_relation(b"." * base + relation_message(relation), base) == relation


def test_a_truncate_names_its_tables():
    assert parse_truncate(truncate(7, 4_000_000_000)) == Truncate((7, 4_000_000_000), 0)


@pytest.mark.parametrize(
    ("parse", "payload"),
    [
        (parse_begin, b"B123"),
        (parse_begin, b"C" + bytes(25)),
        (parse_commit, b"C"),
        (parse_truncate, truncate(7)[:-1]),
        (parse_truncate, truncate(7) + b"x"),
        (parse_relation, relation_message(orders.relation) + b"x"),
        (parse_relation, b"R\0\0\0\7public"),
    ],
)
def test_a_message_of_another_shape_is_a_bug(parse, payload):
    with pytest.raises(BugError):
        parse(payload)


# Changes


@pytest.mark.parametrize("base", [0, 18])
def test_insert_update_and_delete_become_events(base):
    payloads = [
        insert(ORDERS, ["1", "a", "1.50"]),
        update(ORDERS, ["1", "ü", None]),
        delete(ORDERS, key=["1", None, None]),
        insert(ORDERS, ["2", "", "-0.01"]),
    ]
    assert only(decoded(payloads, starts=(0, 1, 3), base=base)) == [
        ("insert", 1000, 0, 1, "a", num("1.50"), None),
        ("update", 1010, 0, 1, "ü", None, None),
        ("delete", 1010, 2, 1, None, None, None),
        ("insert", 1020, 0, 2, "", num("-0.01"), None),
    ]


def test_each_event_carries_its_transaction():
    payloads = [insert(ORDERS, [str(i), None, None]) for i in range(3)]
    (batch,) = decoded(payloads, starts=(0, 2))
    cdc = batch.table["_cdc"].to_pylist()
    assert [r["txid"] for r in cdc] == ["2147483648", "2147483648", "2147483649"]
    assert [r["committed_at"] for r in cdc] == [to_datetime(COMMITTED + n) for n in (0, 0, 1)]
    assert {r["epoch"] for r in cdc} == {EPOCH}
    assert all(
        r[f] is None for r in cdc for f in ("low_lsn", "high_lsn", "dump", "chunk", "raw", "unchanged")
    )


def test_a_segment_in_the_middle_of_a_transaction_goes_on_counting():
    payloads = [insert(ORDERS, ["1", None, None])] * 3
    rows = only(decoded(payloads, starts=(0, 2), first_ordinal=500))
    assert [(lsn, seq) for _, lsn, seq, *_ in rows] == [(1000, 1000), (1000, 1002), (1010, 0)]


def test_a_split_segment_gives_the_events_of_the_whole_one():
    payloads = [update(ORDERS, [str(i + 1), "n", None], key=[str(i), None, None]) for i in range(6)]
    whole = only(decoded(payloads))
    for cut in range(1, 6):
        parts = only(decoded(payloads[:cut])) + only(decoded(payloads[cut:], first_ordinal=cut))
        assert parts == whole


def test_ordinals_count_the_changes_of_tables_that_are_not_captured():
    other = RelationLayout(0, Relation(99, "public", "other", "d", ()), None)
    payloads = [
        insert(99, ["x"]),
        insert(ORDERS, ["1", None, None]),
        truncate(99),
        delete(ORDERS, key=["1", None, None]),
    ]
    rows = only(decoded(payloads, layouts=(orders, other)))
    assert [(op, seq) for op, _, seq, *_ in rows] == [("insert", 2), ("delete", 6)]


def test_tables_are_parted_and_each_keeps_its_order():
    payloads = [
        insert(ITEMS, ["x", "1", None]),
        insert(ORDERS, ["1", None, None]),
        insert(ITEMS, ["x", "2", None]),
        insert(ORDERS, ["2", None, None]),
    ]
    first, second = decoded(payloads)
    assert (first.schema, second.schema) == (items.schema, orders.schema)
    assert [r[2:5] for r in events(first)] == [(0, "x", 1), (4, "x", 2)]
    assert [r[2:4] for r in events(second)] == [(2, 1), (6, 2)]


def test_an_update_of_the_key_is_a_delete_and_an_insert():
    payloads = [update(ORDERS, ["2", "a", "1.00"], key=["1", None, None]), insert(ORDERS, ["3", None, None])]
    assert only(decoded(payloads)) == [
        ("delete", 1000, 0, 1, None, None, None),
        ("insert", 1000, 1, 2, "a", num("1.00"), None),
        ("insert", 1000, 2, 3, None, None, None),
    ]


def test_a_key_swap_in_one_transaction_keeps_every_step():
    def move(old, new, note):
        return update(ORDERS, [new, note, None], key=[old, None, None])

    rows = only(decoded([move("1", "-1", "a"), move("2", "1", "b"), move("-1", "2", "a")]))
    assert [(op, seq, key, note) for op, _, seq, key, note, *_ in rows] == [
        ("delete", 0, 1, None),
        ("insert", 1, -1, "a"),
        ("delete", 2, 2, None),
        ("insert", 3, 1, "b"),
        ("delete", 4, -1, None),
        ("insert", 5, 2, "a"),
    ]


def test_one_changed_column_of_a_composite_key_changes_the_key():
    payloads = [
        update(ITEMS, ["x", "2", "t"], key=["x", "1", None]),
        update(ITEMS, ["x", "2", "t"], key=["x", "2", None]),
    ]
    assert only(decoded(payloads)) == [
        ("delete", 1000, 0, "x", 1, None, None),
        ("insert", 1000, 1, "x", 2, "t", None),
        ("update", 1000, 2, "x", 2, "t", None),
    ]


def test_unchanged_toast_is_listed_and_null():
    payloads = [
        update(ORDERS, ["1", ..., "1.00"]),
        update(ORDERS, ["1", "a", "1.00"]),
        update(ORDERS, ["1", ..., ...]),
    ]
    assert only(decoded(payloads)) == [
        ("update", 1000, 0, 1, None, num("1.00"), ["note"]),
        ("update", 1000, 2, 1, "a", num("1.00"), None),
        ("update", 1000, 4, 1, None, None, ["note", "total"]),
    ]


def test_unchanged_toast_stays_unchanged_where_only_the_key_was_logged():
    payloads = [update(ORDERS, ["2", ..., "1.00"], key=["1", None, None])]
    assert only(decoded(payloads)) == [
        ("delete", 1000, 0, 1, None, None, None),
        ("insert", 1000, 1, 2, None, num("1.00"), ["note"]),
    ]


def full(layout):
    relation = layout.relation._replace(
        identity="f", columns=tuple(c._replace(is_key=True) for c in layout.relation.columns)
    )
    return layout._replace(relation=relation)


def test_the_old_row_of_identity_full_gives_unchanged_values():
    payloads = [
        update(ORDERS, ["1", ..., "2.00"], old=["1", "long", "1.00"]),
        update(ORDERS, ["9", ..., ...], old=["1", "long", "2.00"]),
        delete(ORDERS, old=["9", "long", "2.00"]),
    ]
    assert only(decoded(payloads, layouts=[full(orders)])) == [
        ("update", 1000, 0, 1, "long", num("2.00"), None),
        ("delete", 1000, 2, 1, None, None, None),
        ("insert", 1000, 3, 9, "long", num("2.00"), None),
        ("delete", 1000, 4, 9, None, None, None),
    ]


def test_a_partition_that_logs_the_key_only_gives_no_nulls_under_a_root_that_logs_whole_rows():
    """Its old tuple says that it is whole, and has nulls but for the key."""
    payloads = [update(ORDERS, ["2", ..., "1.00"], old=["1", None, None])]
    assert only(decoded(payloads, layouts=[full(orders)])) == [
        ("delete", 1000, 0, 1, None, None, None),
        ("insert", 1000, 1, 2, None, num("1.00"), ["note"]),
    ]


def test_a_toasted_key_column_is_taken_from_the_old_key():
    payloads = [
        update(ITEMS, [..., "1", "new"], key=["long", "1", None]),
        update(ITEMS, [..., "2", ...], key=["long", "1", None]),
        update(ITEMS, [..., "3", "t"], key=["long", "2", None]),
    ]
    assert only(decoded(payloads)) == [
        ("update", 1000, 0, "long", 1, "new", None),
        ("delete", 1000, 2, "long", 1, None, None),
        ("insert", 1000, 3, "long", 2, None, ["text"]),
        ("delete", 1000, 4, "long", 2, None, None),
        ("insert", 1000, 5, "long", 3, "t", None),
    ]


def test_a_truncate_is_an_event_of_each_of_its_tables():
    payloads = [
        insert(ORDERS, ["1", None, None]),
        truncate(ITEMS, ORDERS, 99),
        insert(ORDERS, ["2", None, None]),
    ]
    unknown = RelationLayout(0, Relation(99, "public", "other", "d", ()), None)
    first, second = decoded(payloads, layouts=(orders, items, unknown))
    assert events(first) == [
        ("insert", 1000, 0, 1, None, None, None),
        ("truncate", 1000, 2, None, None, None, None),
        ("insert", 1000, 4, 2, None, None, None),
    ]
    assert events(second) == [("truncate", 1000, 2, None, None, None, None)]


def test_a_new_layout_in_the_middle_gives_batches_of_each_schema_in_order():
    wide = table(ORDERS, "orders", [("id", "bigint"), ("note", "string"), ("total", "string"), ("x", "int")])
    payloads = [
        insert(ORDERS, ["1", "a", "1.00"]),
        insert(ITEMS, ["x", "1", None]),
        insert(ORDERS, ["2", "b", "2.0", "5"]),
        delete(ORDERS, key=["1", None, None, None]),
    ]
    narrow, other, after = decoded(payloads, layouts=(orders, items, wide._replace(start=2)))
    assert events(narrow) == [("insert", 1000, 0, 1, "a", num("1.00"), None)]
    assert events(other) == [("insert", 1000, 2, "x", 1, None, None)]
    assert events(after) == [
        ("insert", 1000, 4, 2, "b", "2.0", 5, None),
        ("delete", 1000, 6, 1, None, None, None, None),
    ]


def test_a_value_that_the_type_cannot_hold_lands_raw():
    payloads = [insert(ORDERS, ["1", "a", "NaN"]), insert(ORDERS, ["2", "b", "1.00"])]
    (batch,) = decoded(payloads)
    rows = batch.table.to_pylist()
    assert [r["total"] for r in rows] == [None, num("1.00")]
    assert [r["_cdc"]["raw"] for r in rows] == [[("total", "NaN")], None]


def test_a_delete_of_a_row_with_raw_values_carries_none():
    payloads = [delete(ORDERS, old=["1", "a", "NaN"])]
    (batch,) = decoded(payloads, layouts=[full(orders)])
    assert batch.table.to_pylist()[0]["_cdc"]["raw"] is None


# Tables that can't be decoded

good = insert(ITEMS, ["x", "1", None])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (insert(ORDERS, ["x", None, None]), "a text of 1 characters is not a value of bigint"),
        (insert(ORDERS, ["1", "a"]), "3 columns"),
        (insert(ORDERS, [None, "a", None]), "insert has null for key column id"),
        (delete(ORDERS, key=[None, "a", None]), "delete has null for key column id"),
        (update(ORDERS, [..., "a", None]), "update does not carry key column id"),
        (insert(ORDERS, ["1", b"\xff", None]), "UTF8"),
        (insert(ORDERS, ["1", "a", None]) + b"n", "does not end"),
        (insert(ORDERS, ["1", "a", None])[:-1], "neither|does not end"),
        (insert(ORDERS, ["1", "a", None])[:-7], "neither|does not end|beyond"),
        (update(ORDERS, ["1", "a", None])[:5], "new tuple"),
        (update(ORDERS, ["1", "a", None], key=["1", None, None])[:16], "ends before|lacks its|not end"),
        (delete(ORDERS, key=["1", None, None]) + b"x", "does not end"),
        (b"D" + struct.pack(">I", ORDERS) + b"N" + tuple_data(["1", None, None]), "no old tuple"),
        (insert(ORDERS, ["1", "a", None]).replace(b"t", b"b", 1), "neither text, null nor unchanged"),
        (insert(ORDERS, ["1", "a", None]).replace(b"\0\0\0\1a", b"\xff\xff\xff\xf0a"), "beyond"),
        (insert(ORDERS, ["1", "a", None]).replace(b"N\0\3", b"O\0\3"), "new tuple"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_table_that_cannot_be_decoded_is_quarantined_and_the_others_go_on(payload, reason, last):
    fine = insert(ORDERS, ["5", None, None])
    payloads = [good, fine, payload] if last else [good, fine, payload, good]
    batch, quarantined = decoded(payloads, starts=(0, 1))
    assert [r[3] for r in events(batch)] == ["x"] * (len(payloads) - 2)
    assert isinstance(quarantined, QuarantineNotice)
    assert (str(quarantined.table), quarantined.lsn) == ("public.orders", 1010)
    assert quarantined.hint
    assert re.search(reason, quarantined.reason), quarantined.reason


def test_a_key_that_its_type_cannot_hold_is_null_and_its_text_is_in_raw():
    dated = table(ORDERS, "dated", [("id", "date")])
    (result,) = decoded([insert(ORDERS, ["infinity"]), insert(ORDERS, ["2026-01-31"])], layouts=[dated])
    first, second = result.table.to_pylist()
    assert (first["id"], first["_cdc"]["raw"]) == (None, [("id", "infinity")])
    assert (second["id"].isoformat(), second["_cdc"]["raw"]) == ("2026-01-31", None)


def test_other_columns_than_the_schema_has_quarantine_the_table():
    renamed = orders._replace(
        schema=table(ORDERS, "orders", [("id", "bigint"), ("x", "string"), ("total", "int")]).schema
    )
    (result,) = decoded([insert(ORDERS, ["1", "a", "1"])], layouts=[renamed])
    assert isinstance(result, QuarantineNotice)
    assert "columns" in result.reason


def test_a_table_once_quarantined_gives_no_later_batch(monkeypatch):
    monkeypatch.setattr(pgoutput, "WINDOW_MESSAGES", 2)
    payloads = [insert(ORDERS, [key, None, None]) for key in ("1", "2", "x", "4", "5", "6")]
    first, second = decoded(payloads)
    assert [r[3] for r in events(first)] == [1, 2]
    assert isinstance(second, QuarantineNotice)


@pytest.mark.parametrize(
    ("payloads", "settings"),
    [
        ([insert(4711, ["1"])], {}),
        ([insert(ORDERS, ["1", None, None])], {"layouts": [orders._replace(start=1)]}),
        ([b"B" + bytes(20)], {}),
        ([b"I\0\0"], {}),
        ([insert(ORDERS, ["1", None, None])], {"starts": (1,)}),
    ],
)
def test_what_the_reader_must_never_hand_over_is_a_bug(payloads, settings):
    with pytest.raises(BugError):
        decoded(payloads, **settings)


def test_an_empty_segment_decodes_to_nothing():
    empty = segment([], starts=())
    assert (list(empty.decode()), empty.rows, empty.position, empty.committed_at) == ([], 0, 5000, None)


# Any changes, any window, both paths

TYPES = {
    "int": st.integers(-(2**31), 2**31 - 1).map(str),
    "decimal(6,2)": st.sampled_from(["0.00", "9999.99", "-9999.99", "NaN", "Infinity", "10000.00", "1.5"]),
    "double": st.floats(allow_nan=False).map(lambda x: repr(x).replace("inf", "Infinity")),
    "boolean": st.sampled_from(["t", "f"]),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6),
    "binary": st.binary(max_size=4).map(lambda b: "\\x" + b.hex()),
    "date": st.dates().map(str) | st.sampled_from(["infinity", "12026-01-01", "0001-01-01 BC"]),
    "timestamp_ntz": st.datetimes().map(str) | st.sampled_from(["-infinity", "0001-01-01 00:00:00 BC"]),
    "timestamp": st.datetimes().map(lambda t: f"{t}+00") | st.just("infinity"),
    "array<int>": st.lists(st.none() | st.integers(-9, 9), max_size=3).map(array_text) | st.just("{{1}}"),
    "array<string>": st.lists(st.none() | st.sampled_from(["", "a", 'q"\\', "NULL", "é"]), max_size=3).map(
        array_text
    ),
}
every = table(ORDERS, "every", [("id", "bigint"), *((f"c{i}", t) for i, t in enumerate(TYPES))])
rows = st.tuples(st.integers(0, 9).map(str), *(st.none() | texts for texts in TYPES.values())).map(list)


@st.composite
def changes(draw):
    """A message, and the events it must become: (op, texts or ... by column)."""
    kind, row = (
        draw(st.sampled_from(["insert", "update", "key", "full", "delete", "truncate", "other"])),
        draw(rows),
    )
    width = len(row)
    nothing = [None] * (width - 1)
    if kind == "insert":
        return insert(ORDERS, row), [("insert", row)]
    if kind == "delete":
        old = draw(rows)
        payload = delete(ORDERS, old=old) if draw(st.booleans()) else delete(ORDERS, key=[old[0], *nothing])
        return payload, [("delete", [old[0], *nothing])]
    if kind == "truncate":
        return truncate(ORDERS), [("truncate", [None] * width)]
    if kind == "other":
        return insert(ITEMS, ["x", "1", None]), []
    toasted = [row[0], *(... if draw(st.integers(0, 3)) == 0 else value for value in row[1:])]
    if kind == "update":
        return update(ORDERS, toasted), [("update", toasted)]
    old = draw(rows)
    payload = update(ORDERS, toasted, key=[old[0], *nothing])
    if kind == "full":
        payload = update(ORDERS, toasted, old=old)
        pairs = zip(old, toasted, strict=True)
        toasted = [before if value is ... and before is not None else value for before, value in pairs]
    if old[0] == row[0]:
        return payload, [("update", toasted)]
    return payload, [("delete", [old[0], *nothing]), ("insert", toasted)]


def as_expected(op, texts):
    pairs = [
        decode(None if t is ... else t, c.type) for t, c in zip(texts, every.schema.columns, strict=True)
    ]
    names = [c.name for c in every.schema.columns]
    raw = [(n, r) for n, (_, r) in zip(names, pairs, strict=True) if r is not None] or None
    return op, [v for v, _ in pairs], raw, [n for n, t in zip(names, texts, strict=True) if t is ...] or None


@settings(deadline=None)
@given(st.lists(changes(), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([0, 18]))
def test_any_changes_in_any_windows_become_the_events_that_the_oracle_expects(many, window, base):
    payloads = [payload for payload, _ in many]
    expected, positions = [], []
    for ordinal, (_, made) in enumerate(many):
        for extra, (op, texts) in enumerate(made):
            expected.append(as_expected(op, texts))
            positions.append((1000, 2 * ordinal + extra))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgoutput, "WINDOW_MESSAGES", window)
        patch.setattr(pgoutput, "BATCH_VALUES", 3 * len(every.schema.columns))
        batches = [
            b for b in decoded(payloads, layouts=(every, items), base=base) if b.schema == every.schema
        ]
    got, found = [], []
    for row in (row for batch in batches for row in batch.table.to_pylist()):
        cdc = row.pop("_cdc")
        got.append((cdc["op"], list(row.values()), cdc["raw"], cdc["unchanged"]))
        found.append((cdc["lsn"], cdc["seq"]))
    assert got == expected
    assert found == positions


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=6))
def test_a_row_lands_the_same_from_the_log_and_from_a_copy(many):
    (batch,) = decoded([insert(ORDERS, row) for row in many], layouts=[every])
    cells = split_rows(CopiedRows.of([copy_row(row) for row in many]), len(many[0]))
    raws = [cdc["raw"] or [] for cdc in batch.table["_cdc"].to_pylist()]
    for column, texts in zip(every.schema.columns, cells, strict=True):
        values, raw = decode_column(texts, column.type)
        assert values.equals(batch.table[column.name].combine_chunks())
        logged = [dict(r).get(column.name) for r in raws]
        assert (raw.to_pylist() if raw is not None else [None] * len(many)) == logged
