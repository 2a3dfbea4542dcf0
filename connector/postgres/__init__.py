"""PostgreSQL as a source: the only package that imports its driver."""
