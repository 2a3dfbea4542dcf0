"""The texts that a merge makes of keys, and that name a key: the same whatever the session's settings are."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connector.landing.event_batch import arrow_type
from connector.landing.format import CDC
from connector.schema import TableName
from merge.keys import RAW_TYPE, TargetLayout, key_text
from merge.proof.sought_key import key_condition
from merge.spark.session_settings import LITERAL, applied_settings
from tests.support.spark.spark_sessions import to_arrow

UTC = timezone.utc
T = TableName("public", "t")
TEXTS: dict[str, dict[Any, str]] = {
    "boolean": {True: "true", False: "false"},
    "tinyint": {-128: "-128"},
    "smallint": {-(2**15): "-32768"},
    "int": {2**31 - 1: "2147483647"},
    "bigint": {-(2**63): "-9223372036854775808"},
    "decimal(20,0)": {Decimal(2**64 - 1): "18446744073709551615"},
    "decimal(12,2)": {Decimal("1.50"): "1.50", Decimal("-9999999999.99"): "-9999999999.99"},
    "decimal(38,10)": {
        Decimal("0E-10"): "0.0000000000",
        Decimal("-1.20E-8"): "-0.0000000120",
        Decimal("0.000001"): "0.0000010000",
        Decimal("-1E-6"): "-0.0000010000",
        Decimal("9999E-10"): "0.0000009999",
        Decimal("-12.5"): "-12.5000000000",
        Decimal(f"-{'9' * 28}.{'9' * 10}"): f"-{'9' * 28}.{'9' * 10}",
    },
    "decimal(38,38)": {
        Decimal("0E-38"): f"0.{'0' * 38}",
        Decimal("-1E-38"): f"-0.{'1':0>38}",
        Decimal("0.9"): f"0.{'9':0<38}",
    },
    "array<decimal(9,7)>": {(Decimal("0E-7"), Decimal("1E-7")): '{"0.0000000","0.0000001"}'},
    "float": {1.5: "1.5", float("-inf"): "-Infinity"},
    "double": {0.1: "0.1", 5e-324: "4.9E-324", 1e20: "1.0E20", float("nan"): "NaN"},
    "string": {"": "", 'it\'s "so"\\ \n\U0001f600 ': 'it\'s "so"\\ \n\U0001f600 '},
    "binary": {b"": "\\x", b"\x00\xff\\": "\\x00ff5c"},
    "date": {date(1, 1, 1): "0001-01-01", date(9999, 12, 31): "9999-12-31"},
    "timestamp_ntz": {
        datetime(1, 1, 1): "0001-01-01 00:00:00",
        datetime(2020, 3, 29, 2, 30, 0, 500000): "2020-03-29 02:30:00.5",
    },
    "timestamp": {
        datetime(1, 1, 1, tzinfo=UTC): "0001-01-01 00:00:00+00",
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC): "1969-12-31 23:59:59.999999+00",
        datetime(2020, 10, 25, 0, 30, tzinfo=UTC): "2020-10-25 00:30:00+00",
        datetime(2020, 10, 25, 1, 30, tzinfo=UTC): "2020-10-25 01:30:00+00",
        datetime(9999, 12, 31, 23, 59, 59, 1, UTC): "9999-12-31 23:59:59.000001+00",
    },
    "array<bigint>": {(): "{}", (1, None, -(2**63)): '{"1",NULL,"-9223372036854775808"}'},
    "array<string>": {("NULL", None, 'a "b" \\', "1,2"): '{"NULL",NULL,"a \\"b\\" \\\\","1,2"}'},
}


@pytest.mark.parametrize(("zone", "ansi"), [("UTC", "true"), ("Europe/Berlin", "false")])
def test_keys_are_formatted_the_same_in_any_session(
    spark: SparkSession, tmp_path: Path, zone: str, ansi: str
) -> None:
    longest = max(map(len, TEXTS.values()))
    names = {type_: f"c{number}" for number, type_ in enumerate(TEXTS)}
    columns = [
        pa.array([list(v) if isinstance(v, tuple) else v for v in values] + [None] * (longest - len(values)),
                 arrow_type(type_))
        for type_, values in TEXTS.items()
    ]  # fmt: skip
    pq.write_table(pa.table(columns, list(names.values())), tmp_path / "keys.parquet")
    schema = ", ".join(f"{name} {type_}" for type_, name in names.items())
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}
    with applied_settings(spark, {**LITERAL, **settings}):
        frame = spark.read.schema(schema).parquet(str(tmp_path / "keys.parquet"))
        texts = [key_text(frame[name], type_).alias(name) for type_, name in names.items()]
        found = to_arrow(frame.select(*texts)).to_pydict()
        counted = [
            F.count_if(key_condition(T, TargetLayout({names[type_]: type_}, (names[type_],), ()), [text]))
            for type_, values in TEXTS.items()
            for text in values.values()
        ]
        landed = frame.withColumn(CDC, F.lit(None).cast(f"struct<raw:{RAW_TYPE}>"))
        matches = [*landed.agg(*counted).collect()[0]]
    for type_, values in TEXTS.items():
        assert found[names[type_]][: len(values)] == list(values.values()), type_
    assert set(matches) == {1}, "read back, each text is its own value and no other"
