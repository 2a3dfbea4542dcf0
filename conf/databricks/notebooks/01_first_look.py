# Databricks notebook source
# MAGIC %md
# MAGIC # A first look
# MAGIC
# MAGIC What a run leaves: the landing zone that the agent wrote, and the Delta tables that merges made of it.
# MAGIC
# MAGIC The first cell finds the configuration: locally that of the demo (run `make demo` first; name another folder than `demo-data` in the variable `DELTATIDE_DEMO`), on Databricks the file in the widget `config`. The text is about the demo's shop; notebooks/README.md says how to follow it on Databricks, or with tables of your own.

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
config.landing.url, config.lake

# COMMAND ----------

# MAGIC %md
# MAGIC ## What has landed?
# MAGIC
# MAGIC The agent's only state is a line of numbered manifests. Each one commits files of all tables at once, together with the position of the source's log up to which everything has landed. Here are the newest 500, or as many as there are.

# COMMAND ----------

from connector.landing.manifest_store import ManifestReader, newest_manifest, read_retained
from connector.store.factory import open_store

store = open_store(config.landing, config.source.name)
newest = newest_manifest(store)
retained = read_retained(store)
first = max(retained.first if retained else 1, newest.number - 499)
reader = ManifestReader(store)
manifests = [reader.read(number) for number in range(first, newest.number + 1)]
pd.DataFrame(
    {
        "manifest": m.number,
        "position": m.position_text,
        "committed": m.committed_at,
        "log events": sum(f.rows for f in m.files if f.kind == "log"),
        "dumped rows": sum(f.rows for f in m.files if f.kind == "chunk"),
        "files": len(m.files),
        "exact": m.exact,
    }
    for m in manifests
).set_index("manifest")

# COMMAND ----------

# MAGIC %md
# MAGIC The newest manifest carries the whole state: the tables, and how far their dumps have come.

# COMMAND ----------

pd.DataFrame(
    {"dump": d.id, "table": str(d.table), "kind": d.kind, "reason": d.reason, "state": d.state, "chunks": d.chunks, "rows": d.rows}
    for d in newest.dumps
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What is in a landing file?
# MAGIC
# MAGIC One table, one schema, typed columns; and the struct `_cdc` with the rest: the operation, the position in the source's history, the commit time. The demo's `documents` has long texts: an update that does not touch them does not carry them, and says so in `unchanged`.

# COMMAND ----------

import pyarrow as pa
import pyarrow.parquet as pq


def read(file, columns=None):
    return pq.read_table(pa.BufferReader(store.read(file.path)), columns=columns)


log = [file for m in manifests for file in m.files if file.kind == "log"]
partial = next((f for f in log if f.table.name == "documents" and f.partial), log[-1])
landed = read(partial).slice(0, 10).to_pandas()
pd.concat([landed.drop(columns="_cdc"), pd.json_normalize(landed["_cdc"])[["op", "lsn", "seq", "txid", "committed_at", "unchanged"]]], axis=1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## When did things change?
# MAGIC
# MAGIC By the time of their commit at the source. The landing files are the record of every change, also of those that a later one of the same row has replaced in Delta.

# COMMAND ----------

import pyarrow.compute as pc


def commit_times(file):
    cdc = read(file, ["_cdc"])["_cdc"].combine_chunks()
    return pd.DataFrame({"table": str(file.table), "at": pc.struct_field(cdc, "committed_at").to_pandas()})


changes = pd.concat([commit_times(file) for file in log[-1000:]])
per_second = changes.groupby([changes["at"].dt.floor("s"), "table"]).size().unstack(fill_value=0)
axes = per_second.plot(kind="area", stacked=True, figsize=(10, 4), linewidth=0)
axes.set(title="Changes per second, by table", xlabel="commit time at the source (UTC)", ylabel="changes")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## What is in the lake?
# MAGIC
# MAGIC A merge brings all tables up to one manifest and records a cut: the Delta version of every table at it. An exact cut is the state of the source at one position, for all tables together.

# COMMAND ----------

from merge import as_of, cuts, live

cuts(spark, config).select("manifest", "position", "source_committed_at", "merged_at", "exact").toPandas()

# COMMAND ----------

cut = cuts(spark, config).where("exact").orderBy("manifest", ascending=False).first()
tables = as_of(spark, config, cut.manifest)
pd.DataFrame({"table": name, "version": cut.tables[name].version, "rows": frame.count()} for name, frame in sorted(tables.items()))

# COMMAND ----------

for name, frame in tables.items():
    frame.createOrReplaceTempView(name.partition(".")[2])
spark.sql("""
    SELECT status, count(DISTINCT orders.id) AS orders, sum(quantity) AS pieces, sum(quantity * price) AS value
    FROM orders JOIN order_items ON order_items.order_id = orders.id
    GROUP BY status ORDER BY value DESC
""").toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC Each row knows the event that it comes from.

# COMMAND ----------

spark.table("orders").selectExpr("id", "status", "total", "_cdc.op", "_cdc.lsn", "_cdc.committed_at").orderBy("_cdc.lsn", ascending=False).limit(5).toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## And without waiting for a merge?
# MAGIC
# MAGIC `live` is the state as of the newest manifest: the Delta table and what has landed since, reconciled by the same rules. 02_merge_and_live.ipynb goes on from here.

# COMMAND ----------

orders = next(name for name in tables if name.endswith(".orders"))
live(spark, config, orders).groupBy("status").count().orderBy("status").toPandas()
