"""Reads the binary log: the stream, events, transactions, statements."""
