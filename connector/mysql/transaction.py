"""The transaction that is being received, as the log reader's buffer keeps it. Pure.

Invariant: `is_ours` only when all the tables in it are our watermark, and nothing else is in it: no other
statement, no second transaction, no XA. In doubt it is somebody else's, which every server needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from connector.mysql.capturing import WATERMARK, Mapped
from connector.mysql.events import Begin
from connector.schema import TableName


@dataclass
class OpenTransaction:
    """Its events begin at `start`; `carried` were taken before.

    `begins`: its begin; several in a file beyond 4 GiB. `landed`: before a failover, so it is passed over.
    `ended`: its end has come, but its position can't be told before the next file begins (see the buffer).
    `is_ours`: see the module; None while it has no tables. `tables`: the captured ones whose layouts came,
    `mapped`: whether any table's did.
    """

    lsn: int
    begins: list[Begin]
    start: int
    is_ours: bool | None = None
    landed: bool = False
    carried: bool = False
    begun: bool = False
    ended: bool = False
    mapped: bool = False
    tables: set[TableName] = field(default_factory=set)

    def touch(self, mapped: Mapped) -> None:
        """Note a table whose rows may follow."""
        self.mapped = True
        if mapped.schema is not None:
            self.tables.add(mapped.table)
        if self.is_ours is not False:
            self.is_ours = mapped.schema is None and mapped.table == WATERMARK

    def begin_again(self, begin: Begin, *, landed: bool) -> None:
        """Go on with the next transaction as if it was part of this one."""
        self.ended, self.begun, self.landed, self.is_ours = False, False, landed, False
        self.begins.append(begin)
