"""Shared by all feeds of a capture: PD, metadata store, pullers' stores, clock, and the right to write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.clock import Clock
from tidegate.config.values import TABLE_MODE
from tidegate.control.gc import TTL_S, History
from tidegate.control.grants import (
    CAPTURES_MAX,
    Grant,
    raised,
    settled,
    shared_out,
)
from tidegate.control.metadata import (
    Compare,
    Delete,
    FeedId,
    GuardedWrites,
    KeyValue,
    MetadataStore,
    Put,
    floor_key,
    grant_key,
    owner_key,
)
from tidegate.control.retry_turns import RetryTurns
from tidegate.disk import Ballast
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.eventstore import store_view
from tidegate.eventstore.key_loads import KeyLoads
from tidegate.eventstore.manifest import Manifest, ManifestReader
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.server.captures.message_router import MessageRouter
from tidegate.server.captures.recorder import Follow, follow_nothing
from tidegate.server.delivery.application import Application
from tidegate.server.delivery.plan import Paths
from tidegate.server.delivery.sink_thread import OpenSink
from tidegate.server.metadata.commits import Commits
from tidegate.server.pulling.pulse import Pulse
from tidegate.server.pulling.spans import Captured

FILES_AT_ONCE: Final = 2
"""Small files that are written at the same time. More would only wait for the same disk."""
KEYS_MAX: Final = 128
"""The most keys that etcd compares or writes in one transaction (`--max-txn-ops`)."""
WRITE_MAX: Final = 1 << 20
"""The most bytes in one write to an etcd."""


async def nothing_known(capture: str, span_id: str) -> KeyLoads:
    """The keys that have changed, of a capture that asks no other one."""
    return KeyLoads()


@dataclass(frozen=True, slots=True)
class Owned:
    """The part that the owners of changefeeds on a capture keep of its event stores."""

    kv_modes: Collection[str]
    """The modes of their changefeeds."""
    ddl: Mapping[FeedId, int]
    """The ts from which each owner that follows DDL now would read it again. It keeps all DDL after it."""
    done: Mapping[FeedId, int] | None
    """For each changefeed that may run again, running or not: the ts up to which it is finished with rows.
    None: this is not known for all of them now, so no files may be removed.
    """


class StoredGrants(NamedTuple):
    """The grants of a changefeed by capture, and the floor of incarnations, each with a guard."""

    grants: Mapping[str, tuple[Grant, Compare]]
    floor: tuple[int, Compare]


@dataclass(slots=True)
class Node:
    """The parts that all feeds of a capture share."""

    cluster: int
    identity: str
    """The metadata store's id."""
    capture: str
    """Its name in grants and transactional ids, unique among captures that share a metadata store."""
    epoch: int
    """The epoch of this process: greater than that of all earlier ones on this data folder."""
    address: str
    owner_rev: int
    paths: Paths
    pd: PdClient
    metadata: MetadataStore
    captured: Callable[[str], Captured]
    """The event store of a kv mode; the first call for a mode starts its puller."""
    clock: Clock
    disk: Executor
    """The one thread that uses the metadata store."""
    application: Application
    open_sink: OpenSink
    lost: Callable[[TidegateError], None]
    """Called with the reason when this capture may not continue, such as another owner."""
    files: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="files")
    )
    """Writes the small files that workers read."""
    ballast: Ballast = field(default_factory=lambda: Ballast(None))
    """Reserved space for small files on a full disk; it also knows whether the disk is full."""
    router: MessageRouter = field(default_factory=MessageRouter)
    pulse: Pulse = field(init=False)
    retry_turns: RetryTurns = field(default_factory=RetryTurns)
    next_grant: int = 1
    next_message: int = 1
    shared: str = ""
    """The metadata store that several captures share, as `etcd:ENDPOINTS`; empty: there is one capture."""
    owner_key: str = ""
    """The key whose revision is `owner_rev`."""
    over: Callable[[], TidegateError | None] = lambda: None
    """Why this capture may not write any more, even if the store does not know it yet; None: it may."""
    gc_ttl_s: int = TTL_S
    """How long upstream's history is held for a stopped or failed feed."""
    histories: dict[int, History] = field(default_factory=dict)
    """The holds at PD, by keyspace; -1: of keys in no keyspace."""
    upstream_ms: Callable[[], int] | None = None
    """PD's physical time; None until something asks PD for it regularly."""
    follow: Follow = follow_nothing
    """Begins to record the decisions of a machine (`server.captures.recorder`)."""
    ended: Callable[[asyncio.Task[None]], None] = lambda task: None
    """Called when a task that should run as long as the capture has ended."""
    owned: Callable[[], Owned | None] = lambda: None
    """The part that the owners of changefeeds on this capture keep of its event stores; None: another capture
    has all owners.
    """
    others: Callable[[], Mapping[str, str]] = dict
    """The API addresses of the other captures that have a session, by their names in grants."""
    burdens: Callable[[], Mapping[str, int]] = dict
    """The number of changefeeds that each capture works for, by name."""
    drained: set[str] = field(default_factory=set)
    """The captures, by name, that get no ranges while there are others."""
    ids: Callable[[], Mapping[str, str]] = dict
    """The ids of the captures that have a session, by name; an id belongs to a process."""
    key_loads: Callable[[str, str], Awaitable[KeyLoads]] = nothing_known
    """Asks a capture, by name, which keys of a span (its id) have changed lately."""
    leaving: bool = False
    """Whether this capture is ending; others then continue their work until the next owner sends messages."""
    steps_down: bool = False
    """Whether another capture will own the changefeeds while this one continues to deliver. Then the owner's
    work ends, and no processor is asked to end.
    """
    checkpoints: Callable[[], list[int]] = list
    """Where every changefeed of tables would begin again, whether it runs or not."""
    manifests: dict[str, ManifestReader] = field(default_factory=dict)
    _sent_history: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each keyspace, the order of the last History received from an owner."""
    _commits: Commits = field(init=False)
    _floor_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the floor of incarnations is raised, so that it never falls."""

    def __post_init__(self) -> None:
        self._commits = Commits(self.metadata, self.disk)
        self.pulse = Pulse(manifest_of=self.manifest)
        self.owner_key = self.owner_key or owner_key(self.cluster)

    @property
    def holder(self) -> str:
        """The name under which this capture holds upstream's history at PD. If captures share an etcd, the
        name includes the owner's term. So an owner that was replaced without knowing it, or whose call comes
        late, can only release the hold of its own term.
        """
        return f"{self.identity}-{self.term}" if self.shared else self.identity

    @property
    def term(self) -> str:
        """The capture's name, and the revision by which it is the owner."""
        return f"{self.capture}-{self.owner_rev}"

    def forget_ownership(self) -> None:
        """Another capture will own the changefeeds. Keep only what belongs to the processors."""
        self.leaving = self.steps_down = False
        self.owned, self.burdens = lambda: None, dict
        self.drained.clear()
        self.router.owners.clear()

    def receive_history(self, scope: int, order: tuple[int, int], history: History) -> bool:
        """Take an owner's statement about upstream's history; False: a later one has come before.

        `order`: the owner's revision, and the sequence of its message, which rises over all changefeeds.
        """
        if order < self._sent_history.get(scope, (0, 0)):
            return False
        self._sent_history[scope], self.histories[scope] = order, history
        return True

    def now_ms(self) -> int:
        """Upstream's time as far as it is known, otherwise the wall clock's."""
        return self.upstream_ms() if self.upstream_ms is not None else self.clock.now_ms()

    def token(self) -> tuple[int, int]:
        """A token above all earlier ones."""
        self.next_grant += 1
        return self.owner_rev, self.next_grant - 1

    def next_sequence(self) -> int:
        """The sequence of an owner's next message, greater than all earlier ones."""
        self.next_message += 1
        return self.next_message - 1

    async def write(
        self, *writes: Put | Delete, guards: tuple[Compare, ...] = (), patience_s: float = 0.0
    ) -> bool:
        """Write durably if this capture is the owner, otherwise raise Fenced. False: another guard failed.

        `patience_s`: for how long the write may wait for others that share its commit.
        """
        while True:
            # Our own clock ends the session a margin before etcd does. From then on nothing may be written.
            if (over := self.over()) is not None:
                self.lost(over)
                raise over
            # docs/guarantees.md#one-of-several-captures-owns-the-changefeeds: the key disappears with the
            # owner's session, and then no write of this owner succeeds.
            mine = Compare(self.owner_key, mod_revision=self.owner_rev)
            if self.shared:
                check_size(writes, guards)
                patience_s = 0.0  # `over` says that it may write now, not later
            try:
                outcome = await self._commits.transact(GuardedWrites((mine, *guards), writes), patience_s)
            except TidegateError as error:
                if self.shared:
                    self._give_up(error)
                raise
            if outcome.succeeded:
                return True
            if mine.mod_revision == self.owner_rev:  # otherwise ownership was taken again: repeat the write
                break
        # A transaction that fails does not say which guard has failed, so the owner's key is read again.
        loop = asyncio.get_running_loop()
        held = await loop.run_in_executor(self.disk, self.metadata.get, mine.key)
        if held is None or held.mod_revision != self.owner_rev:
            fenced = Fenced("another control process owns this cluster's changefeeds now", where=mine.key)
            self.lost(fenced)
            raise fenced
        return False

    def _give_up(self, error: TidegateError) -> None:
        """End this owner's term after a write whose outcome is unknown.

        Its memory may differ from what etcd has stored, so everything is read again after the next election.
        """
        why = f"{error.what}: {error.why}" if error.why else error.what
        fix = "; ".join(filter(None, (error.fix, "the capture becomes a candidate again by itself")))
        self.lost(Fenced("it is not known what etcd has stored", where=self.shared, why=why, fix=fix))

    def manifest(self, store: Path, span: str) -> Manifest | None:
        """A span's manifest, or None while there is none; only what was appended since is read."""
        known = self.manifests.get(span)
        if known is None:
            known = self.manifests[span] = ManifestReader(store / span)
        try:
            return store_view.read_manifest(store, span, known)
        except store_view.NoManifest:
            return None

    async def grants(self, feed: FeedId) -> dict[str, Grant]:
        """All stored grants of a feed, by capture."""
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

    async def stored_grants(self, feed: FeedId) -> StoredGrants:
        """The grants and the floor that `share_out` changes, with guards that they have not changed since."""
        # At once: a round waits for it. In whatever order both are read, the guards show a change of either.
        return StoredGrants(*await asyncio.gather(self._grants(feed), self._floor()))

    async def share_out(
        self,
        feed: FeedId,
        instance: str,
        token: tuple[int, int],
        shares: Mapping[str, Sequence[Span]],
        slots: Mapping[str, int],
        before: StoredGrants | None = None,
    ) -> dict[str, Grant]:
        """The grants of the next incarnations, by capture; durable before any capture acts on them.

        A capture that gets everything fences the captures that lose ranges itself. Several captures must not
        (`shared_out`). `before`: what is stored now, if that was read already.
        """
        found, (floor, at_floor) = before or await self.stored_grants(feed)
        stored = {name: grant for name, (grant, _) in found.items()}
        if len(shares) == 1:
            (name,) = shares
            grants = raised(stored, name, instance, token, shares[name], slots[name], floor)
        else:
            grants = shared_out(stored, instance, token, shares, slots, floor)
        # A grant without ranges and givers cannot lose a range or pass on a giver, so it needs no guard.
        looked_at = {name for name, one in stored.items() if one.ranges or one.givers} | grants.keys()
        guards = tuple(seen for name, (_, seen) in found.items() if name in looked_at)
        if not shares.keys() <= stored.keys():
            # If the answer to this write is lost, it is sent again. A grant that does not exist has no
            # revision to compare, so the first attempt could arrive after the grant was deleted.
            guards += (at_floor,)
        await self._store_grants(feed, grants, guards)
        return {name: grants[name] for name in shares}

    async def settle(self, feed: FeedId, grants: Mapping[str, Grant]) -> dict[str, Grant]:
        """Store that all writers of these captures, and of their givers, are fenced."""
        after = {name: settled(grant) for name, grant in grants.items()}
        changed = [(name, one) for name, one in after.items() if one != grants[name]]
        # In parts, because etcd bounds the keys of a transaction.
        for first in range(0, len(changed), CAPTURES_MAX):
            await self._store_grants(feed, dict(changed[first : first + CAPTURES_MAX]))
        return after

    async def forget_grants(self, feed: FeedId, grants: Mapping[str, Grant]) -> None:
        """Delete the grants of a feed under which nothing can be written any more (`changefeeds.removal`).

        Later incarnations of a feed of this name begin above those of the deleted grants.
        """
        keys = [Delete(grant_key(self.cluster, feed, name)) for name in sorted(grants)]
        async with self._floor_turn:
            floor, _ = await self._floor()
            floor = max([floor, *(one.incarnation for one in grants.values())])
            # Written even if it stays the same: its new revision refuses late writes of the deleted grants.
            await self.write(Put(floor_key(self.cluster), b"%d" % floor))
            for first in range(0, len(keys), CAPTURES_MAX):
                await self.write(*keys[first : first + CAPTURES_MAX])

    async def _floor(self) -> tuple[int, Compare]:
        """The floor of incarnations, and the guard that no grant was deleted since."""
        key, loop = floor_key(self.cluster), asyncio.get_running_loop()
        found = await loop.run_in_executor(self.disk, self.metadata.get, key)
        if found is None:
            return 0, Compare(key, mod_revision=0)
        return int(found.value), Compare(key, mod_revision=found.mod_revision)

    async def _store_grants(
        self, feed: FeedId, grants: Mapping[str, Grant], guards: tuple[Compare, ...] = ()
    ) -> None:
        puts = (Put(grant_key(self.cluster, feed, name), one.to_bytes()) for name, one in grants.items())
        if not await self.write(*puts, guards=guards):
            raise Retryable("the grants of the changefeed have changed meanwhile", where=f"changefeed {feed}")

    async def under(self, front: str) -> Sequence[KeyValue]:
        """All keys of the metadata store that begin with `front`, in key order."""
        return await asyncio.get_running_loop().run_in_executor(self.disk, self.metadata.under, front)

    async def read(self, key: str) -> bytes | None:
        """A value of the metadata store."""
        found = await asyncio.get_running_loop().run_in_executor(self.disk, self.metadata.get, key)
        return None if found is None else found.value

    async def read_grant(self, feed: FeedId) -> Grant | None:
        """Return the grant under which this capture may write for a feed now."""
        found = await self.read(grant_key(self.cluster, feed, self.capture))
        return None if found is None else Grant.from_bytes(found)

    def stores(self, modes: Iterable[str] = ()) -> list[Captured]:
        """The tables' event store, and those of the other kv modes that changefeeds use."""
        return [self.captured(mode) for mode in sorted({TABLE_MODE, *modes})]


def check_size(writes: Sequence[Put | Delete], guards: Sequence[Compare] = ()) -> None:
    """Raises InvalidInput for more than etcd accepts in one request (1.5 MiB, `--max-request-bytes`; 128
    comparisons or writes, `--max-txn-ops`).
    """
    keys = {one.key for one in (*writes, *guards)}
    if len(keys) >= KEYS_MAX:
        raise InvalidInput(
            "this is more than etcd takes in one transaction",
            where=", ".join(sorted(keys)[:3]) + ", ...",
            why=f"{len(keys)} keys, of at most {KEYS_MAX - 1}",
            fix=f"let at most {CAPTURES_MAX} captures share a changefeed",
        )
    size = sum(len(one.value) for one in writes if isinstance(one, Put))
    if size > WRITE_MAX:
        raise InvalidInput(
            "this is more than can be kept in etcd",
            where=", ".join(one.key for one in writes),
            why=f"{size:,} bytes, of at most {WRITE_MAX:,}",
            fix="use fewer or shorter rules: patterns instead of names of tables",
        )
