"""Reads PostgreSQL's log: replication stream, bulk reading, transactions."""
