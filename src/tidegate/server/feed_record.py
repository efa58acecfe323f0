"""A changefeed as it is stored: what it is, how far it is, and the life that a restart would find.

    info     what it is: sink, settings, target, layout of its topic, state and error
    status   how far it is: checkpoint, whether its initial load is durable, the settings it chose rows by

Every write of either goes through here. If a write of the info fails, memory takes on again what it had
before, so that what is shown is what a restart finds. The one exception is a full disk, and that is the
caller's choice (`become_if_there_is_room`). The stored checkpoint never goes back.

What follows from the stored checkpoint is here too: what must be held of upstream's history, and whether that
may be released.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Final

from tidegate.config.reading import config_from_json
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import Life, State
from tidegate.control.gc import History
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus, Put, feed_key
from tidegate.disk import DiskFull
from tidegate.errors import TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.log import event
from tidegate.model.key_range import KeyRange
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.feed_ddl import LOST
from tidegate.server.feed_plan import FeedPlan
from tidegate.server.node import Node
from tidegate.sink.reader.sink import SILENT_CODE

LOG: Final = logging.getLogger(__name__)

ALL_KEYS: Final = Span(b"", b"")


class FeedRecord:
    """Of one changefeed, on the node that owns it. One asyncio loop."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self._node, self.id, self.info = node, feed, info
        self.uri = parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self.filter = FeedFilter.of(self.config)
        self.captured = node.captured(self.config.tidegate.kv_mode)
        """What this capture has of the part of upstream that the changefeed follows."""
        self.life = Life.restored(info.state, info.error)
        if self.life.ended and not info.ended_ms:
            self.info = dataclasses.replace(info, ended_ms=node.now_ms())  # stored by an earlier version
        self.persisted = status.checkpoint_ts
        """Durable in the metadata store: where a restart begins; never above what is durable downstream."""
        self.resolved_ts = status.checkpoint_ts
        """Up to where all of upstream is known; stored with the next checkpoint."""
        self.loading = self.config.tidegate.initial_load and not status.loaded
        """Whether the rows there are at the checkpoint are still to be delivered, and nothing above it."""
        self.settings = status.settings
        """Of the last incarnation: those by which it chose what to send."""
        self._status_turn = asyncio.Lock()

    # --- info ----------------------------------------------------------------------------------------

    async def become(self, life: Life) -> None:
        """Take on a new life; state and error are stored when they changed.

        When they cannot be stored the feed keeps the life it had: what is shown is what a restart finds.
        """
        changed = (life.state, life.error) != (self.life.state, self.life.error)
        (before, known), self.life = (self.life, self.info), life
        if not changed:
            return
        ended = known.ended_ms or self._node.now_ms() if life.ended else 0
        self.info = info = dataclasses.replace(known, state=str(life.state), error=life.error, ended_ms=ended)
        try:
            await self._write_info(info)
        except TidegateError:
            if self.life is life and self.info is info:
                self.life, self.info = before, known
            raise
        if before.state is not life.state:
            event(LOG, logging.INFO, "changefeed state", changefeed=str(self.id), state=str(life.state))

    async def become_if_there_is_room(self, life: Life) -> None:
        """On a full disk the new state is shown, and not stored: a restart finds the one before."""
        before = self.life
        try:
            await self.become(life)
        except DiskFull:
            if self.life is before:
                self.life = life

    async def update(self, info: FeedInfo) -> None:
        """Take on other settings, durably; the feed must not run."""
        await self._write_info(info)
        self.info, self.uri = info, parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self.filter = FeedFilter.of(self.config)

    async def store_layout(self, repartition: int, partitions: int) -> None:
        """Store how many partitions are asked for (0: nothing), and to how many it was changed last.

        Raises DiskFull.
        """
        before = self.info
        self.info = info = dataclasses.replace(before, repartition=repartition, partitions=partitions)
        try:
            await self._write_info(info)
        except TidegateError:
            if self.info is info:
                self.info = before
            raise

    async def _write_info(self, info: FeedInfo) -> None:
        await self._node.write(Put(feed_key(self._node.cluster, self.id, "info"), info.to_bytes()))

    # --- status --------------------------------------------------------------------------------------

    async def store(self, ts: int, *, loaded: bool = False, settings: str = "") -> None:
        """Write the checkpoint durably, or the one that is stored if that is higher.

        `loaded`: the initial load is durable downstream. `settings`: those by which rows are chosen from now
        on; empty: as before. Raises DiskFull.
        """
        async with self._status_turn:
            loaded = loaded or (self.config.tidegate.initial_load and not self.loading)
            settings = settings or self.settings
            status = FeedStatus(max(ts, self.persisted), self.resolved_ts, loaded, settings)
            await self._node.write(Put(feed_key(self._node.cluster, self.id, "status"), status.to_bytes()))
            self.persisted, self.settings = status.checkpoint_ts, settings

    # --- what follows from it ------------------------------------------------------------------------

    @property
    def plan(self) -> FeedPlan:
        """What the incarnations have in common."""
        node = self._node
        paths = dataclasses.replace(node.paths, store=self.captured.store)
        return FeedPlan.of(node.cluster, self.id, self.info, paths, node.capture, node.shared)

    @property
    def wanted(self) -> Span:
        """The part of the key space that it follows."""
        return ALL_KEYS if self.config.has_tables else KeyRange.of(self.config).span

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, may still be read of upstream, were all that is stored gone.

        Upstream's history must be held from there on.
        """
        catalogues = self.captured.catalogues if self.config.has_tables else None
        base = catalogues.base_ts(self.persisted) if catalogues is not None else None
        return self.persisted, self.persisted if base is None else min(self.persisted, base)

    @property
    def scope(self) -> int:
        """The keyspace whose history it needs; -1: that of the cluster."""
        return self.config.tidegate.keyspace_id

    @property
    def history(self) -> History:
        """What PD keeps for us of what the feed follows."""
        return self._node.histories.get(self.scope, History())

    @property
    def retained(self) -> int:
        """How far behind the checkpoint, as a difference of ts, changes are kept."""
        return compose(round(self.config.tidegate.retention * 1000))

    @property
    def released(self) -> bool:
        """Whether nothing is held for it, upstream or here: stopped for too long, or its history is gone."""
        since_ms = self._node.now_ms() - self.info.ended_ms
        return self.life.ended and (self.lost or since_ms > self._node.gc_ttl_s * 1000)

    @property
    def lost(self) -> bool:
        """Whether it has failed because neither upstream nor the event store has what it needs; or because a
        reader's changes were let go.
        """
        error = self.life.error
        return self.life.state is State.FAILED and error is not None and error.code in (LOST, SILENT_CODE)

    @property
    def shown_state(self) -> State:
        """As TiCDC shows it: waiting for a retry is a warning."""
        return State.WARNING if self.life.state is State.PENDING else self.life.state
