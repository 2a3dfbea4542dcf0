"""The capture agent: reads a database's log and its tables, lands what it sees as Parquet and manifests."""

__version__ = "0.1.0"
