# Databricks notebook source
# MAGIC %md
# MAGIC # Views
# MAGIC
# MAGIC - How do I keep the result of a query up to date?
# MAGIC - Does a view fit the tables, and the other views?
# MAGIC - How did it develop?
# MAGIC - When is it refreshed, and what does that cost?
# MAGIC - What happens if it fails?
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

# COMMAND ----------

# MAGIC %md
# MAGIC ## How do I keep the result of a query up to date?
# MAGIC
# MAGIC With a section `[views.NAME]` and one SELECT. A table goes by its own name, and a view may read other views. Each merge refreshes the views after the tables.

# COMMAND ----------

views = """
[views.sales]
sql = '''
    SELECT orders.id, status, total, sum(quantity) AS pieces, sum(quantity * price) AS value
    FROM orders JOIN order_items ON order_items.order_id = orders.id GROUP BY ALL
'''
[views.sales_by_status]
sql = "SELECT status, count(*) AS orders, sum(pieces) AS pieces, sum(value) AS value FROM sales GROUP BY status"
"""
config = trial(views)
list(config.views)

# COMMAND ----------

from connector.landing.manifest_store import newest_manifest
from connector.store.factory import open_store
from merge import as_of, cuts, merge_once, refresh_views, view_states

newest = newest_manifest(open_store(config.landing, config.source.name)).number
reports = [merge_once(spark, config, until=until) for until in (max(1, newest // 3), newest)]
pd.DataFrame(view for report in reports for view in report.to_dict()["views"])[["table", "manifest", "version", "refreshed", "rows", "seconds", "error"]].round(1)

# COMMAND ----------

# MAGIC %md
# MAGIC `deltatide views` shows the same: what each view reads, its state, and as of which manifest.

# COMMAND ----------

pd.DataFrame(view_states(spark, config))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Does a view fit the tables, and the other views?
# MAGIC
# MAGIC A view is computed from the very versions of the tables that the cut names, and recorded with it. So `as_of` returns both of one state. We compute the query again over the tables of that cut: the differences are empty.

# COMMAND ----------

tables = as_of(spark, config)
for name, frame in tables.items():
    frame.createOrReplaceTempView(name.partition(".")[2] if not name.startswith("views.") else f"view_{name.partition('.')[2]}")
again = spark.sql(config.views["sales"].query())
kept = spark.table("view_sales").select(again.columns)
{"only in the view": kept.exceptAll(again).count(), "only in the query": again.exceptAll(kept).count()}

# COMMAND ----------

# MAGIC %md
# MAGIC ## How did it develop?
# MAGIC
# MAGIC Each cut names a version of each view. So a view has a past, too.

# COMMAND ----------

past = {}
for cut in cuts(spark, config).orderBy("manifest").collect():
    frame = as_of(spark, config, cut.manifest, tables=["views.sales_by_status"])["views.sales_by_status"]
    past[f"manifest {cut.manifest}"] = frame.toPandas().set_index("status")["value"].astype(float)
axes = pd.DataFrame(past).fillna(0).plot(kind="bar", figsize=(10, 4), rot=0)
axes.set(title="Value of orders by status, at two cuts", xlabel="", ylabel="value")
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## When is it refreshed, and what does that cost?
# MAGIC
# MAGIC With each merge, but only if something that it reads has changed. A refresh recomputes all rows and replaces them in one commit; with `incremental = true`, it recomputes only those that may have changed. The plot shows where the time of the merges went.

# COMMAND ----------

spent = pd.DataFrame(
    {"tables": max(t.seconds for t in report.tables), "views": sum(v.seconds for v in report.views), "all": report.seconds}
    for report in reports
)
spent = spent.assign(other=(spent["all"] - spent["tables"] - spent["views"]).clip(lower=0)).drop(columns="all")
spent.index = [f"merge to {report.manifest}" for report in reports]
axes = spent.plot(kind="barh", stacked=True, figsize=(10, 2.5))
axes.invert_yaxis()
axes.set(title="What a merge took", xlabel="seconds (tables: the slowest one, since they run at the same time)")
plt.show()

# COMMAND ----------

idle = merge_once(spark, config)
{"merged to": idle.manifest, "refreshed": [str(view.table) for view in idle.views if view.refreshed]}

# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens if it fails?
# MAGIC
# MAGIC A view that fails keeps its last rows, and the others go on. The merge ends with exit status 1, and the cut does not claim the view. We break one on purpose: a status becomes a number.

# COMMAND ----------

import logging

logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # or Spark prints the failed query at length
broken = trial(views.replace("SELECT status, count(*)", "SELECT CAST(status AS INT) AS status, count(*)"))
refresh_views(spark, broken)
pd.DataFrame(view_states(spark, broken))

# COMMAND ----------

sorted(as_of(spark, broken))

# COMMAND ----------

# MAGIC %md
# MAGIC Once it is fixed, the next merge refreshes it; or do so at once:

# COMMAND ----------

config = trial(views)
refresh_views(spark, config)
pd.DataFrame(view_states(spark, config))[["name", "state", "manifest", "rows", "error"]]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clean up
# MAGIC
# MAGIC The demo's next run empties its folder. Elsewhere, remove the trial: drop the schema `deltatide_...` (or the folder `lake_...`) and delete `trial_....toml`. Then run `deltatide maintain -c shop.toml --forget LAKE` with the lake's name (`catalog.schema`, or its url), or the landing zone keeps files for it: `deltatide status` lists the lakes that it knows.
