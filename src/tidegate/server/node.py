"""What all feeds of a capture share: PD, metadata store, pullers' stores, clock, and the right to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.clock import Clock
from tidegate.control.gc import TTL_S, History
from tidegate.control.metadata import (
    CAPTURES_MAX,
    Compare,
    Delete,
    FeedId,
    Grant,
    KeyValue,
    MetadataStore,
    Put,
    Transaction,
    grant_key,
    owner_key,
    raised,
    settled,
    shared_out,
)
from tidegate.disk import Ballast
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import Manifest, ManifestReader
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.server.application import Application
from tidegate.server.catalogues import Catalogues
from tidegate.server.commits import Commits
from tidegate.server.feed_plan import Paths
from tidegate.server.owner_sink import OpenSink
from tidegate.server.post import Post
from tidegate.server.pulse import Pulse
from tidegate.server.recorder import Follow, follow_nothing
from tidegate.server.spans import SpanRegistry

KEYS_MAX: Final = 128
"""So many keys etcd compares or writes in one transaction (`--max-txn-ops`)."""
WRITE_MAX: Final = 1 << 20
"""Bytes of one write to an etcd."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What the puller of one kv mode is told, and where it keeps what it captures."""

    store: Path
    spans: SpanRegistry
    catalogues: Catalogues | None = None
    """Of the tables; keys have none."""


@dataclass(slots=True)
class Node:
    """What all feeds of a capture share."""

    cluster: int
    identity: str
    """The metadata store's."""
    capture: str
    """Its name in grants and transactional ids: one of those that share a metadata store."""
    epoch: int
    """Of this process: greater than that of all before it on this data folder."""
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
    application: Application
    open_sink: OpenSink
    lost: Callable[[TidegateError], None]
    """Called when another control process has taken over."""
    ballast: Ballast = field(default_factory=lambda: Ballast(None))
    """Room for small files on a full disk; and whether it is full."""
    post: Post = field(default_factory=Post)
    pulse: Pulse = field(default_factory=Pulse)
    next_grant: int = 1
    next_message: int = 1
    shared: str = ""
    """Where several captures keep their metadata, as `etcd:ENDPOINTS`; empty: there is one capture."""
    owner_key: str = ""
    """Whose revision is `owner_rev`."""
    over: Callable[[], TidegateError | None] = lambda: None
    """Why nothing may be written any more, though the store may not know it yet; None: all is well."""
    gc_ttl_s: int = TTL_S
    """How long upstream's history is kept for a feed that is stopped or has failed."""
    histories: dict[int, History] = field(default_factory=dict)
    """What PD keeps for us, by keyspace; -1: of what is in none."""
    upstream_ms: Callable[[], int] | None = None
    """PD's physical time, once somebody asks PD for it."""
    follow: Follow = follow_nothing
    """Records what a machine decides from now on (`server.recorder`)."""
    ended: Callable[[asyncio.Task[None]], None] = lambda task: None
    """Called when a task of the capture has ended that never should."""
    is_owner: bool = False
    """Whether this capture owns the changefeeds; else it works for those that another owns."""
    others: Callable[[], Mapping[str, str]] = dict
    """The other captures that are there now: the addresses of their APIs, by their names in grants."""
    burdens: Callable[[], Mapping[str, int]] = dict
    """How many changefeeds each capture works for, by name."""
    drained: set[str] = field(default_factory=set)
    """Captures, by name, that are to be given nothing while there are others."""
    ids: Callable[[], Mapping[str, str]] = dict
    """Of the captures that are there, by name: of their processes."""
    leaving: bool = False
    """Whether this capture ends: others go on with what they do until the next owner speaks."""
    checkpoints: Callable[[], list[int]] = list
    """Where every changefeed of tables would begin again, whether it runs or not."""
    manifests: dict[str, ManifestReader] = field(default_factory=dict)
    _sent_history: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By keyspace, the order of what an owner has said last, while that is another capture."""
    _commits: Commits = field(init=False)

    def __post_init__(self) -> None:
        self._commits = Commits(self.metadata, self.disk)
        self.owner_key = self.owner_key or owner_key(self.cluster)

    @property
    def holder(self) -> str:
        """Who holds upstream's history at PD: of several captures one as the owner that it is now. Whoever
        was replaced and does not know it yet, or comes late, lets go of no hold but that of its own term.
        """
        return f"{self.identity}-{self.term}" if self.shared else self.identity

    @property
    def term(self) -> str:
        """The capture's name, and the revision by which it is the owner."""
        return f"{self.capture}-{self.owner_rev}"

    def receive_history(self, scope: int, order: tuple[int, int], said: History) -> bool:
        """What an owner says of upstream's history. False: it was said before something later.

        `order`: the owner's revision, and the sequence of its message, which rises over all changefeeds.
        """
        if order < self._sent_history.get(scope, (0, 0)):
            return False
        self._sent_history[scope], self.histories[scope] = order, said
        return True

    def now_ms(self) -> int:
        """Upstream's time as far as it is known."""
        return self.upstream_ms() if self.upstream_ms is not None else self.clock.now_ms()

    def token(self) -> tuple[int, int]:
        """A token above all earlier ones."""
        self.next_grant += 1
        return self.owner_rev, self.next_grant - 1

    def next_sequence(self) -> int:
        """For a message of an owner: above all earlier ones."""
        self.next_message += 1
        return self.next_message - 1

    async def write(self, *writes: Put | Delete, guards: tuple[Compare, ...] = ()) -> bool:
        """Write durably while we are the owner, else raise Fenced. False: another guard failed."""
        while True:
            if (over := self.over()) is not None:
                self.lost(over)
                raise over
            mine = Compare(self.owner_key, mod_revision=self.owner_rev)
            if self.shared:
                check_size(writes, guards)
            try:
                outcome = await self._commits.transact(Transaction((mine, *guards), writes))
            except TidegateError as error:
                if self.shared:
                    self._give_up(error)
                raise
            if outcome.succeeded:
                return True
            if mine.mod_revision == self.owner_rev:  # else we have taken ownership anew meanwhile
                break
        loop = asyncio.get_running_loop()
        held = await loop.run_in_executor(self.disk, self.metadata.get, mine.key)
        if held is None or held.mod_revision != self.owner_rev:
            fenced = Fenced("Another control process owns this cluster's changefeeds now.", where=mine.key)
            self.lost(fenced)
            raise fenced
        return False

    def _give_up(self, error: TidegateError) -> None:
        """After a write of which nobody knows whether it is stored, all that we believe of our feeds goes.

        It is read again when the capture is elected again.
        """
        why = f"{error.what} {error.why}"
        fix = "; ".join(filter(None, (error.fix, "the capture stands for election again by itself")))
        self.lost(Fenced("It is not known what etcd has stored.", where=self.shared, why=why, fix=fix))

    def manifest(self, store: Path, span: str) -> Manifest | None:
        """A span's manifest, of which only what was appended is read again; None while there is none."""
        known = self.manifests.get(span)
        if known is None:
            known = self.manifests[span] = ManifestReader(store / span)
        try:
            return store_view.read_manifest(store, span, known)
        except store_view.NoManifest:
            return None

    async def grants(self, feed: FeedId) -> dict[str, Grant]:
        """All that are stored, by capture."""
        return {name: grant for name, (grant, _) in (await self._grants(feed)).items()}

    async def _grants(self, feed: FeedId) -> dict[str, tuple[Grant, Compare]]:
        front = grant_key(self.cluster, feed, "")
        return {
            kv.key.removeprefix(front): (
                Grant.from_bytes(kv.value),
                Compare(kv.key, mod_revision=kv.mod_revision),
            )
            for kv in await self.under(front)
        }

    async def share_out(
        self,
        feed: FeedId,
        instance: str,
        token: tuple[int, int],
        shares: Mapping[str, Sequence[Span]],
        slots: Mapping[str, int],
    ) -> dict[str, Grant]:
        """The next incarnations' grants, by capture, durable before anything acts under them.

        One capture fences by itself those that its ranges are taken from; several must not (`shared_out`).
        """
        found = await self._grants(feed)
        stored = {name: grant for name, (grant, _) in found.items()}
        if len(shares) == 1:
            (name,) = shares
            grants = raised(stored, name, instance, token, shares[name], slots[name])
        else:
            grants = shared_out(stored, instance, token, shares, slots)
        # Who has no range, and had none to fence, can neither lose one nor pass on whom to fence.
        looked_at = {name for name, one in stored.items() if one.ranges or one.givers} | grants.keys()
        guards = tuple(seen for name, (_, seen) in found.items() if name in looked_at)
        await self._store_grants(feed, grants, guards)
        return {name: grants[name] for name in shares}

    async def settle(self, feed: FeedId, grants: Mapping[str, Grant]) -> dict[str, Grant]:
        """Store that all writers of these captures and of their givers are fenced."""
        after = {name: settled(grant) for name, grant in grants.items()}
        changed = [(name, one) for name, one in after.items() if one != grants[name]]
        for first in range(0, len(changed), CAPTURES_MAX):
            await self._store_grants(feed, dict(changed[first : first + CAPTURES_MAX]))
        return after

    async def _store_grants(
        self, feed: FeedId, grants: Mapping[str, Grant], guards: tuple[Compare, ...] = ()
    ) -> None:
        puts = (Put(grant_key(self.cluster, feed, name), one.to_bytes()) for name, one in grants.items())
        if not await self.write(*puts, guards=guards):
            raise Retryable(
                "The grants of the changefeed have changed meanwhile.", where=f"changefeed {feed}"
            )

    async def under(self, front: str) -> Sequence[KeyValue]:
        """All keys of the metadata store that begin with `front`, in key order."""
        return await asyncio.get_running_loop().run_in_executor(self.disk, self.metadata.under, front)

    async def read(self, key: str) -> bytes | None:
        """A value of the metadata store."""
        found = await asyncio.get_running_loop().run_in_executor(self.disk, self.metadata.get, key)
        return None if found is None else found.value

    async def read_grant(self, feed: FeedId) -> Grant | None:
        """What this capture may write of a feed now."""
        found = await self.read(grant_key(self.cluster, feed, self.capture))
        return None if found is None else Grant.from_bytes(found)


def check_size(writes: Sequence[Put | Delete], guards: Sequence[Compare] = ()) -> None:
    """Raises InvalidInput for more than etcd takes in one request (1.5 MiB, `--max-request-bytes`; 128
    comparisons or writes, `--max-txn-ops`).
    """
    keys = {one.key for one in (*writes, *guards)}
    if len(keys) >= KEYS_MAX:
        raise InvalidInput(
            "This is more than etcd takes in one transaction.",
            where=", ".join(sorted(keys)[:3]) + ", ...",
            why=f"{len(keys)} keys, of at most {KEYS_MAX - 1}",
            fix=f"let at most {CAPTURES_MAX} captures share a changefeed",
        )
    size = sum(len(one.value) for one in writes if isinstance(one, Put))
    if size > WRITE_MAX:
        raise InvalidInput(
            "This is more than can be kept in etcd.",
            where=", ".join(one.key for one in writes),
            why=f"{size:,} bytes, of at most {WRITE_MAX:,}",
            fix="use fewer or shorter rules: patterns instead of names of tables",
        )
