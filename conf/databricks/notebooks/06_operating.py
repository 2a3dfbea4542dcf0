# Databricks notebook source
# MAGIC %md
# MAGIC # Operating
# MAGIC
# MAGIC - Does anything need me?
# MAGIC - How far behind are landing zone and lake?
# MAGIC - How much is landed, and how large is it all?
# MAGIC - Do the cuts keep up, and which can still be read?
# MAGIC - What would upkeep do?
# MAGIC
# MAGIC It reads the landing zone and the lake, and writes nothing. A dashboard and alerts are in `conf/grafana` and `conf/prometheus`; this notebook is for a closer look, and for those who see only the lake.
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
pd.set_option("display.max_colwidth", 200)

# COMMAND ----------

from connector.landing.manifest_store import ManifestReader, newest_manifest, read_retained
from connector.store.factory import open_store

store = open_store(config.landing, config.source.name)
newest = newest_manifest(store)
retained = read_retained(store)
first = max(retained.first if retained else 1, newest.number - 499)
reader = ManifestReader(store)
manifests = [reader.read(number) for number in range(first, newest.number + 1)]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Does anything need me?
# MAGIC
# MAGIC What an operator would be told: quarantined tables, tables that a merge failed for, gaps of the log, and rows that differed from the source when they were last verified. Nothing in this table is good news.

# COMMAND ----------

from connector.landing.verified import read_verified
from merge import cuts

found = [{"what": "quarantined", "table": str(name), "why": state.reason} for name, state in newest.tables.items() if state.state == "quarantined"]
found += [{"what": "dump " + dump.state, "table": str(dump.table), "why": dump.error} for dump in newest.dumps if dump.state == "failed"]
found += [{"what": f"gap before epoch {gap.epoch}", "table": "all", "why": gap.reason} for gap in newest.gaps]
last = cuts(spark, config).first()
found += [{"what": "merge failed", "table": name, "why": state.error} for name, state in (last.tables if last else {}).items() if state.error]
for record in read_verified(store):
    found += [{"what": "differs from the source", "table": str(name), "why": f"{keys} keys"} for name, keys in record.differing().items()]
pd.DataFrame(found, columns=["what", "table", "why"])

# COMMAND ----------

from connector.landing.lease import read_lease

agent = read_lease(store)
pd.Series({
    "agent": f"{agent.holder} on {agent.host}" if agent else None,
    "active": bool(agent and agent.active),
    "renewed until": agent.until if agent else None,
    "newest manifest": newest.number,
    "committed": newest.committed_at,
    "exact": newest.exact,
    "last cut": last.manifest if last else None,
    "manifests not merged": newest.number - (last.manifest if last else 0),
}, name="now").to_frame()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How far behind is the landing zone?
# MAGIC
# MAGIC For each manifest with changes: the time from the commit of its last transaction at the source to its own. The oldest change in it waited longer, by `landing.flush_seconds` at most while the agent keeps up. Clocks of the database and the agent's host count, so a few milliseconds may be theirs.

# COMMAND ----------

landed = pd.DataFrame(
    {
        "committed": m.committed_at,
        "lag": (m.committed_at - m.source_committed_at).total_seconds(),
        "log events": sum(f.rows for f in m.files if f.kind == "log"),
        "MiB": sum(f.bytes for f in m.files) / 2**20,
    }
    for m in manifests
    if m.source_committed_at and any(f.kind == "log" for f in m.files)
).set_index("committed")
figure, (above, below) = plt.subplots(2, 1, figsize=(10, 5), sharex=True)
above.plot(landed.index, landed["lag"], marker=".", color="C0")
above.set(title="From commit at the source to the manifest", ylabel="seconds", ylim=(0, None))
below.plot(landed.index, landed["log events"], marker=".", color="C1")
below.set(title="Log events by manifest", ylabel="events", ylim=(0, None), xlabel="manifest committed (UTC)")
plt.show()
landed["lag"].describe(percentiles=[0.5, 0.95, 0.99]).round(3).to_frame()

# COMMAND ----------

# MAGIC %md
# MAGIC ## And how far behind is the lake?
# MAGIC
# MAGIC Two lines over time: up to which commit everything has landed, and up to which everything is merged. At any height, the distance from the first line to the second, from left to right, is how long the lake took for that commit.

# COMMAND ----------

recorded = cuts(spark, config).limit(500).selectExpr("manifest", "unix_millis(source_committed_at) AS source_committed_at", "unix_millis(merged_at) AS merged_at", "exact", "size(gone) = 0 AS readable").toPandas()
for name in ("source_committed_at", "merged_at"):
    recorded[name] = pd.to_datetime(recorded[name], unit="ms", utc=True)
positions = pd.Series({m.committed_at: m.source_committed_at for m in manifests if m.source_committed_at})
merged = recorded[recorded["manifest"] >= first].dropna().sort_values("merged_at")
axes = plt.figure(figsize=(10, 4)).gca()
axes.step(positions.index, positions, where="post", label="landed", color="C0")
axes.step(merged["merged_at"], merged["source_committed_at"], where="post", marker="o", label="merged", color="C1")
axes.set(title="Up to which commit everything is there", xlabel="time (UTC)", ylabel="commit time at the source")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How much is landed, and how large is it all?
# MAGIC
# MAGIC The landing zone has what was written; the lake has what is left of it. `deltatide maintain` joins the small files of both.

# COMMAND ----------

from merge.lake.target import targets_of

files = pd.DataFrame({"table": str(f.table), "landed files": 1, "landed rows": f.rows, "landed MiB": f.bytes / 2**20} for m in manifests for f in m.files)
sizes = files.groupby("table").sum()
for name, target in targets_of(config, newest.tables).items():
    if last and last.tables[str(name)].version is not None:
        detail = spark.sql(f"DESCRIBE DETAIL {target.name}").first()
        sizes.loc[str(name), ["Delta files", "Delta MiB"]] = [detail["numFiles"], detail["sizeInBytes"] / 2**20]
sizes.round(2)

# COMMAND ----------

axes = sizes[["landed MiB", "Delta MiB"]].plot(kind="barh", figsize=(10, 3.5))
axes.invert_yaxis()
axes.set(title="Size by table", xlabel="MiB", ylabel="")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Do the cuts keep up, and which can still be read?
# MAGIC
# MAGIC Each merge that got further records a cut. `gone` names tables whose version was given up as too old (`lake.retention_days`); such a cut can't be read anymore. A cut that is not exact is not the source at one moment: a dump was running, or a table waits for something.

# COMMAND ----------

recorded.head(10)

# COMMAND ----------

# MAGIC %md
# MAGIC How long the oldest change in each cut had waited since it landed. That is the time between merges and that of the merge itself; an idle source makes nothing wait.

# COMMAND ----------

landed_at = pd.Series({m.number: m.committed_at for m in manifests if m.files})
recorded = recorded.sort_values("manifest")
before = recorded["manifest"].shift(fill_value=first - 1)
new = [landed_at[(landed_at.index > low) & (landed_at.index <= high)] for low, high in zip(before, recorded["manifest"])]
recorded["waited"] = [(at - since.iloc[0]).total_seconds() if len(since) else None for at, since in zip(recorded["merged_at"], new)]
axes = plt.figure(figsize=(10, 3)).gca()
for exact, marker, label in ((True, "o", "exact cut"), (False, "x", "not exact")):
    points = recorded[recorded["exact"] == exact]
    axes.plot(points["merged_at"], points["waited"], marker, label=label, color="C0" if exact else "C1")
axes.margins(x=0.1, y=0.2)
axes.set(title="From landing to the cut, for the oldest change in it", xlabel="merged at (UTC)", ylabel="seconds", ylim=(0, None))
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would upkeep do?
# MAGIC
# MAGIC The same as `deltatide maintain --dry-run` says of the lake, and why. Nothing is changed.

# COMMAND ----------

from merge.lake.upkeep import upkeep

pd.DataFrame(
    ({"table": step.subject, "action": step.action, "reason": step.reason, "status": step.status} for step in upkeep(spark, config, dry_run=True)),
    columns=["table", "action", "reason", "status"],
)
