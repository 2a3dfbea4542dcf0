"""The dumps of a source: requested, planned chunk by chunk, read by workers, committed with the log."""
