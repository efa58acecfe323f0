"""What all feeds of a capture share: PD, metadata store, pullers' stores, clock, and the right to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.clock import Clock
from tidegate.control.gc import TTL_S, History
from tidegate.control.metadata import Compare, Delete, FeedId, Grant, MetadataStore, Put, feed_key, owner_key
from tidegate.disk import Ballast
from tidegate.errors import Fenced, TidegateError
from tidegate.eventstore import outlook
from tidegate.eventstore.manifest import MANIFEST, Manifest
from tidegate.kvclient.pd import PdClient
from tidegate.server.processor import OpenSink, Paths, PipelineCommand
from tidegate.server.spans import SpanRegistry


@dataclass(frozen=True, slots=True)
class Captured:
    """What the puller of one kv mode is told, and where it keeps what it captures."""

    store: Path
    spans: SpanRegistry


@dataclass(slots=True)
class Node:
    """What all feeds of a capture share."""

    cluster: int
    identity: str
    """The metadata store's."""
    address: str
    owner_rev: int
    paths: Paths
    pd: PdClient
    metadata: MetadataStore
    captured: Callable[[str], Captured]
    """By kv mode; the first call for a mode starts its puller."""
    clock: Clock
    disk: Executor
    """One thread for the metadata store."""
    pipeline_command: PipelineCommand
    open_sink: OpenSink
    lost: Callable[[TidegateError], None]
    """Called when another control process has taken over."""
    ballast: Ballast = field(default_factory=lambda: Ballast(None))
    """Room for small files on a full disk; and whether it is full."""
    next_grant: int = 1
    gc_ttl_s: int = TTL_S
    """How long upstream's history is kept for a feed that is stopped or has failed."""
    histories: dict[int, History] = field(default_factory=dict)
    """What PD keeps for us, by keyspace; -1: of what is in none."""
    upstream_ms: Callable[[], int] | None = None
    """PD's physical time, once somebody asks PD for it."""
    manifests: dict[str, tuple[tuple[int, int], Manifest]] = field(default_factory=dict)

    def now_ms(self) -> int:
        """Upstream's time as far as it is known."""
        return self.upstream_ms() if self.upstream_ms is not None else self.clock.now_ms()

    def token(self) -> tuple[int, int]:
        """A token above all earlier ones."""
        self.next_grant += 1
        return self.owner_rev, self.next_grant - 1

    async def write(self, *writes: Put | Delete, guards: tuple[Compare, ...] = ()) -> bool:
        """Write durably while we are the owner, else raise Fenced. False: another guard failed."""
        mine = Compare(owner_key(self.cluster), mod_revision=self.owner_rev)
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(self.disk, self.metadata.transact, (mine, *guards), writes)
        if not outcome.succeeded:
            held = await loop.run_in_executor(self.disk, self.metadata.get, mine.key)
            if held is None or held.mod_revision != self.owner_rev:
                error = Fenced("Another control process owns this cluster's changefeeds now.", where=mine.key)
                self.lost(error)
                raise error
        return outcome.succeeded

    def manifest(self, store: Path, span: str) -> Manifest | None:
        """A span's manifest, read again only when the file was replaced; None while there is none."""
        try:
            status = (store / span / MANIFEST).stat()
        except FileNotFoundError:
            return None
        signature = (status.st_mtime_ns, status.st_ino)
        known = self.manifests.get(span)
        if known is None or known[0] != signature:
            known = (signature, outlook.read_manifest(store, span))
            self.manifests[span] = known
        return known[1]

    async def raise_grant(self, feed: FeedId, instance: str, token: tuple[int, int], slots: int) -> Grant:
        """The next incarnation's grant, durable before anything acts under it."""
        key = feed_key(self.cluster, feed, "grant")
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self.disk, self.metadata.get, key)
        old = Grant.from_bytes(stored.value) if stored else None
        incarnation = (old.incarnation if old else 0) + 1
        grant = Grant(instance, token, incarnation, max(slots, old.slots if old else 0))
        await self.write(Put(key, grant.to_bytes()))
        return grant
