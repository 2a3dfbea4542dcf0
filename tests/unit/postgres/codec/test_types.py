from __future__ import annotations

import pytest

from connector.landing.event_batch import arrow_type
from connector.postgres.codec.types import landing_type, numeric_size, source_type


def numeric(precision: int, scale: int) -> int:
    """The type modifier as numerictypmodin() packs it since PostgreSQL 15."""
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("oid", "landing", "source"),
    [
        (21, "smallint", "smallint"),
        (23, "int", "integer"),
        (20, "bigint", "bigint"),
        (700, "float", "real"),
        (701, "double", "double precision"),
        (16, "boolean", "boolean"),
        (25, "string", "text"),
        (19, "string", "name"),
        (18, "string", '"char"'),
        (17, "binary", "bytea"),
        (1082, "date", "date"),
        (1083, "string", "time without time zone"),
        (1266, "string", "time with time zone"),
        (1114, "timestamp_ntz", "timestamp without time zone"),
        (1184, "timestamp", "timestamp with time zone"),
        (2950, "string", "uuid"),
        (114, "string", "json"),
        (3802, "string", "jsonb"),
        (1700, "string", "numeric"),
        (1042, "string", "bpchar"),
        (1043, "string", "character varying"),
        (1005, "array<smallint>", "smallint[]"),
        (1007, "array<int>", "integer[]"),
        (1016, "array<bigint>", "bigint[]"),
        (1009, "array<string>", "text[]"),
        (1015, "array<string>", "character varying[]"),
        (1231, "string", "numeric[]"),
        (869, "string", "inet"),
    ],
)
def test_a_builtin_type_without_modifier_has_its_landing_type_and_text(oid, landing, source):
    assert (landing_type(oid, -1), source_type(oid, -1)) == (landing, source)
    arrow_type(landing)


@pytest.mark.parametrize(
    ("precision", "scale", "landing"),
    [
        (12, 2, "decimal(12,2)"),
        (38, 0, "decimal(38,0)"),
        (38, 38, "decimal(38,38)"),
        (1, 1, "decimal(1,1)"),
        (39, 0, "string"),
        (3, 5, "string"),
        (2, -3, "string"),
        (1000, 1000, "string"),
        (1000, -1000, "string"),
    ],
)
def test_a_numeric_lands_as_decimal_where_128_bits_hold_it(precision, scale, landing):
    typmod = numeric(precision, scale)
    assert numeric_size(typmod) == (precision, scale)
    assert landing_type(1700, typmod) == landing
    assert source_type(1700, typmod) == f"numeric({precision},{scale})"


@pytest.mark.parametrize(
    ("oid", "typmod", "source"),
    [
        (1043, 24, "character varying(20)"),
        (1042, 9, "character(5)"),
        (1114, 3, "timestamp(3) without time zone"),
        (1184, 0, "timestamp(0) with time zone"),
        (1083, 6, "time(6) without time zone"),
        (1560, 8, "bit(8)"),
        (1015, 24, "character varying(20)[]"),
        (1231, numeric(10, 2), "numeric(10,2)[]"),
    ],
)
def test_a_modifier_is_formatted_as_format_type_formats_it(oid, typmod, source):
    assert source_type(oid, typmod) == source


def test_an_unknown_type_lands_as_its_text_and_is_named_by_the_catalog():
    assert landing_type(99999, -1) == "string"
    assert source_type(99999, -1) is None
