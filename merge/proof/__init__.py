"""Proof that the lake is right: verify it, explain a row, rebuild a table from the landing zone."""
