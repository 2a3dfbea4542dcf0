"""The rows of public.orders by AUTO CDC (Databricks, Spark 4.2); with Spark 4.1, which lacks it, the changes.

AUTO CDC follows the rule of our merge: of each key, the change with the greatest position wins. So dumped
rows may be among the changes. But it takes no column from an earlier change: each must carry all of them.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from merge.reading.change_source import DeltatideSource

TABLE = "public.orders"
KEY = ["id"]
OPTIONS = {
    "config": os.environ.get("DELTATIDE_CONFIG", "/etc/deltatide/shop.toml"),
    "table": TABLE,
    "dumps": "true",
    "consumer": "pipeline-orders",  # by this name the landing zone keeps what the pipeline has yet to read
}

spark = SparkSession.active()
spark.dataSource.register(DeltatideSource)


def order_changes() -> DataFrame:
    """Return what has landed of the table since the run before."""
    changes = spark.readStream.format("deltatide").options(**OPTIONS).load()
    return changes.where("_cdc.op <> 'truncate'")  # it has no key


if hasattr(dp, "create_auto_cdc_flow"):
    dp.temporary_view(order_changes)
    dp.create_streaming_table("orders")
    dp.create_auto_cdc_flow(
        target="orders",
        source="order_changes",
        keys=KEY,
        sequence_by="struct(_cdc.epoch, _cdc.lsn, _cdc.seq)",
        apply_as_deletes="_cdc.op = 'delete'",
        except_column_list=["_cdc"],
    )
else:
    dp.table(order_changes)
