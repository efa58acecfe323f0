"""The end of a removed changefeed's grants.

    the owner takes all ranges --> the sink fences every writer --> the grants are deleted

A grant says which capture may have writers at the sink. While one of them could still commit, the grant must
stay, because a later changefeed of the same name writes to the same place and fences the captures that its
grants name. Once the sink has fenced a writer, that writer commits nothing. To be accepted again it must
initialise itself and then prove its grant. The owner's capture has taken its ranges by then, so the proof
fails. It fails as well if the grant is deleted, or belongs to a later changefeed (`Grant.is_proven_by`). So
after the fence the grant is of no use any more. `docs/internals/grants.md` has the argument in full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidegate.control.grants import Grant, writers_of
from tidegate.errors import Fenced, TidegateError
from tidegate.log import event
from tidegate.model.span import Span
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.node import Node

LOG: Final = logging.getLogger(__name__)

ALL_KEYS: Final = Span(b"", b"")
FENCE_S: Final = 10.0
"""How long a removal waits for the sink's fence. After that the grants stay."""


async def fenced_for_good(node: Node, plan: FeedPlan) -> dict[str, Grant]:
    """Take all ranges of a changefeed that has ended, then fence its writers. Returns the grants, which are
    of no use any more; empty: there are none, or a writer may still write.

    The ranges are taken as for an incarnation on this capture, which nobody begins. So if the owner ends
    before the grants are deleted, the next one finds the names of all whom it has to fence.
    """
    feed = plan.feed
    if not await node.grants(feed):
        return {}
    await node.share_out(feed, plan.instance, node.token(), {node.capture: [ALL_KEYS]}, {node.capture: 1})
    # Read again, because the givers in the grants as stored now must be fenced.
    grants = await node.grants(feed)
    writers = writers_of(grants)

    def still_owner() -> None:
        held = node.disk.submit(node.metadata.get, node.owner_key).result()
        if held is None or held.mod_revision != node.owner_rev:
            raise Fenced("another control process owns this cluster's changefeeds now", where=node.owner_key)

    def fence() -> None:
        still_owner()  # an owner that wakes up long after must not fence the writers of a later changefeed
        plan.sink.fence(writers, still_owner)

    try:
        async with asyncio.timeout(FENCE_S):
            await asyncio.to_thread(fence)
    except (TidegateError, TimeoutError) as error:
        why = str(error) or f"the sink did not answer within {FENCE_S:.0f} s"
        event(LOG, logging.WARNING, "grants not deleted", changefeed=str(plan.feed), error=why)
        return {}
    return grants
