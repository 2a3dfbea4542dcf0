# Databricks notebook source
# MAGIC %md
# MAGIC # Deltatide: a first look
# MAGIC
# MAGIC The cuts of a lake: each one names a version of every Delta table, all of one position of the source.

# COMMAND ----------

from connector.config import load
from merge import as_of, cuts

config = load(dbutils.widgets.get("config"))  # noqa: F821
newest_first = cuts(spark, config).orderBy("manifest", ascending=False)  # noqa: F821
display(newest_first.select("manifest", "position", "source_committed_at", "merged_at", "exact"))  # noqa: F821

# COMMAND ----------

# MAGIC %md
# MAGIC All tables as of the newest exact cut.

# COMMAND ----------

cut = newest_first.where("exact").first()
tables = as_of(spark, config, cut.manifest)  # noqa: F821
display([(name, cut.tables[name].version, table.count()) for name, table in sorted(tables.items())])  # noqa: F821
