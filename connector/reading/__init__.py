"""The landing zone's changes of one table, for whoever reads them without a merge. No Spark."""
