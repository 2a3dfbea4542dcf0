"""The capture agent: reads a database's log and tables, and lands what it reads as Parquet and manifests."""

__version__ = "0.1.0"
