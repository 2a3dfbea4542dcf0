"""The fidelity matrix: literals of every source type, as data, and how they must land.

`postgres.py` and `mysql.py` hold the literals. Tests compare log, dump, merged Delta table and the source's
own text; `page.py` generates docs/types.md from the same lists.
"""
