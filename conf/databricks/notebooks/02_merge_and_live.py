# Databricks notebook source
# MAGIC %md
# MAGIC # Merge and live
# MAGIC
# MAGIC - What will a merge take up?
# MAGIC - What did a merge do?
# MAGIC - What has landed since, and how do I read it without waiting?
# MAGIC - How do I query live rows by SQL?
# MAGIC - What happens if a merge runs twice?
# MAGIC - Why is this row as it is?
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

# COMMAND ----------

# MAGIC %md
# MAGIC ## A lake to try things in
# MAGIC
# MAGIC One landing zone can feed any number of lakes. So this notebook merges into a lake of its own, and leaves yours alone. The configuration is a copy, with another `[lake]`: a folder beside the demo's lake, on Databricks a new schema of the catalog in the widget `catalog`.

# COMMAND ----------

import json
import re
import time

run = time.strftime("%Y%m%d_%H%M%S")
if "DATABRICKS_RUNTIME_VERSION" in os.environ:
    dbutils.widgets.text("catalog", "main")
    catalog = dbutils.widgets.get("catalog")
    spark.sql(f"CREATE SCHEMA `{catalog}`.deltatide_{run}")
    lake = f'catalog = "{catalog}"\nschema = "deltatide_{run}"'
else:
    lake = f"url = {json.dumps(str(file.parent.absolute() / f'lake_{run}'))}"


def trial(settings=""):
    """Return the configuration with the lake of this run, and further settings."""
    rest = re.sub(r"(?ms)^\[lake\].*?(?=^\[|\Z)", "", file.read_text())
    copy = file.with_name(f"trial_{run}.toml")
    copy.write_text(f"{rest}\n[lake]\n{lake}\n{settings}")
    return load(copy)


config = trial()
config.lake

# COMMAND ----------

# MAGIC %md
# MAGIC ## What will a merge take up?
# MAGIC
# MAGIC Everything that landed after the cut before, in whole manifests. This lake is empty, so the first merge would take up all of it. To see more than one, we stop the first merge at a manifest in the middle (`until`).

# COMMAND ----------

from connector.landing.manifest_store import ManifestReader, newest_manifest, read_retained
from connector.store.factory import open_store

store = open_store(config.landing, config.source.name)
newest = newest_manifest(store)
retained = read_retained(store)
first = max(retained.first if retained else 1, newest.number - 499)
reader = ManifestReader(store)
manifests = [reader.read(number) for number in range(first, newest.number + 1)]
landed = pd.DataFrame(
    {"manifest": m.number, "log events": sum(f.rows for f in m.files if f.kind == "log"), "dumped rows": sum(f.rows for f in m.files if f.kind == "chunk")}
    for m in manifests
).set_index("manifest")
share = landed["log events"].cumsum() / landed["log events"].sum()
middle = int(share[share >= 0.5].index[0])
axes = landed.plot(kind="bar", stacked=True, figsize=(10, 4), width=0.9)
axes.axvline(landed.index.get_loc(middle) + 0.5, color="C3", linestyle="--", label="the first merge ends here")
axes.xaxis.set_major_locator(plt.MaxNLocator(20, integer=True))
axes.tick_params(axis="x", rotation=0)
axes.set(title="Rows landed by each manifest", ylabel="rows")
axes.legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## What did a merge do?
# MAGIC
# MAGIC `merge_once` is what `deltatide merge` runs. For each table, it reduces all events of a key to one row, and runs one MERGE. `rows` counts the events that it read. The first load of a table is no MERGE but writes the rows as they are; Delta counts them only for later merges.

# COMMAND ----------

from merge import as_of, cuts, explain, live, merge_once


def as_table(report):
    names = ["table", "rows", "inserted", "updated", "deleted", "version", "seconds", "error"]
    return pd.DataFrame(report.to_dict()["tables"])[names].set_index("table").round(1)


half = merge_once(spark, config, until=middle)
as_table(half)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What has landed since, and how do I read it without waiting?
# MAGIC
# MAGIC `live` is the Delta table with all that has landed since its last merge, reconciled by the merge's own rules. It writes nothing. Here the Delta table is at the manifest in the middle, and `live` at the newest.

# COMMAND ----------

orders = next(name for name in as_of(spark, config) if name.endswith(".orders"))
now = live(spark, config, orders)
by_status = pd.DataFrame({
    f"Delta, at manifest {half.manifest}": as_of(spark, config)[orders].groupBy("status").count().toPandas().set_index("status")["count"],
    f"live, at manifest {newest.number}": now.groupBy("status").count().toPandas().set_index("status")["count"],
}).fillna(0).astype(int)
axes = by_status.plot(kind="bar", figsize=(10, 4), rot=0)
axes.set(title="Orders by status", xlabel="", ylabel="orders")
plt.show()
by_status

# COMMAND ----------

# MAGIC %md
# MAGIC ## How do I query live rows by SQL?
# MAGIC
# MAGIC `live` returns a frame, which stays at the manifest that was newest when it was built. `register` makes a temporary view of each table, here of one: `orders_live`. Each query of it looks for the newest manifest anew, and reads the Delta table with what has landed since. `_deltatide_status` says how current the views are. On Databricks, this needs the wheel on all machines of the cluster.

# COMMAND ----------

from merge import register

register(spark, config, [orders])
spark.sql("SELECT status, count(*) AS orders, max(_cdc.committed_at) AS newest FROM orders_live GROUP BY status ORDER BY status").toPandas()

# COMMAND ----------

spark.table("_deltatide_status").toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC Is that what a merge makes of it? We merge the rest, and compare with the frame of `live`. Both differences are empty.

# COMMAND ----------

rest = merge_once(spark, config)
as_table(rest)

# COMMAND ----------

columns = [name for name in now.columns if name != "_cdc"]
merged = as_of(spark, config)[orders]
{
    "only in live": now.select(columns).exceptAll(merged.select(columns)).count(),
    "only in Delta": merged.select(columns).exceptAll(now.select(columns)).count(),
}

# COMMAND ----------

# MAGIC %md
# MAGIC A view need not be registered again: its next query begins with the merged rows.

# COMMAND ----------

view = spark.table("orders_live").select(columns)
{
    "only in the view": view.exceptAll(merged.select(columns)).count(),
    "only in Delta": merged.select(columns).exceptAll(view).count(),
}

# COMMAND ----------

# MAGIC %md
# MAGIC If the agent still captures, newer changes have landed meanwhile, and the comparisons show those.
# MAGIC
# MAGIC ## What happens if a merge runs twice?
# MAGIC
# MAGIC Nothing. Each row and each event has a position in the source's history, and a row is replaced only by an event with a greater one. So a merge that was killed is simply run again. Here nothing has landed since, so no table is merged, and no cut is recorded.

# COMMAND ----------

again = merge_once(spark, config)
{"up to manifest": again.manifest, "events": sum(table.rows for table in again.tables), "cut recorded": again.recorded}

# COMMAND ----------

# MAGIC %md
# MAGIC Each merge that got further has recorded a cut: the versions that belong together. An exact one is the source at one position. One that is not is the source at no moment: for example, an update did not carry a long text, so the row waited for a dump of it.

# COMMAND ----------

cuts(spark, config).select("manifest", "position", "source_committed_at", "merged_at", "exact").toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Why is this row as it is?
# MAGIC
# MAGIC `explain` lists every landed event of a row, wherever it landed, with a verdict: which one won, and which others it overruled (`by` is the position of the one that did). We take an order that was changed often. merge/README.md lists the verdicts.

# COMMAND ----------

from merge.reading.change_source import DeltatideSource

spark.dataSource.register(DeltatideSource)
log = spark.read.format("deltatide").options(config=str(file.absolute()), table=orders).load()
key = log.where("id IS NOT NULL").groupBy("id").count().orderBy("count", "id", ascending=False).first()["id"]
events = explain(spark, config, orders, str(key))
events.select("row.id", "row.status", "row.total", "op", "lsn", "seq", "manifest", "verdict", "by").toPandas()

# COMMAND ----------

merged.where(f"id = {key}").select("id", "status", "total", "_cdc.op", "_cdc.lsn", "_cdc.seq").toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clean up
# MAGIC
# MAGIC The demo's next run empties its folder. Elsewhere, remove the trial: drop the schema `deltatide_...` (or the folder `lake_...`) and delete `trial_....toml`. Then run `deltatide maintain -c shop.toml --forget LAKE` with the lake's name (`catalog.schema`, or its url), or the landing zone keeps files for it: `deltatide status` lists the lakes that it knows.
