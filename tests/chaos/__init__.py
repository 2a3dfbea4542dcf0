"""Reliability figures: agents, merges and upkeep on a real database and S3 server, amid faults at random.

Writers (`writers`) move money between two tables in transactions whose effects they remember, so the
state of every table after any cut is known. Agents and a merge (`crew`) are killed and paused, their database
connections are cut, their store fails (`tests.support.servers.faulty_s3`), while dumps come and go
(`operators`). Meanwhile every exact cut is compared with what it must hold (`cut_checker`), and every
manifest with the one before it (`manifest_line`). In the end, without faults, the lake must equal the source.
"""
