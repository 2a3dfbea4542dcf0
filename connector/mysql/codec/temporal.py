"""Decodes dates and times of row events to Arrow, a column at a time. Pure.

Formats: MySQL's ``my_time_packed_to_binary`` and friends (big-endian, followed by fractions of 0 to 3 bytes),
and the older ones without fractions, from tables created by MySQL 5.5.

Invariant: a value that Spark's types can't hold (a zero or impossible date, the year 0) is null, and the
server's text of it is returned as well. A ``time`` lands as text, since it may be negative or longer than a
day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.codec.cells import Bytes, Mask, Offsets, with_nulls
from connector.mysql.codec import types
from connector.mysql.codec.column_cells import from_numpy, texts_of
from connector.mysql.codec.numbers import big_endian, little_endian
from connector.mysql.codec.types import ColumnType

_DAYS, _NTZ, _UTC = pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_SECOND, _DAY = 1_000_000, 86_400

Numbers = npt.NDArray[np.int64]


class Moments(NamedTuple):
    """Broken-down dates and times, as stored, so not necessarily valid."""

    year: Numbers
    month: Numbers
    day: Numbers
    seconds: Numbers
    micros: Numbers


def decode_dates(data: Bytes, starts: Offsets, valid: Mask | None) -> tuple[pa.Array, pa.Array | None]:
    """Decode DATE; the second array holds the texts of invalid dates, or is None."""
    packed = little_endian(data, starts, 3).view(np.int64)
    zero = np.zeros(len(packed), np.int64)
    moments = Moments(packed >> 9, packed >> 5 & 15, packed & 31, zero, zero)
    days, exists = _days(moments)
    held, raw = _misfits(moments, exists, valid, _date_text)
    return from_numpy(days.astype(np.int32), _DAYS, held), raw


def decode_datetimes(
    data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType
) -> tuple[pa.Array, pa.Array | None]:
    """Decode DATETIME; the second array as for dates."""
    moments = _new_moments(data, starts, type_.scale) if type_.code == types.DATETIME2 else _old(data, starts)
    days, exists = _days(moments)
    held, raw = _misfits(moments, exists, valid, lambda m, i: datetime_text(m, i, type_.scale))
    return from_numpy((days * _DAY + moments.seconds) * _SECOND + moments.micros, _NTZ, held), raw


def _new_moments(data: Bytes, starts: Offsets, scale: int) -> Moments:
    packed = big_endian(data, starts, 5).view(np.int64) - 0x8000000000
    return unpack_moments(packed, _micros(data, starts + 5, scale))


def unpack_moments(packed: Numbers, micros: Numbers) -> Moments:
    """Break down ``(year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second``."""
    months = packed >> 22
    seconds = (packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
    return Moments(months // 13, months % 13, packed >> 17 & 31, seconds, micros)


def _old(data: Bytes, starts: Offsets) -> Moments:
    """Parse the number YYYYMMDDhhmmss."""
    packed = little_endian(data, starts, 8).view(np.int64)
    date, time = packed // 1_000_000, packed % 1_000_000
    seconds = time // 10_000 * 3600 + time // 100 % 100 * 60 + time % 100
    return Moments(date // 10_000, date // 100 % 100, date % 100, seconds, np.zeros(len(packed), np.int64))


def _micros(data: Bytes, starts: Offsets, scale: int) -> Numbers:
    width = (scale + 1) // 2
    if not width:
        return np.zeros(len(starts), np.int64)
    micros: Numbers = big_endian(data, starts, width).view(np.int64) * 100 ** (3 - width)
    return micros


def decode_timestamps(
    data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType
) -> tuple[pa.Array, pa.Array | None]:
    """Decode TIMESTAMP; the only invalid one is the zero timestamp."""
    if type_.code == types.TIMESTAMP2:
        seconds = big_endian(data, starts, 4).view(np.int64)
        micros = _micros(data, starts + 4, type_.scale)
    else:
        seconds = little_endian(data, starts, 4).view(np.int64)
        micros = np.zeros(len(starts), np.int64)
    zero = np.zeros(len(starts), np.int64)
    moments = Moments(zero, zero, zero, zero, micros)
    held, raw = _misfits(
        moments, (seconds | micros) != 0, valid, lambda m, i: datetime_text(m, i, type_.scale)
    )
    return from_numpy(seconds * _SECOND + micros, _UTC, held), raw


def _days(moments: Moments) -> tuple[Numbers, Mask]:
    """Count each date's days since 1970, and mark the dates that exist in the years 1 to 9999."""
    months = (moments.year - 1970) * 12 + moments.month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").view(np.int64)
    after = (months + 1).astype("datetime64[M]").astype("datetime64[D]").view(np.int64)
    days = first + moments.day - 1
    exists = (moments.year >= 1) & (moments.year <= 9999) & (moments.month >= 1) & (moments.month <= 12)
    return days, exists & (moments.day >= 1) & (days < after)


def _misfits(
    moments: Moments, exists: Mask, valid: Mask | None, text: Callable[[Moments, int], str]
) -> tuple[Mask | None, pa.Array | None]:
    """Return which rows hold a valid time (None: all), and the texts of those that do not (None: none)."""
    present = exists if valid is None else exists | ~valid
    if present.all():
        return valid, None
    texts: list[str | None] = [None] * len(exists)
    for index in np.flatnonzero(~present).tolist():
        texts[index] = text(moments, index)
    return (exists if valid is None else exists & valid), pa.array(texts, pa.string())


def _date_text(moments: Moments, index: int) -> str:
    return f"{moments.year[index]:04d}-{moments.month[index]:02d}-{moments.day[index]:02d}"


def datetime_text(moments: Moments, index: int, scale: int) -> str:
    """Format one datetime as the server does."""
    seconds = int(moments.seconds[index])
    fraction = f".{int(moments.micros[index]):06d}"[: scale + 1] if scale else ""
    time = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
    return f"{_date_text(moments, index)} {time}"


def decode_times(data: Bytes, starts: Offsets, valid: Mask | None, type_: ColumnType) -> pa.Array:
    """Decode TIME to the text that the server prints, such as ``-838:59:59.5``."""
    if type_.code == types.TIME:
        packed = (little_endian(data, starts, 3) << np.uint64(40)).view(np.int64) >> 40
        size = np.abs(packed)
        zero = np.zeros(len(size), np.int64)
        return _texts(_Times(packed < 0, size // 10_000, size // 100 % 100, size % 100, zero), 0, valid)
    width = (type_.scale + 1) // 2
    shift = 8 * width
    packed = big_endian(data, starts, 3 + width).view(np.int64) - (0x800000 << shift)
    size = np.abs(packed)
    whole, micros = size >> shift, (size & (1 << shift) - 1) * 100 ** (3 - width)
    times = _Times(packed < 0, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, micros)
    return _texts(times, type_.scale, valid)


class _Times(NamedTuple):
    negative: Mask
    hours: Numbers
    minutes: Numbers
    seconds: Numbers
    micros: Numbers


def _texts(times: _Times, scale: int, valid: Mask | None) -> pa.Array:
    """Write times into a matrix of characters, dropping unneeded signs and third digits of hours."""
    rows = len(times.hours)
    text = np.empty((rows, 10 + (scale + 1 if scale else 0)), np.uint8)
    text[:, 0] = ord("-")
    _digits(text[:, 1:4], times.hours)
    text[:, 4], text[:, 7] = ord(":"), ord(":")
    _digits(text[:, 5:7], times.minutes)
    _digits(text[:, 8:10], times.seconds)
    if scale:
        text[:, 10] = ord(".")
        _digits(text[:, 11:], times.micros // 10 ** (6 - scale))
    present = np.ones(text.shape, np.bool_) if valid is None else np.repeat(valid[:, None], text.shape[1], 1)
    present[:, 0] &= times.negative
    present[:, 1] &= times.hours >= 100
    offsets = np.concatenate(([0], np.cumsum(present.sum(axis=1)))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[present])]
    return texts_of(with_nulls(pa.Array.from_buffers(pa.binary(), rows, buffers), valid))


def _digits(columns: Bytes, numbers: Numbers) -> None:
    for column in range(columns.shape[1] - 1, -1, -1):
        columns[:, column] = numbers % 10 + ord("0")
        numbers = numbers // 10
