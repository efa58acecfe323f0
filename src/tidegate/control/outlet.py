"""The outlet of an owner (`control.owner`): may it give its side of the sink an operation?

    closed --sink open--> free --operation given--> busy --durable--> free

Only one operation is under way at any time. Whatever happens to the sink, the next journal says what was
sent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tidegate.control.transitions import Row, Transitions


class Outlet(StrEnum):
    """The states: whether the owner may give its side of the sink an operation."""

    CLOSED = "closed"
    FREE = "free"
    BUSY = "busy"
    """One operation is under way; there is never a second one."""


class OnOutlet(StrEnum):
    """The events."""

    OPENED = "the sink is open"
    SENT = "an operation is given to it"
    DONE = "the operation is durable"
    LOST = "the sink failed"
    GRANTED = "a capture begins another incarnation"


_ANY: Final = tuple(Outlet)

OUTLET: Final = Transitions(
    Row((Outlet.CLOSED, Outlet.FREE), OnOutlet.OPENED, Outlet.FREE, effect="its journal says what was sent"),
    Row((Outlet.BUSY,), OnOutlet.OPENED, Outlet.BUSY, effect="its journal says what was sent"),
    Row(
        (Outlet.FREE,),
        OnOutlet.SENT,
        Outlet.BUSY,
        "all granted ranges run, no load holds the barrier, and no capture knows other DDL",
        "DDL, then a change of the number of partitions, then Resolved: the first that is due",
    ),
    Row(
        (Outlet.BUSY, Outlet.FREE),
        OnOutlet.DONE,
        Outlet.FREE,
        "not after a change of the number of partitions",
    ),
    Row((Outlet.CLOSED,), OnOutlet.DONE, Outlet.CLOSED, effect="a call that outlived its sink opens nothing"),
    Row(_ANY, OnOutlet.LOST, Outlet.CLOSED, effect="whether the operation happened, the next journal says"),
    Row(_ANY, OnOutlet.GRANTED, Outlet.CLOSED, effect="nothing leaves until the sink is opened again"),
)
