"""Columns and rows of a source table that its target has."""
