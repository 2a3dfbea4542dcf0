# Databricks notebook source
# MAGIC %md
# MAGIC # History and time travel
# MAGIC
# MAGIC - What did all tables look like at some time?
# MAGIC - What was this row before, and until when?
# MAGIC - How did the table change over time?
# MAGIC - How long do orders stay in a status?
# MAGIC - Who changed what, and what was deleted?
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
# MAGIC
# MAGIC Two shapes are added to `orders`: `history` keeps each version of each row (SCD type 2), `changes` each change, once. They are Delta tables beside `orders`, merged with it.

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

from connector.landing.manifest_store import newest_manifest
from connector.store.factory import open_store

newest = newest_manifest(open_store(config.landing, config.source.name))
table = next(str(name) for name in newest.tables if name.name == "orders")
config = trial(f"""
[tables."{table}"]
shapes = ["current", "history", "changes"]
""")
config.tables

# COMMAND ----------

# MAGIC %md
# MAGIC We merge in two steps, so that there are two cuts to travel between. Histories do not depend on when merges ran: they have every version in any case.

# COMMAND ----------

from merge import as_of, cuts, merge_once

reports = [merge_once(spark, config, until=max(1, newest.number // 3)), merge_once(spark, config)]
pd.DataFrame(table | {"manifest": report.manifest} for report in reports for table in report.to_dict()["tables"])[["manifest", "table", "rows", "inserted", "updated", "deleted", "error"]]

# COMMAND ----------

# MAGIC %md
# MAGIC ## What did all tables look like at some time?
# MAGIC
# MAGIC A cut names the versions of all tables that belong together. `as_of` takes a manifest, a position or a time of the source (`committed_at="2026-11-21T10:00:00Z"`: the last exact cut at or before it), and returns all tables of that cut. Plain `VERSION AS OF` on each table can't promise that they fit each other.

# COMMAND ----------

found = cuts(spark, config).select("manifest", "position", "source_committed_at", "exact").orderBy("manifest").toPandas()
found

# COMMAND ----------

rows = {}
for manifest in found["manifest"]:
    rows[f"manifest {manifest}"] = {name: frame.count() for name, frame in as_of(spark, config, int(manifest)).items()}
axes = pd.DataFrame(rows).sort_index().plot(kind="barh", figsize=(10, 4))
axes.invert_yaxis()
axes.set(title="Rows of all tables, at two cuts", xlabel="rows")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC In SQL: `deltatide query -c FILE --at 2026-11-21T10:00:00Z 'SELECT count(*) FROM orders'`.
# MAGIC
# MAGIC ## What was this row before, and until when?
# MAGIC
# MAGIC Each version has two ends, `_valid_from` and `_valid_to`, with the position and the commit time at the source. `_valid_to` is null while the version is the current one. Here is the order with the most versions.

# COMMAND ----------

tables = as_of(spark, config)
tables[f"{table}_history"].createOrReplaceTempView("history")
tables[f"{table}_changes"].createOrReplaceTempView("changes")
key = spark.sql("SELECT id FROM history GROUP BY id ORDER BY count(*) DESC, id LIMIT 1").first()["id"]
versions = spark.sql(f"""
    SELECT id, status, total, _valid_from.committed_at AS valid_from, _valid_to.committed_at AS valid_to, _cdc.op, _valid_from.seen
    FROM history WHERE id = {key} ORDER BY _valid_from.epoch, _valid_from.lsn, _valid_from.seq
""").toPandas()
versions

# COMMAND ----------

end = spark.sql("SELECT max(_valid_from.committed_at) AS at FROM history").toPandas()["at"][0]
axes = plt.figure(figsize=(10, 3)).gca()
for number, (status, spans) in enumerate(versions.groupby("status")):
    starts, ends = spans["valid_from"], spans["valid_to"].fillna(end)
    axes.barh([status] * len(spans), ends - starts, left=starts, color=f"C{number}", height=0.5)
axes.set(title=f"Order {key}: its status over time", xlabel="commit time at the source (UTC)")
axes.grid(axis="y", visible=False)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC `seen` is false where the log did not show the beginning: the row was there before, and a dump found it.
# MAGIC
# MAGIC ## How did the table change over time?
# MAGIC
# MAGIC The versions that are valid at a time are the table at that time. So every moment can be counted, not just those of cuts, from the first dump on.

# COMMAND ----------

over_time = spark.sql("""
    WITH bounds AS (SELECT min(_valid_from.committed_at) FILTER (WHERE _cdc.op = 'dump') AS low, max(_valid_from.committed_at) AS high FROM history),
    moments AS (SELECT low + (high - low) * n / 60 AS at FROM bounds, range(61) AS numbers(n))
    SELECT at, status, count(*) AS orders FROM moments JOIN history
    ON _valid_from.committed_at <= at AND (_valid_to IS NULL OR _valid_to.committed_at > at)
    GROUP BY at, status
""").toPandas().pivot(index="at", columns="status", values="orders").fillna(0)
axes = plt.figure(figsize=(10, 4)).gca()
axes.stackplot(over_time.index, over_time.T, labels=over_time.columns)
axes.set(title="Orders by status over time", xlabel="commit time at the source (UTC)", ylabel="orders")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC Does that agree with a cut? The open versions are the rows of `orders`: both differences are empty.

# COMMAND ----------

columns = [name for name in tables[table].columns if name != "_cdc"]
opened = spark.table("history").where("_valid_to IS NULL").select(columns)
current = tables[table].select(columns)
{"only in the history": opened.exceptAll(current).count(), "only in the table": current.exceptAll(opened).count()}

# COMMAND ----------

# MAGIC %md
# MAGIC ## How long do orders stay in a status?
# MAGIC
# MAGIC An update may leave the status as it is, so successive versions of one status are one stay. Only stays whose beginning was seen count, and only those that have ended.

# COMMAND ----------

stays = spark.sql("""
    WITH numbered AS (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY _valid_from.epoch, _valid_from.lsn, _valid_from.seq) AS number FROM history
    ), marked AS (
        SELECT *, coalesce(status <> lag(status) OVER (PARTITION BY id ORDER BY number), true) AS begins FROM numbered
    ), stays AS (
        SELECT *, sum(CAST(begins AS INT)) OVER (PARTITION BY id ORDER BY number) AS stay FROM marked
    )
    SELECT status, (unix_millis(max(_valid_to.committed_at)) - unix_millis(min(_valid_from.committed_at))) / 1000 AS seconds
    FROM stays GROUP BY id, stay, status
    HAVING min_by(_valid_from.seen, number) AND every(_valid_to IS NOT NULL)
""").toPandas()
groups = {status: group["seconds"] for status, group in stays.groupby("status")}
axes = plt.figure(figsize=(10, 3)).gca()
axes.boxplot(list(groups.values()), orientation="horizontal", tick_labels=list(groups), showfliers=False, **{f"{part}props": {"color": "C0", "linewidth": 1.5} for part in ("box", "whisker", "cap")}, medianprops={"color": "C1", "linewidth": 2.5})
axes.set(title="How long an order stays in a status", xlabel="seconds (line: median, box: half of all)")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who changed what, and what was deleted?
# MAGIC
# MAGIC `changes` has each landed change of the log once, with its transaction (`txid`). Deletes have only the key; what the row was, its last version in `history` says. With `before_images = true`, `changes` has the former row as well.

# COMMAND ----------

spark.sql("""
    SELECT _cdc.txid, min(_cdc.committed_at) AS committed_at, count(*) AS changes,
           count_if(_cdc.op = 'insert') AS inserts, count_if(_cdc.op = 'update') AS updates, count_if(_cdc.op = 'delete') AS deletes
    FROM changes GROUP BY ALL ORDER BY changes DESC LIMIT 5
""").toPandas()

# COMMAND ----------

spark.sql("""
    SELECT changes.id, changes._cdc.txid AS deleted_by, changes._cdc.committed_at AS deleted_at, history.status, history.total
    FROM changes JOIN history ON history.id = changes.id AND history._valid_to.epoch = changes._cdc.epoch
     AND history._valid_to.lsn = changes._cdc.lsn AND history._valid_to.seq = changes._cdc.seq
    WHERE changes._cdc.op = 'delete' ORDER BY deleted_at DESC, id LIMIT 5
""").toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clean up
# MAGIC
# MAGIC The demo's next run empties its folder. Elsewhere, remove the trial: drop the schema `deltatide_...` (or the folder `lake_...`) and delete `trial_....toml`. Then run `deltatide maintain -c shop.toml --forget LAKE` with the lake's name (`catalog.schema`, or its url), or the landing zone keeps files for it: `deltatide status` lists the lakes that it knows.
