"""The definitions of all tables at once, by a few queries; only those that differ are read in full."""
