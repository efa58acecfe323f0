"""A user's influence on which capture delivers which tables: rebalance, move, drain.

A feed's own `sharing` divides its key space. This module looks at all changefeeds together: what a capture
has of each, and which captures are drained. A drain is stored with the id of the capture's process, so that
it ends when that process has been restarted, whichever capture is the owner then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.control.metadata import Delete, FeedId, Put
from tidegate.errors import Retryable
from tidegate.etcd.election import drained_prefix
from tidegate.log import event
from tidegate.mounter.table_version import TableVersion
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.new_feed import Refused, tables_at
from tidegate.server.changefeeds.planned_moves import PlannedMoves, planned_moves
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed

LOG: Final = logging.getLogger(__name__)

DRAINED_S: Final = 86_400.0
"""How long a capture without a session stays drained, because its process may only have lost its session."""
COUNTED_S: Final = 1.0
"""How long counts of changefeeds by capture are reused, because each feed asks for them."""


class Placement:
    """The placement of all feeds of a node."""

    def __init__(self, node: Node, feeds: Feeds) -> None:
        self.node, self._feeds = node, feeds
        self._counted_at = float("-inf")
        self._counted = Counter[str]()
        self._gone_at: dict[str, float] = {}
        """Drained captures without a session, each with the time when this owner first noticed it."""

    def burdens(self) -> Counter[str]:
        """The number of changefeeds that each capture delivers for; at most a second old."""
        now = self.node.clock.monotonic()
        if now - self._counted_at >= COUNTED_S:
            self._counted_at = now
            running = (feed.replication.peers.running for feed in self._feeds.values())
            self._counted = Counter(peer.capture for peers in running for peer in peers)
        return self._counted

    def tables_of(self, capture: str) -> int:
        """The number of tables that a capture delivers, over all changefeeds."""
        peers = ((feed, feed.replication.peers.get(capture)) for feed in self._feeds.values())
        return sum(len(feed.replication.shares.tables_of(peer)) for feed, peer in peers if peer is not None)

    def left_on(self, capture: str) -> int:
        """The number of tables that a capture delivers or may deliver; 0: stopping it delays nothing."""
        running = (feed.replication.shares for feed in self._feeds.values() if feed.record.life.runs)
        return sum(shares.left_on(capture) for shares in running)

    async def rebalance(self, feed: FeedId, *, dry_run: bool) -> PlannedMoves:
        """Divide a changefeed's key space in the best possible way. `dry_run`: only show that."""
        async with self._feeds.in_turn(feed) as found:
            shares = found.replication.shares
            if not shares.may_be_shared:
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    f"[CDC:ErrChangefeedUpdateRefused]{feed} is not shared by captures",
                    why="the server runs without --etcd, or its sink takes one writer at a time",
                    fix="start the captures with --etcd, and use a sink that takes several writers",
                )
            # During an initial load one capture has all ranges.
            plan = shares.sharing.plan(shared=not found.record.loading)
            planned = planned_moves(found, plan)
            if not dry_run:
                shares.sharing.ask()
            return planned

    async def move(self, feed: FeedId, tables: Sequence[str], capture: str) -> PlannedMoves:
        """Let a capture deliver some tables, with all tables that share a span with them.

        `tables`: as SCHEMA.TABLE, or ids of tables or partitions. Raises Refused.
        """
        async with self._feeds.in_turn(feed) as found:
            self._check_movable(found, capture)
            good, _ = await tables_at(self.node.pd, found.record.config, found.replication.checkpoint)
            ids, sharing = _ids_of(tables, good), found.replication.shares.sharing
            try:
                plan = sharing.handed(ids, capture)
            except (KeyError, ValueError) as error:
                why = (
                    f"the changefeed does not deliver table {error.args[0]}"
                    if isinstance(error, KeyError)
                    else f"{error}: `tidegate changefeed rebalance` joins ranges"
                )
                raise _not_moved(feed, why) from error
            planned = planned_moves(found, plan)
            if plan.moves:
                sharing.hand(ids, capture)
            return planned

    def _check_movable(self, feed: Feed, capture: str) -> None:
        """Raises Refused if the changefeed's tables cannot be moved to the capture now."""
        replication = feed.replication
        if not replication.shares.may_be_shared:
            why = "the server runs without --etcd, or the changefeed's sink takes one writer at a time"
        elif feed.record.loading:
            why = "one capture makes the initial load; try again when it is durable"
        elif not replication.peers.running or replication.waiting_for:
            why = f"the changefeed does not deliver now: {replication.waiting_for or feed.record.life.state}"
        elif capture not in replication.shares.sharing.captures.able():
            why = f"capture {capture} is drained, or does not answer, or has just failed or joined"
        else:
            return
        raise _not_moved(feed.id, why)

    async def drain(self, capture: str, *, again: bool = False) -> int:
        """Give a capture's ranges to others, and no more to it; returns how many tables it still has.

        `again`: end the drain, as a restart of the capture's process does, too.
        """
        node, key = self.node, drained_prefix(self.node.cluster) + capture
        if again:
            await node.write(Delete(key))
            # Only after the write, because the next owner reads the drain from the store.
            node.drained.discard(capture)
        elif capture not in node.drained:
            # Stored first: a drain that only this owner knew would end with its term.
            await node.write(Put(key, node.ids()[capture].encode()))
            node.drained.add(capture)
            event(LOG, logging.INFO, "capture is drained", capture=capture)
        return self.left_on(capture)

    async def read_drained(self) -> None:
        """Read which captures are drained. A restarted capture is not drained any more.

        Neither is one that has been gone for `DRAINED_S`, because its data folder may be lost, and its key
        would stay for ever. Removing the key is safe: it fences nothing, and only says who gets no ranges.
        """
        node, front, now = self.node, drained_prefix(self.node.cluster), self.node.clock.monotonic()
        ids = node.ids()
        for kv in await node.under(front):
            name, process = kv.key.removeprefix(front), kv.value.decode()
            if name in ids:
                self._gone_at.pop(name, None)
            gone_for_s = 0.0 if name in ids else now - self._gone_at.setdefault(name, now)
            # Another process under that name: the restart for which the capture was drained.
            if ids.get(name, process) != process or gone_for_s > DRAINED_S:
                await node.write(Delete(kv.key))
                node.drained.discard(name)
                self._gone_at.pop(name, None)
            else:
                node.drained.add(name)

    async def end_drains(self) -> None:
        """Let a drained capture that has restarted get ranges again."""
        if self.node.drained:
            try:
                await self.read_drained()
            except Retryable as error:
                event(LOG, logging.WARNING, "drained captures not read", error=str(error))


def _not_moved(feed: FeedId, why: str) -> Refused:
    return Refused(
        "CDC:ErrChangefeedUpdateRefused",
        f"[CDC:ErrChangefeedUpdateRefused]the tables of {feed} cannot be moved",
        why=why,
        fix="see `tidegate capture list` and `tidegate changefeed query`, which show who delivers what",
    )


def _ids_of(wanted: Sequence[str], tables: Iterable[TableVersion]) -> set[int]:
    """The physical ids of tables given by name or id. Raises Refused."""
    by_name: dict[str, tuple[int, ...]] = {}
    for table in tables:
        by_name[f"{table.schema}.{table.table}".lower()] = by_name[str(table.id)] = table.physical_ids
        by_name |= {str(one): (one,) for one in table.physical_ids}
    found: set[int] = set()
    for name in wanted:
        if (ids := by_name.get(name.lower())) is None:
            raise Refused(
                "CDC:ErrTableIneligible",
                f"[CDC:ErrTableIneligible]the changefeed has no table '{name[:200]}'",
                fix="write SCHEMA.TABLE, or the id of a table or partition",
            )
        found.update(ids)
    return found
