"""PostgreSQL as a source: the only place that imports its driver."""
