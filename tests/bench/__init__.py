"""`make bench`: Deltatide measured against the databases' own tools, in one run on the same server and data.

The reference and Deltatide take turns, and the better of two runs counts, because machines are shared. Linux
only: CPU and memory are read from /proc.
"""
