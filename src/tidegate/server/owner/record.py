"""A changefeed as it is stored: its definition, its progress, and the life that a restart would find.

    info     the definition: sink, settings, target, layout of its topic, state and error
    status   the progress: checkpoint, whether its initial load is durable, the settings for choosing rows

Every write of either goes through this module. If a write of the info fails, memory returns to the value
before, so that status always shows what a restart would find. The one exception is a full disk, if the caller
chooses so (`become_if_there_is_room`). The stored checkpoint never goes back.

The module also derives from the stored checkpoint what must be held of upstream's history, and whether the
hold may be released.
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
from tidegate.control.metadata import (
    FeedId,
    FeedInfo,
    FeedStatus,
    Put,
    feed_key,
)
from tidegate.disk import DiskFull
from tidegate.errors import TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.log import event
from tidegate.model.key_range import KeyRange
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.feed_ddl import LOST
from tidegate.server.node import Node
from tidegate.sink.reader.changes import SILENT_CODE

LOG: Final = logging.getLogger(__name__)

ALL_KEYS: Final = Span(b"", b"")


class FeedRecord:
    """The record of one changefeed, on the node that owns it. Lives in one asyncio loop."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self._node, self.id, self.info = node, feed, info
        self.uri = parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self.filter = FeedFilter.of(self.config)
        self.captured = node.captured(self.config.tidegate.kv_mode)
        """This capture's event store and catalogue for the part of upstream that the changefeed follows."""
        self.life = Life.restored(info.state, info.error)
        if self.life.ended and not info.ended_ms:
            self.info = dataclasses.replace(info, ended_ms=node.now_ms())  # stored by an earlier version
        self.persisted = status.checkpoint_ts
        """The stored checkpoint, where a restart begins; never above what is durable downstream."""
        self.resolved_ts = status.checkpoint_ts
        """Everything upstream up to here is known; stored with the next checkpoint."""
        self.loading = self.config.tidegate.initial_load and not status.loaded
        """Whether the initial load is not delivered yet; changes are delivered only after it."""
        self.settings = status.settings
        """The settings by which the last incarnation chose the rows to send."""
        self._status_turn = asyncio.Lock()

    # --- info ----------------------------------------------------------------------------------------

    async def become(self, life: Life) -> None:
        """Change the life; state and error are stored if they changed.

        If they cannot be stored, the feed keeps its earlier life, so that status shows what a restart finds.
        """
        changed = (life.state, life.error) != (self.life.state, self.life.error)
        (before, known), self.life = (self.life, self.info), life
        if not changed:
            return
        # A feed that had ended before keeps its time, because gc-ttl counts from there.
        ended = known.ended_ms or self._node.now_ms() if life.ended else 0
        self.info = info = dataclasses.replace(known, state=str(life.state), error=life.error, ended_ms=ended)
        try:
            await self._write_info(info)
        except TidegateError:
            # Only if nothing else has replaced them during the write.
            if self.life is life and self.info is info:
                self.life, self.info = before, known
            raise
        if before.state is not life.state:
            event(LOG, logging.INFO, "changefeed state", changefeed=str(self.id), state=str(life.state))

    async def become_if_there_is_room(self, life: Life) -> None:
        """As `become`, but on a full disk the new state is shown without being stored."""
        before = self.life
        try:
            await self.become(life)
        except DiskFull:
            if self.life is before:
                self.life = life

    async def update(self, info: FeedInfo) -> None:
        """Store other settings durably; the feed must not run."""
        before = self.info, self.uri, self.config, self.filter
        uri, config = parse_sink_uri(info.sink_uri), config_from_json(info.config)
        # Before the write: a warning that is stored meanwhile replaces the whole info. Made from the earlier
        # one, it would undo the new settings, and captures read what is stored.
        self.info, self.uri, self.config, self.filter = info, uri, config, FeedFilter.of(config)
        try:
            await self._write_info(info)
        except BaseException:
            # Memory has no settings that a restart would not find. A change meanwhile has stored the new ones
            # with its own, so they stay, all of them.
            if self.info is info:
                self.info, self.uri, self.config, self.filter = before
            raise

    async def store_layout(self, repartition: int, partitions: int) -> None:
        """Store the requested number of partitions (0: no request), and the number of the last change.

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

    async def store(
        self, ts: int, *, loaded: bool = False, settings: str = "", patience_s: float = 0.0
    ) -> None:
        """Store a checkpoint durably; a lower one than the stored one leaves that unchanged.

        `loaded`: the initial load is durable downstream. `settings`: those by which rows are chosen from now
        on; empty: unchanged. `patience_s`: as for `Node.write`. Raises DiskFull.
        """
        # One write at a time. Two at once could arrive in the other order, and the stored checkpoint would
        # fall.
        async with self._status_turn:
            loaded = loaded or (self.config.tidegate.initial_load and not self.loading)
            settings = settings or self.settings
            status = FeedStatus(max(ts, self.persisted), self.resolved_ts, loaded, settings)
            put = Put(feed_key(self._node.cluster, self.id, "status"), status.to_bytes())
            await self._node.write(put, patience_s=patience_s)
            self.persisted, self.settings = status.checkpoint_ts, settings

    async def store_last(self, checkpoint: int) -> None:
        """Store the checkpoint at a stop, so that an update begins at the checkpoint that users see.

        If it cannot be stored, the next start reads some rows again.
        """
        try:
            await self.store(checkpoint)
        except TidegateError as error:
            feed = str(self.id)
            event(LOG, logging.WARNING, "checkpoint not stored", changefeed=feed, error=str(error))

    async def adopt_settings(self, delivered_to: int) -> bool:
        """If the settings have changed since the last incarnation, store them and `delivered_to` at least.

        The sink has everything up to there, as the old settings chose it. If the new settings let more rows
        pass, rows from below would follow a Resolved that covers them, or an older row would follow a newer
        one of the same table.

        True: the stored checkpoint was raised, so nothing may continue from below.
        """
        if self.settings == self.info.settings:
            return False
        before = self.persisted
        # The snapshot of an initial load is read at the stored checkpoint, so this must not rise until the
        # load is done.
        begin = before if self.loading else max(before, delivered_to)
        await self.store(begin, settings=self.info.settings)
        if begin > before:
            feed = str(self.id)
            event(LOG, logging.INFO, "checkpoint raised to what the sink has", changefeed=feed, ts=begin)
        return begin > before

    # --- what follows from it ------------------------------------------------------------------------

    @property
    def plan(self) -> FeedPlan:
        """The part of its specification that is the same for all incarnations."""
        node = self._node
        paths = dataclasses.replace(node.paths, store=self.captured.store)
        return FeedPlan.of(node.cluster, self.id, self.info, paths, node.capture, node.shared)

    @property
    def wanted(self) -> Span:
        """The part of the key space that it follows."""
        return ALL_KEYS if self.config.has_tables else KeyRange.of(self.config).span

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, would be read from upstream if the event store were lost.

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
        """The hold at PD on the history of the part of upstream that the feed follows."""
        return self._node.histories.get(self.scope, History())

    @property
    def retained(self) -> int:
        """How far behind the checkpoint changes are kept, as a difference of ts."""
        return compose(round(self.config.tidegate.retention * 1000))

    @property
    def released(self) -> bool:
        """Whether nothing is held for it, upstream or here: stopped too long ago, or its history is gone."""
        since_ms = self._node.now_ms() - self.info.ended_ms
        return self.life.ended and (self.lost or since_ms > self._node.gc_ttl_s * 1000)

    @property
    def lost(self) -> bool:
        """Whether it failed because neither upstream nor the event store has what it needs, or because the
        changes of a reader were dropped.
        """
        error = self.life.error
        return self.life.state is State.FAILED and error is not None and error.code in (LOST, SILENT_CODE)

    @property
    def shown_state(self) -> State:
        """The state as TiCDC shows it: waiting for a retry is a warning."""
        return State.WARNING if self.life.state is State.PENDING else self.life.state
