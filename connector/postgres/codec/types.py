"""PostgreSQL's types: what each lands as, and how its name is written. Pure.

Invariant: a type lands as a Spark type that holds its values exactly (rare misfits go into ``raw``, see
`connector.postgres.codec.column_decoder`), or as the source's own text.

Callers resolve domains: pass the oid and type modifier of the base type.
"""

from __future__ import annotations

DECIMAL_MAX_PRECISION = 38
"""The widest decimal that Spark and Parquet hold in 128 bits."""

_NUMERIC = 1700

_LANDING = {
    16: "boolean",
    17: "binary",
    20: "bigint",
    21: "smallint",
    23: "int",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
    1005: "array<smallint>",
    1007: "array<int>",
    1016: "array<bigint>",
    1009: "array<string>",
    1015: "array<string>",
}

# Written as by format_type(); {} marks where the type modifier goes.
_TYPE_NAMES = {
    16: "boolean",
    17: "bytea",
    18: '"char"',
    19: "name",
    20: "bigint",
    21: "smallint",
    23: "integer",
    25: "text",
    26: "oid",
    114: "json",
    142: "xml",
    600: "point",
    650: "cidr",
    700: "real",
    701: "double precision",
    790: "money",
    829: "macaddr",
    869: "inet",
    1042: "character{}",
    1043: "character varying{}",
    1082: "date",
    1083: "time{} without time zone",
    1114: "timestamp{} without time zone",
    1184: "timestamp{} with time zone",
    1266: "time{} with time zone",
    1560: "bit{}",
    1562: "bit varying{}",
    _NUMERIC: "numeric{}",
    2950: "uuid",
    3802: "jsonb",
}

_ELEMENT = {
    1000: 16,
    1001: 17,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1231: _NUMERIC,
    199: 114,
    2951: 2950,
    3807: 3802,
}

_VARYING_HEADER = 4
"""Type modifiers of character and numeric types count the four bytes of a varlena header."""


def landing_type(oid: int, typmod: int) -> str:
    """Return the Spark SQL type that a PostgreSQL type lands as, ``string`` if no other fits."""
    if oid == _NUMERIC:
        return _landing_numeric(typmod)
    return _LANDING.get(oid, "string")


def _landing_numeric(typmod: int) -> str:
    size = numeric_size(typmod)
    if size is None:
        return "string"
    precision, scale = size
    fits = 1 <= precision <= DECIMAL_MAX_PRECISION and 0 <= scale <= precision
    return f"decimal({precision},{scale})" if fits else "string"


def numeric_size(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale of ``numeric(p,s)``; None without them.

    Since PostgreSQL 15 the scale is a signed number of 11 bits (``numeric(2,-3)``, ``numeric(3,5)``); older
    servers store 0 to 1000 there, which reads the same.
    """
    if typmod < _VARYING_HEADER:
        return None
    packed = typmod - _VARYING_HEADER
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def source_type(oid: int, typmod: int) -> str | None:
    """Format a built-in type as ``format_type()`` does; None for others, which only the catalog can name."""
    if oid in _ELEMENT:
        return f"{source_type(_ELEMENT[oid], typmod)}[]"
    type_name = _TYPE_NAMES.get(oid)
    if type_name is None:
        return None
    if oid == 1042 and typmod < _VARYING_HEADER:
        return "bpchar"
    return type_name.format(_modifier(oid, typmod))


def _modifier(oid: int, typmod: int) -> str:
    if oid == _NUMERIC:
        size = numeric_size(typmod)
        return f"({size[0]},{size[1]})" if size else ""
    if oid in (1042, 1043):
        return f"({typmod - _VARYING_HEADER})" if typmod >= _VARYING_HEADER else ""
    return f"({typmod})" if typmod >= 0 else ""
