from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import BugError
from connector.postgres.codec import copytext
from connector.postgres.codec.copytext import CopiedRows, split_rows
from tests.unit.postgres.codec.reference_codec import copy_row


def split(rows, columns):
    arrays = split_rows(CopiedRows.of(rows), columns)
    for array in arrays:
        array.validate(full=True)
    return [[None if v is None else v.decode() for v in array.to_pylist()] for array in arrays]


def test_values_are_parted_by_tabs_and_rows_by_newlines():
    assert split([b"1\ta\n", b"2\t\n"], 2) == [["1", "2"], ["a", ""]]


def test_backslash_n_is_null_only_as_the_whole_value():
    rows = [b"\\N\t\\\\N\n", b"x\\\\N\t\\N\n"]
    assert split(rows, 2) == [[None, "x\\N"], ["\\N", None]]


@pytest.mark.parametrize("code", range(1, 128))
def test_every_control_character_comes_back(code):
    value = f"<{chr(code)}>"
    rows = [copy_row([value, None, chr(code)]), copy_row(["plain", value * 3, None])]
    assert split(rows, 3) == [[value, "plain"], [None, value * 3], [chr(code), None]]


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("tail", ["", "n", "N", "\n", "\t", "x"])
def test_runs_of_backslashes_are_read_in_pairs(count, tail):
    value = "\\" * count + tail
    assert split([copy_row([value, value]), copy_row([None, value])], 2) == [[value, None], [value, value]]


def test_bytea_values_lose_their_escaping_backslash():
    assert split([b"\\\\x00ff\t1\n", b"\\\\x\t2\n", b"\\N\t3\n"], 2) == [
        ["\\x00ff", "\\x", None],
        ["1", "2", "3"],
    ]


@pytest.mark.parametrize(
    "value", ["", "\ufeff", '"', '"a', 'a""b', " ", "\\N", "NULL", "\r", "\ufeff\r\n\ufeff"]
)
def test_values_that_other_csv_files_treat_specially_are_texts(value):
    assert split([copy_row([value])] * 2, 1) == [[value, value]]
    assert split([copy_row([value, None])] * 2, 2) == [[value, value], [None, None]]


def test_many_bytes_are_split_in_parts(monkeypatch):
    rows = [copy_row([str(number) * number, None, "\\"]) for number in range(9)]
    whole = split(rows, 3)
    monkeypatch.setattr(copytext, "MOST_BYTES", 1)
    assert split(rows, 3) == whole
    monkeypatch.setattr(copytext, "LARGE_ROW_BYTES", 8)
    assert split(rows, 3) == whole


def test_bytes_after_the_last_row_are_passed_over():
    rows = CopiedRows.of([b"1\ta\n"])
    late = CopiedRows(np.concatenate([rows.data, np.zeros(7, np.uint8)]), rows.starts)
    assert [array.to_pylist() for array in split_rows(late, 2)] == [[b"1"], [b"a"]]


def test_no_rows_give_empty_columns():
    assert split([], 3) == [[], [], []]


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([b"1\t2\n"], 3),
        ([b"1\t2\n"], 1),
        ([b"1\t2\n", b"3\n"], 2),
        ([b"1\n2\t3\t4\n"], 2),
        ([b"1\t2"], 2),
        ([b"1"], 1),
    ],
)
def test_rows_of_another_shape_are_a_bug(rows, columns):
    with pytest.raises(BugError):
        split_rows(CopiedRows.of(rows), columns)


texts = st.none() | st.text(st.sampled_from("a\\\t\n\r\b\f\vN.xé\U0001f600"), max_size=6)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(texts, min_size=n, max_size=n), min_size=1, max_size=8)
    )
)
def test_any_rows_come_back_as_they_were_written(rows):
    assert split([copy_row(row) for row in rows], len(rows[0])) == [list(c) for c in zip(*rows, strict=True)]


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_a_large_row_gives_what_a_small_one_gives(values):
    rows = [copy_row([*values, "end"])]
    small = split(rows, len(values) + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copytext, "LARGE_ROW_BYTES", 1)
        assert split(rows, len(values) + 1) == small == [[value] for value in [*values, "end"]]
        with pytest.raises(BugError, match="columns"):
            split(rows, len(values) + 2)
