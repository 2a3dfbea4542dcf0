"""The lake's Delta tables: where they are, their commits, cuts and frontiers, and their upkeep."""
