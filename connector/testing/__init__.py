"""A database and a store in memory, for tests."""
