"""Literals of every built-in type of MySQL and MariaDB. Texts are in utf8mb4 unless stated otherwise."""

from __future__ import annotations

from tests.fidelity.literals import Literals

MARIADB = ("mariadb", "mariadb-11.4")
MYSQL = ("mysql", "mysql-8.0")


def _texts(charset: str, *literals: str, servers: tuple[str, ...] = ()) -> Literals:
    return Literals(f"varchar(20) CHARACTER SET {charset}", "string", literals, servers=servers)


def _listed(kind: str, letter: str, count: int) -> str:
    values = ",".join(f"'{letter}{number}'" for number in range(count))
    return f"{kind}({values})"


NUMBERS = [
    Literals("tinyint", "tinyint", ("-128", "127", "0")),
    Literals("tinyint unsigned", "smallint", ("255", "0")),
    Literals("tinyint(1)", "tinyint", ("true", "-1", "99")),
    Literals("smallint", "smallint", ("-32768", "32767")),
    Literals("smallint unsigned", "int", ("65535", "0")),
    Literals("mediumint", "int", ("-8388608", "8388607", "-1")),
    Literals("mediumint unsigned", "int", ("16777215",)),
    Literals("int", "int", ("-2147483648", "2147483647", "7")),
    Literals("int(7) unsigned zerofill", "bigint", ("4294967295", "42")),
    Literals("bigint", "bigint", ("-9223372036854775808", "9223372036854775807")),
    Literals("bigint unsigned", "decimal(20,0)", ("18446744073709551615", "9223372036854775808", "0")),
    Literals("decimal(10,2)", "decimal(10,2)", ("-12345678.90", "99999999.99", "0.01", "-0.01", "0")),
    Literals("decimal(10,2) zerofill", "decimal(10,2)", ("1.5",)),
    Literals(
        "decimal(38,10)", "decimal(38,10)", ("-" + "9" * 28 + "." + "9" * 10, "1.0000000001", "-1")
    ),
    Literals(
        "decimal(65,30)", "string",
        ("-" + "9" * 35 + "." + "1" * 30, "0", "0.5", "1000", "-0.000000000000000000000000000001"),
    ),
    Literals("decimal(65,0)", "string", ("9" * 65, "-" + "9" * 65, "0")),
    Literals("decimal(39,0)", "string", ("9" * 39, "-1")),
    Literals("decimal(18,0) unsigned", "decimal(18,0)", ("9" * 18, "0")),
    Literals("decimal(3,3)", "decimal(3,3)", ("0.999", "-0.001")),
    Literals("decimal(20,9)", "decimal(20,9)", ("12345678901.123456789", "-99999999999.999999999")),
    Literals("float", "float", ("3.4028234e38", "-1.17549435e-38", "16777217", "0.1", "-0.0")),
    Literals("float(7,3)", "float", ("1234.567", "-0.001")),
    Literals("float unsigned", "float", ("1e-45", "1e10")),
    Literals(
        "double", "double",
        ("1.7976931348623157e308", "-2.2250738585072014e-308", "5e-324", "0.1", "-12.5", "1e15", "-0.0"),
    ),
    Literals("double(20,5)", "double", ("123456789012345.12345", "-0.00001")),
    Literals("bit(1)", "bigint", ("1", "0")),
    Literals("bit(9)", "bigint", ("511", "256")),
    Literals("bit(64)", "decimal(20,0)", ("18446744073709551615", "1")),
]  # fmt: skip
MOMENTS = [
    Literals("year", "int", ("1901", "2155", "0")),
    Literals(
        "date", "date", ("'0001-01-01'", "'9999-12-31'", "'1582-10-10'", "'2024-02-29'"),
        ("'0000-00-00'", "'2024-00-10'", "'2024-02-30'", "'0000-01-01'"),
    ),
    Literals("time", "string", ("'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'99:00:00'")),
    Literals("time(1)", "string", ("'-00:00:00.5'", "'12:34:56.7'")),
    Literals("time(3)", "string", ("'-1:02:03.456'", "'100:00:00.001'")),
    Literals("time(6)", "string", ("'-838:59:58.000001'", "'00:00:00.999999'", "'-00:00:00.000001'")),
    Literals(
        "datetime", "timestamp_ntz", ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
        ("'0000-00-00 00:00:00'",),
    ),
    Literals("datetime(2)", "timestamp_ntz", ("'2026-02-28 12:00:00.12'",), ("'2026-02-30 12:00:00.12'",)),
    Literals(
        "datetime(6)", "timestamp_ntz", ("'1969-12-31 23:59:59.999999'",),
        ("'2026-00-00 01:02:03.000004'", "'0000-01-01 00:00:00'"),
    ),
    Literals(
        "timestamp NULL", "timestamp", ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
        ("'0000-00-00 00:00:00'",),
    ),
    Literals("timestamp(4) NULL", "timestamp", ("'2026-07-01 00:00:00.1234'",), ("'0000-00-00 00:00:00'",)),
    Literals("timestamp(6) NULL", "timestamp", ("'2026-07-01 23:59:59.000001'",)),
    Literals("timestamp(5) NULL", "timestamp", ("'1970-01-01 00:00:00.00001'",), servers=MARIADB),
]  # fmt: skip
STRINGS = [
    Literals("char(10)", "string", ("'abc  '", "''", "'ü€😀'")),
    Literals("char(255)", "string", ("repeat('😀', 255)", "'x'")),
    Literals("char(0)", "string", ("''",)),
    Literals("char(5) CHARACTER SET latin1", "string", ("'äö€'", "X'818D8F909D'", "'  a'")),
    Literals("varchar(20)", "string", ("'abc  '", "char(0, 10, 26, 92 USING utf8mb4)", "''")),
    Literals("varchar(300) CHARACTER SET latin1", "string", ("repeat('ß', 300)", "'plain'")),
    Literals("varchar(20) COLLATE utf8mb4_bin", "string", ("'aA'",)),
    Literals("varchar(20) COLLATE utf8mb4_0900_ai_ci", "string", ("'é'",), servers=MYSQL),
    Literals("varchar(10) COLLATE uca1400_swedish_ai_ci", "string", ("'å'",), servers=MARIADB),
    Literals("varchar(10) COLLATE latin1_swedish_nopad_ci", "string", ("'å'",), servers=MARIADB),
    _texts("utf8mb3", "'ü€'"),
    _texts("ascii", "'~'"),
    _texts("ucs2", "'añ日'", "X'0041FFFD'"),
    _texts("utf16", "'a😀'"),
    _texts("utf16le", "'a😀'"),
    _texts("utf32", "'a😀'"),
    _texts("sjis", "'日本ｱ'", "X'815F5C'"),
    _texts("cp932", "'日本ｱ①'", "X'FAFC'"),
    _texts("ujis", "'日本'", "X'8EB1'"),
    _texts("gbk", "'中文'", "X'815C'"),
    _texts("gb2312", "'中文'"),
    _texts("gb18030", "'中文😀'", servers=MYSQL),
    _texts("big5", "'中文'", "X'A440'"),
    _texts("euckr", "'한국'"),
    _texts("latin2", "'Łódź'"),
    _texts("latin5", "'ğİ'"),
    _texts("latin7", "'ąč'"),
    _texts("cp1250", "'Łódź'"),
    _texts("cp1251", "'Київ'"),
    _texts("cp1256", "'سلام'"),
    _texts("cp1257", "'ąč'"),
    _texts("cp850", "'äß'"),
    _texts("cp852", "'ł'"),
    _texts("cp866", "'Привет'"),
    _texts("koi8r", "'Привет'"),
    _texts("koi8u", "'Київ'", "X'95'"),
    _texts("greek", "'αβγ'"),
    _texts("hebrew", "'שלום'"),
    _texts("tis620", "'ไทย'"),
    _texts("macroman", "'é'"),
    Literals("tinytext", "string", ("'tiny'",)),
    Literals("text", "string", ("repeat('x', 300)", "''")),
    Literals("mediumtext", "string", ("repeat('é', 40000)", "'m'")),
    Literals("longtext CHARACTER SET latin1", "string", ("'ÿ'", "repeat('€', 70000)")),
    Literals("binary(8)", "binary", ("X'0102'", "X'0000'", "X'6100620000000000'")),
    Literals("varbinary(300)", "binary", ("repeat(X'00', 300)", "X'FF00'", "''")),
    Literals("tinyblob", "binary", ("X'00'",)),
    Literals("blob", "binary", ("X'DEADBEEF'", "repeat('b', 65535)")),
    Literals("mediumblob", "binary", ("X'01'",)),
    Literals("longblob", "binary", ("X'02'", "''")),
]
OTHERS = [
    Literals("enum('a','ü''x','c,') CHARACTER SET latin1", "string", ("'a'", "'c,'", "0", "'ü''x'")),
    Literals("enum('','\"',' x','(','日')", "string", ("''", "'\"'", "' x'", "'('", "'日'", "0")),
    Literals(_listed("enum", "v", 300), "string", ("'v299'", "'v0'")),
    Literals("set('x','y','z')", "string", ("'x,z'", "''", "7")),
    Literals("set('a b','','é''')", "string", ("'a b'", "'é'''", "7")),
    Literals("set('','a','b')", "string", ("'a'", "1", "3", "7")),
    Literals(_listed("set", "s", 64), "string", ("'s0,s63'",)),
    Literals("json", "string", ("'{\"b\": [1, 2.50], \"a\": \"ü\"}'", "'null'", "'[]'", "'1e20'")),
    Literals("geometry", "string", ("ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('POINT(1 2)')")),
    Literals("point", "string", ("ST_GeomFromText('POINT(-1.5 1e300)')",)),
    Literals("linestring", "string", ("ST_GeomFromText('LINESTRING(0 0, 1 1)')",)),
    Literals("polygon", "string", ("ST_GeomFromText('POLYGON((0 0, 1 0, 1 1, 0 0))')",)),
    Literals("multipoint", "string", ("ST_GeomFromText('MULTIPOINT(0 0, 1 1)')",)),
    Literals("multilinestring", "string", ("ST_GeomFromText('MULTILINESTRING((0 0, 1 1))')",)),
    Literals("multipolygon", "string", ("ST_GeomFromText('MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))')",)),
    Literals("geometrycollection", "string", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')",)),
    Literals("vector(3)", "string", ("to_vector('[1, -2.5, 1e30]')",), servers=("mysql",)),
    Literals(
        "uuid", "string",
        ("'01890a5d-ac96-774b-bcce-b302099a8057'", "'123e4567-e89b-12d3-a456-426655440000'"), servers=MARIADB,
    ),
    Literals(
        "inet6", "string",
        (
            "'::ffff:1.2.3.4'", "'::'", "'2001:db8:0:0:1:0:0:1'", "'::1'", "'::1.2.3.4'", "'::ffff:0:0'",
            "'2001:db8:0:1:1:1:1:1'", "'0:1:1:1:1:1:1:1'", "'1:1:1:1:1:1:1:0'", "'1:0:0:0:2:0:0:0'",
        ),
        servers=MARIADB,
    ),
    Literals("inet4", "string", ("'127.0.0.0'", "'0.0.0.0'"), servers=MARIADB),
    Literals("varchar(500) COMPRESSED", "string", ("repeat('z', 400)", "''", "'short'"), servers=MARIADB),
    Literals("text COMPRESSED", "string", ("repeat('ü', 4000)", "'s'"), servers=MARIADB),
    Literals("blob COMPRESSED", "binary", ("repeat(X'00', 4000)",), servers=MARIADB),
]  # fmt: skip
LITERALS = [*NUMBERS, *MOMENTS, *STRINGS, *OTHERS]
