"""One table's changes in the landing zone, for readers without a merge. No Spark."""
