"""Describes for users what a changefeed's checkpoint waits for.

The outermost reason is shown: the changefeed does not run, its processors start, its initial load is under
way, its owner waits for a DDL or a layout, or the slowest capture waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.control.ddl_log import KnownDdl
from tidegate.control.gc import History
from tidegate.control.owner import Owner
from tidegate.model.timestamp import MAX
from tidegate.server.owner.peers import Peer, Peers

QUERY_SHOWN: Final = 80
"""The number of characters of a DDL that are shown."""


def words_of_owner(owner: Owner, peers: Peers, wanted_partitions: int, partitions: int) -> str:
    """Describe what an owner waits for while its incarnation runs."""
    if words := words_of_disagreement(owner.agreement.disagreement):
        return words
    if owner.repartition_ts:
        return (
            f"{wanted_partitions} partitions instead of {partitions}: all rows up to ts "
            f"{owner.repartition_ts} first"
        )
    batch = owner.barrier.next
    if batch is not None and batch.events:
        return f"DDL at {batch.finished_ts}: {batch.events[0].query[:QUERY_SHOWN]}"
    if owner.ranges.durable >= owner.barrier.bound:
        return "resolved ts of the DDL span"
    running, slowest = peers.running, owner.ranges.slowest
    return words_of_first([peer for peer in running if peer.capture == slowest], among=len(running))


def words_of_first(peers: Sequence[Peer], among: int) -> str:
    """The first stated reason among the captures; with the capture's name if there are several."""
    for peer in peers:
        if peer.status.waits:
            return f"capture {peer.capture}: {peer.status.waits}" if among > 1 else peer.status.waits
    return ""


def words_of_disagreement(disagreement: tuple[str, KnownDdl] | None) -> str:
    """Which capture knows other DDL than the owner; empty: none."""
    if disagreement is None:
        return ""
    capture, known = disagreement
    return f"agreement on DDL: capture {capture} knows other DDL up to ts {known.upto} than the owner"


def words_of_release(state: str, needed: int, gc_ttl_s: int) -> str:
    """Says that nothing is held for a changefeed any more, because it was stopped longer than gc-ttl."""
    return (
        f"a resume: it was {state} for longer than gc-ttl ({gc_ttl_s} s), so "
        "nothing is held for it any more; it continues if upstream or the event store still has what "
        f"came after ts {needed}"
    )


def words_of_history(needed: int, history: History) -> str:
    """Says if a stopped changefeed may lack the history to continue; empty: it has what it needs."""
    if needed < history.safe_point < MAX:
        return (
            f"a resume: upstream's GC safepoint {history.safe_point} has passed ts {needed}, from where it "
            "reads; it continues if the event store still has the changes between them"
        )
    return ""
