"""A job for a cluster, by spark-submit: reads a lake in every way, and a stream of changes; prints JSON.

``cluster_job.py CONFIG TABLE COLUMN STREAMED CHECKPOINT`` reads the key `id` of the table and one column, and
writes the stream to the Delta table at STREAMED. It imports nothing of the tests: it runs where only the
package is installed.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame

from connector.config import load
from merge import as_of, live, open_session, register
from merge.reading.change_source import DeltatideSource


def main(file: str, table: str, column: str, streamed: str, checkpoint: str) -> None:
    config = load(file)
    spark = open_session(config)
    spark.dataSource.register(DeltatideSource)
    options = {"config": file, "table": table, "consumer": "cluster"}
    changes = spark.readStream.format("deltatide").options(**options).load()
    writing = changes.writeStream.format("delta").option("checkpointLocation", checkpoint)
    writing.trigger(availableNow=True).start(streamed).awaitTermination()

    def rows(frame: DataFrame) -> list[list[str]]:
        return sorted([str(row[0]), str(row[1])] for row in frame.select("id", column).collect())

    merged = as_of(spark, config)
    register(spark, config, [table])
    found = {
        "live": rows(live(spark, config, table)),
        "live view": rows(spark.table(f"`{table}_live`")),
        "merged": rows(merged[table]),
        "views": {name: [list(row) for row in merged[name].collect()] for name in merged if name != table},
        "streamed": rows(spark.read.format("delta").load(streamed)),
    }
    print(json.dumps(found, default=str))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
