"""A second Spark driver for tests: appends rows one by one to a Delta table on S3, in its own process.

``python -m tests.support.spark.lake_driver ENDPOINT ACCESS SECRET TABLE FIRST ROWS`` prints ``ready`` and
waits for a line on stdin before it starts.
"""

from __future__ import annotations

import sys

from merge.spark.session import S3Settings, local_session
from tests.support.spark.spark_sessions import QUICK_JAVA


def main(endpoint: str, access: str, secret: str, table: str, first: str, rows: str) -> None:
    s3 = S3Settings(endpoint, "us-east-1", access, secret)
    spark = local_session("tests-lake-driver", s3=s3, java_options=QUICK_JAVA)
    spark.table(table).count()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(first), int(first) + int(rows)):
        spark.sql(f"INSERT INTO {table} VALUES ({number})")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
