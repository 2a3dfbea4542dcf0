# Databricks notebook source
# MAGIC %md
# MAGIC # Streaming
# MAGIC
# MAGIC - How do I read the changes themselves?
# MAGIC - How do I process each change once, also across restarts?
# MAGIC - In which order do they come?
# MAGIC - Who reads this table, and how far are they?
# MAGIC
# MAGIC This needs Spark 4. The first cell finds the configuration: locally that of the demo (run `make demo` first; name another folder than `demo-data` in the variable `DELTATIDE_DEMO`), on Databricks the file in the widget `config`. The text is about the demo's shop; notebooks/README.md says how to follow it on Databricks, or with tables of your own.

# COMMAND ----------

import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from connector.config import load
from merge import open_session

if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    dbutils.widgets.text("config", "/Volumes/main/deltatide/config/shop.toml")
    file = Path(dbutils.widgets.get("config"))
else:
    folders = [Path(os.environ["DELTATIDE_DEMO"])] if "DELTATIDE_DEMO" in os.environ else [Path("demo-data"), Path("../demo-data")]
    file = next((folder / "demo.toml" for folder in folders if (folder / "demo.toml").exists()), None)
    assert file, f"no demo in {folders}: run make demo, or set DELTATIDE_DEMO"
config = load(file)
spark = open_session(config)
plt.style.use("merge.plots")

# COMMAND ----------

# MAGIC %md
# MAGIC ## How do I read the changes themselves?
# MAGIC
# MAGIC With the data source `deltatide`: a row is one landed change of one table, with the table's columns and `_cdc`. It reads the landing zone; no merge and no Delta table is involved. As a batch, `after` and `upto` take a manifest, a position or a time.

# COMMAND ----------

from connector.landing.manifest_store import newest_manifest
from connector.store.factory import open_store

newest = newest_manifest(open_store(config.landing, config.source.name))
table = next(str(name) for name in newest.tables if name.name == "orders")

from merge.reading.change_source import DeltatideSource

spark.dataSource.register(DeltatideSource)
place = {"config": str(file.absolute()), "table": table}
log = spark.read.format("deltatide").options(**place, upto=newest.number).load()
log.select("id", "status", "total", "_cdc.op", "_cdc.lsn", "_cdc.seq", "_cdc.committed_at").orderBy("_cdc.lsn", "_cdc.seq").limit(5).toPandas()

# COMMAND ----------

per_second = log.selectExpr("date_trunc('second', _cdc.committed_at) AS at", "_cdc.op AS op").groupBy("at", "op").count().toPandas()
per_second = per_second.pivot(index="at", columns="op", values="count").fillna(0)
axes = per_second.plot(kind="area", stacked=True, figsize=(10, 4), linewidth=0)
axes.set(title=f"Changes of {table} per second", xlabel="commit time at the source (UTC)", ylabel="changes")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How do I process each change once, also across restarts?
# MAGIC
# MAGIC With a streaming query, which keeps in its checkpoint how far it is. `consumer` is its name: the landing zone keeps what that consumer has yet to read. This query writes Parquet files beside the configuration, as they are the same everywhere; with `toTable` it would be a Delta table.
# MAGIC
# MAGIC We start it twice. The first run is limited to a few manifests (`max_manifests`); the second one continues where it stopped.

# COMMAND ----------

import re
import time

run = time.strftime("%Y%m%d_%H%M%S")
folder = file.parent.absolute() / f"stream_{run}"
middle = max(1, newest.number // 2)


def manifest_of(offset):
    found = re.search(r"manifest\W+(\d+)", str(offset))
    return int(found[1]) if found else None


def read_on():
    """Run the query until it has caught up; return what it did."""
    changes = spark.readStream.format("deltatide").options(**place, consumer=f"notebook_{run}", max_manifests=middle).load()
    writer = changes.writeStream.format("parquet").option("path", str(folder / "rows")).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [{"batch": p["batchId"], "rows": p["numInputRows"], "after manifest": manifest_of(p["sources"][0]["startOffset"]), "up to manifest": manifest_of(p["sources"][0]["endOffset"])} for p in query.recentProgress]


first = read_on()
second = read_on()
pd.DataFrame(first + second)

# COMMAND ----------

# MAGIC %md
# MAGIC Nothing is missing and nothing is there twice: each change has a position, and a position is one event.

# COMMAND ----------

streamed = spark.read.parquet(str(folder / "rows"))
position = ["_cdc.epoch", "_cdc.lsn", "_cdc.seq"]
{
    "changes in the landing zone": log.count(),
    "changes that the stream has read": streamed.count(),
    "different positions among them": streamed.select(*position).distinct().count(),
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## In which order do they come?
# MAGIC
# MAGIC In none: a batch may be read in parallel, and batches may be large. Whoever builds a state needs `_cdc.epoch`, `_cdc.lsn` and `_cdc.seq`, and takes the greatest for each key. Here is the last change of each order, by its operation.

# COMMAND ----------

from pyspark.sql import functions as F

latest = streamed.where("id IS NOT NULL").groupBy("id").agg(F.max_by("_cdc.op", F.struct(*position)).alias("op"), F.count("*").alias("changes"))
latest.groupBy("op").agg(F.count("*").alias("orders"), F.sum("changes").alias("changes"), F.max("changes").alias("most of one order")).orderBy("op").toPandas()

# COMMAND ----------

counts = latest.groupBy("changes").count().orderBy("changes").toPandas().set_index("changes")["count"]
axes = counts.plot(kind="bar", figsize=(10, 3), rot=0, width=0.9, logy=True)
axes.set(title="How often an order was changed", xlabel="changes", ylabel="orders (logarithmic)")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC That is not the whole table: rows that nobody has changed are only in dumps. The option `dumps` reads those, too; the lake has the result of both.
# MAGIC
# MAGIC ## Who reads this table, and how far are they?
# MAGIC
# MAGIC Lakes and streams leave a record in the landing zone every ten minutes or hundred manifests, and `deltatide maintain` keeps what they have yet to read. `deltatide status` shows it as well.

# COMMAND ----------

from connector.landing.consumers import read_consumers

readers = read_consumers(open_store(config.landing, config.source.name))
pd.DataFrame({"kind": reader.kind, "name": reader.lake, "manifest": reader.manifest, "at": reader.at} for reader in readers)

# COMMAND ----------

# MAGIC %md
# MAGIC A stream that is gone for good is forgotten with `deltatide maintain --forget "stream NAME"`. Delete the folder `stream_...` when you are done with it; the demo's next run empties its folder anyway.
