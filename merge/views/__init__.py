"""Materialized SQL views: queries over the tables of a cut, kept as Delta tables of the same cut."""
