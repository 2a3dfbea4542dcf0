"""Runs the installed command with the waits of upkeep cut short: an hour and a day become parts of a minute.

So manifests are compacted and their original files removed while agents, merges and lakes are amid faults.
"""

from datetime import timedelta

from connector.cli import main
from connector.maintenance import compaction

MODULE = "tests.chaos.hurried"

AGE = timedelta(seconds=15)
GRACE = timedelta(seconds=60)
"""Longer than what a merge takes that planned to read the originals; one that was paused meanwhile fails, and
the next one reads what stands for them."""

if __name__ == "__main__":
    compaction.AGE, compaction.GRACE = AGE, GRACE
    main()
