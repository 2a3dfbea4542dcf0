"""Checksums of rows: one definition, in each database's SQL."""
