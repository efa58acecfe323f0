"""The metadata of the control plane: keys, values to and from bytes, and the contract of the store.

The store has a subset of etcd's data model: keys with a create and a modification revision, one global
revision that each successful transaction raises by one, and transactions that compare revisions first.
`server.metadata_sqlite` implements it on one node, `etcd.metadata` for several captures.

Keys (cluster is PD's cluster id):

    /tidegate/{cluster}/format                               the number of this form
    /tidegate/{cluster}/owner                                its mod revision is the owner_rev of tokens
    /tidegate/{cluster}/{namespace}/changefeed/info/{id}     FeedInfo: the user's settings; the feed's life
    /tidegate/{cluster}/{namespace}/changefeed/status/{id}   FeedStatus: the durable checkpoint
    /tidegate/{cluster}/{namespace}/changefeed/grant/{id}/{capture}
                                                             Grant: what the capture may write
    /tidegate/{cluster}/incarnations                         no incarnation of a deleted grant is greater

Values are JSON objects; a reader ignores members it does not know.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import InvalidInput
from tidegate.model.span import Span

ROOT: Final = "/tidegate"
FORMAT: Final = b"2"
DEFAULT_NAMESPACE: Final = "default"
NAME: Final = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
"""The form that TiCDC allows for changefeed ids and namespaces, with at most 128 characters."""
MAX_NAME: Final = 128
_RESTORE: Final = "restore the metadata store from a copy, or remove the key and create the changefeed again"

SELECT_VALUE: Final = "SELECT value FROM kv WHERE key = ?"
"""The query by which a process with only the SQLite file reads one key: the latest committed value."""


GRANTS_MAX: Final = 120
"""How many captures may have ranges of a changefeed before or after one division. All their grants are
compared or written in one transaction of etcd, which takes 128 keys."""
CAPTURES_MAX: Final = 100
"""How many captures may get ranges of one changefeed: their grants are stored in one transaction of etcd."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as stored."""

    key: str
    value: bytes = field(repr=False)
    """Not in the repr, because a feed's value contains its secrets."""
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A guard of a transaction, for the key's `mod_revision` (0: the key must not exist) or
    `create_revision`.
    """

    key: str
    mod_revision: int | None = None
    create_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: str
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. It is not an error if the key is absent."""

    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all guards were true, and the store's revision afterwards."""

    succeeded: bool
    revision: int


class Transaction(NamedTuple):
    """All writes are applied if all guards are true, otherwise none."""

    guards: tuple[Compare, ...]
    writes: tuple[Put | Delete, ...]


class MetadataStore(Protocol):
    """The contract of the embedded store and of etcd. It is linearizable, and all that a call writes is
    durable when the call returns.
    """

    def get(self, key: str) -> KeyValue | None:
        """The latest committed value of a key."""
        ...

    def under(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that begin with `prefix`, in key order."""
        ...

    def transact(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        """Apply all writes at one new revision if all guards are true, otherwise none."""
        ...

    def transact_all(self, asked: Sequence[Transaction]) -> list[Outcome]:
        """Apply transactions in order, each at a revision of its own.

        If this or `transact` raises, each transaction may have been applied or not, because the answer may be
        lost.
        """
        ...

    def close(self) -> None:
        """Close the store. No call may follow."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class FeedId:
    """Namespace and id of a changefeed: they are part of its keys, paths and identity."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> FeedId:
        """From `namespace/name` or `name`."""
        namespace, slash, name = text.rpartition("/")
        return cls.checked(namespace if slash else DEFAULT_NAMESPACE, name)

    @classmethod
    def checked(cls, namespace: str, name: str) -> FeedId:
        """From two names. Raises InvalidInput if TiCDC would refuse one of them."""
        for what, text in (("namespace", namespace), ("changefeed id", name)):
            if len(text) > MAX_NAME or not NAME.fullmatch(text):
                raise InvalidInput(
                    f"'{text}' is not a {what}",
                    fix=f"use letters, digits and single hyphens between them, at most {MAX_NAME} characters",
                )
        return cls(namespace, name)


def owner_key(cluster: int) -> str:
    """The key that a control process writes at every start."""
    return f"{ROOT}/{cluster}/owner"


def format_key(cluster: int) -> str:
    """The key of the format number of all other keys."""
    return f"{ROOT}/{cluster}/format"


def identity_key(cluster: int) -> str:
    """The key of a random word, written once, that distinguishes this store's changefeeds from others'."""
    return f"{ROOT}/{cluster}/identity"


def holder_key(cluster: int, term: str) -> str:
    """The key under which an owner notes in its term that it may hold upstream's history. With an empty
    `term` it is the prefix of all such keys.
    """
    return f"{ROOT}/{cluster}/__cdc_meta__/holder/{term}"


def feed_key(cluster: int, feed: FeedId, what: str) -> str:
    """The key of a feed's `info` or `status`."""
    assert what in ("info", "status")
    return f"{ROOT}/{cluster}/{feed.namespace}/changefeed/{what}/{feed.name}"


def grant_key(cluster: int, feed: FeedId, capture: str) -> str:
    """The key of a capture's grant for a feed. With an empty `capture` it is the prefix of all its grants."""
    return f"{ROOT}/{cluster}/{feed.namespace}/changefeed/grant/{feed.name}/{capture}"


def floor_key(cluster: int) -> str:
    """The key of a number above which incarnations begin if a capture has no grant for a feed.

    It is the greatest incarnation of all grants that were deleted. Without it a process of a removed feed
    could have the incarnation of a later feed of the same name.
    """
    return f"{ROOT}/{cluster}/incarnations"


def feed_of_key(key: str) -> tuple[FeedId, str] | None:
    """The feed and the last-but-one part (`info`, `status`) of a feed's key. None for another key."""
    parts = key.split("/")
    if len(parts) == 7 and parts[4] == "changefeed":
        return FeedId(parts[3], parts[6]), parts[5]
    return None


@dataclass(frozen=True, slots=True)
class GrantedRange:
    """A piece of the key space, and the token under which it may be written."""

    id: Span
    token: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one capture to write for a feed: its incarnation there, and its ranges.

    The incarnation rises by one whenever a capture begins to deliver, and never falls, not even under a new
    token. A writer is fenced if its (instance, token, incarnation) is not the stored one.
    """

    instance: str
    """`FeedInfo.instance`. Without it grants of two metadata stores could be equal: a new store counts tokens
    and incarnations from the start."""

    token: tuple[int, int]
    """(owner_rev, grant_seq) of the grant, compared in that order. No range has a greater one."""
    incarnation: int
    slots: int
    """Incarnations on this capture have used the transactional ids 0..slots-1. Never decreases."""
    ranges: tuple[GrantedRange, ...] = ()
    givers: Mapping[str, int] = field(default_factory=dict)
    """Captures from which ranges were taken, each with its slots. They are fenced before progress is read."""
    fenced: bool = False
    """Whether the capture's writers were fenced after it had lost its last range. Without a range no new
    writer passes the check of the grant, so there is none until the capture's next incarnation, whose grant
    has False.
    """

    @property
    def spec_file(self) -> str:
        """The name of the spec file of this incarnation."""
        return f"spec-{self.incarnation}-{self.instance}.json"

    @property
    def work_folder(self) -> str:
        """The name of the folder for files of this incarnation's processes."""
        return f"spark-{self.incarnation}-{self.instance}"

    def is_same(self, other: Grant) -> bool:
        """Whether both are grants of one incarnation. Their ranges may differ."""
        mine = self.instance, self.token, self.incarnation
        return mine == (other.instance, other.token, other.incarnation)

    def is_proven_by(self, stored: Grant | None) -> bool:
        """Whether a process with this grant may write, by the grant that is stored now.

        A stored grant without ranges proves nothing: another capture has taken the ranges, and such a taker
        leaves the rest of the giver's grant as it was.
        """
        return stored is not None and stored.is_same(self) and bool(stored.ranges)

    def to_bytes(self) -> bytes:
        """The stored form."""
        return _bytes(
            {
                "instance": self.instance,
                "token": list(self.token),
                "incarnation": self.incarnation,
                "slots": self.slots,
                "ranges": [[one.id.start.hex(), one.id.end.hex(), *one.token] for one in self.ranges],
                "givers": dict(self.givers),
                **({"fenced": True} if self.fenced else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Grant:
        """From the stored form. Raises InvalidInput if it is not a grant."""
        body = _object(data, "grant")
        try:
            owner_rev, grant_seq = body["token"]
            return cls(
                body["instance"],
                (int(owner_rev), int(grant_seq)),
                int(body["incarnation"]),
                int(body["slots"]),
                tuple(
                    GrantedRange(Span(bytes.fromhex(start), bytes.fromhex(end)), (int(first), int(second)))
                    for start, end, first, second in body["ranges"]
                ),
                {str(capture): int(slots) for capture, slots in body["givers"].items()},
                bool(body.get("fenced", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                "a grant in the metadata store is damaged", why=repr(error), fix=_RESTORE
            ) from error


def raised(
    stored: Mapping[str, Grant],
    capture: str,
    instance: str,
    token: tuple[int, int],
    ranges: Iterable[Span],
    slots: int,
    floor: int = 0,
) -> dict[str, Grant]:
    """The grants to store, by capture, so that one capture begins its next incarnation with these ranges.

    `floor`: the incarnation of a capture without a grant is above it (`floor_key`).

    Other captures that have some of these ranges lose them. The new incarnation fences their writers before
    it reads the progress, so later writes of a giver have no effect. A giver stays named after it was fenced,
    because only its own next incarnation removes its name.
    """
    wanted = [GrantedRange(span, token) for span in ranges]
    mine = stored.get(capture)
    givers = dict(mine.givers) if mine is not None else {}
    changed = {}
    for name, other in stored.items():
        if name == capture:
            continue
        kept = tuple(one for one in other.ranges if all(one.id.intersect(new.id) is None for new in wanted))
        # This capture's next incarnation fences its own earlier writers, so no other grant needs to name
        # it.
        others = {giver: n for giver, n in other.givers.items() if giver != capture}
        if kept != other.ranges:
            givers[name] = max(other.slots, givers.get(name, 0))
            # Also the captures that this giver had to fence: it may have died before it did.
            for giver, slots_of in other.givers.items():
                if giver != capture:
                    givers[giver] = max(slots_of, givers.get(giver, 0))
        if (kept, others) != (other.ranges, other.givers):
            changed[name] = replace(other, ranges=kept, givers=others)
    incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (floor, 0)
    changed[capture] = Grant(instance, token, incarnation + 1, max(slots, used), tuple(wanted), givers)
    return changed


def shared_out(
    stored: Mapping[str, Grant],
    instance: str,
    token: tuple[int, int],
    shares: Mapping[str, Sequence[Span]],
    slots: Mapping[str, int],
    floor: int = 0,
) -> dict[str, Grant]:
    """The grants to store, by capture, so that several captures begin their next incarnations together.

    `shares` cover all that the changefeed follows, without overlap. `slots`: the number of slots of each
    capture. `floor`: as for `raised`. A capture may give ranges and take others in the same step. The givers
    in each grant are the captures that had any of its ranges, and the captures that those still had to fence.
    The owner fences all of them before it dispatches any of these incarnations, and then stores the grants as
    `settled`. If each taker fenced its givers itself, captures that exchange ranges would fence each other's
    new writers.
    """
    changed = {
        name: replace(one, ranges=()) for name, one in stored.items() if name not in shares and one.ranges
    }
    for name, spans in shares.items():
        mine = stored.get(name)
        givers = dict(mine.givers) if mine is not None else {}
        for other, had in stored.items():
            if other != name and any(
                one.id.intersect(span) is not None for one in had.ranges for span in spans
            ):
                for giver, used in ((other, had.slots), *had.givers.items()):
                    givers[giver] = max(used, givers.get(giver, 0))
        givers.pop(name, None)  # its earlier writers are fenced in any case
        incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (floor, 0)
        granted = tuple(GrantedRange(span, token) for span in spans)
        changed[name] = Grant(instance, token, incarnation + 1, max(slots[name], used), granted, givers)
    return changed


def writers_of(stored: Mapping[str, Grant]) -> dict[str, int]:
    """The captures that may have writers or open transactions at the sink, each with its slots."""
    found = {name: grant.slots for name, grant in stored.items() if not grant.fenced}
    for grant in stored.values():
        for giver, slots in grant.givers.items():
            found[giver] = max(slots, found.get(giver, 0))
    return found


def settled(grant: Grant) -> Grant:
    """The grant after the writers of its givers and of its earlier incarnations have been fenced."""
    return replace(grant, givers={}, fenced=not grant.ranges)


@dataclass(frozen=True, slots=True)
class FeedError:
    """The error or warning shown with a feed."""

    message: str
    code: str
    time_ms: int
    addr: str = ""


@dataclass(frozen=True, slots=True)
class FeedInfo:
    """The user's settings of a feed, and the state of its life."""

    sink_uri: str = field(repr=False)
    """The sink URI with its secrets."""
    config: dict[str, Any] = field(repr=False)
    """`ReplicaConfig.to_json()`, with its secrets."""
    start_ts: int
    target_ts: int
    """0: none."""
    create_time_ms: int
    state: str
    """A `control.changefeed.State`."""
    instance: str
    """A random word made at creation. It distinguishes this feed's records in the sink from those of an
    earlier feed of the same name, whose metadata may be lost or in another store."""
    error: FeedError | None = None
    creator_version: str = ""
    ended_ms: int = 0
    """When the feed was last stopped or failed, by upstream's time. 0: it runs."""
    repartition: int = 0
    """The requested new number of partitions over which rows are spread. 0: no change is requested."""
    partitions: int = 0
    """The number of partitions after the last such change. 0: it never changed; `partition-num` or the topic
    has the number."""

    @property
    def settings(self) -> str:
        """A digest of the configuration: 16 hex digits."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """The stored form."""
        return _bytes(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedInfo:
        """From the stored form. Raises InvalidInput if it is not a feed's info."""
        body = _object(data, "changefeed info")
        error = body.get("error")
        try:
            return cls(
                sink_uri=body["sink_uri"],
                config=body["config"],
                start_ts=int(body["start_ts"]),
                target_ts=int(body["target_ts"]),
                create_time_ms=int(body["create_time_ms"]),
                state=body["state"],
                instance=str(body["instance"]),
                error=FeedError(**error) if error else None,
                creator_version=body.get("creator_version", ""),
                ended_ms=int(body.get("ended_ms", 0)),
                repartition=int(body.get("repartition", 0)),
                partitions=int(body.get("partitions", 0)),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInput(
                "a changefeed in the metadata store is damaged", why=repr(problem), fix=_RESTORE
            ) from problem


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The feed's durable progress."""

    checkpoint_ts: int
    """Every commit at or below it is durable downstream. It is below the FinishedTS of an unfinished DDL."""
    resolved_ts: int = 0
    """The ts up to which changes were received. For display only."""
    loaded: bool = False
    """Whether the initial load is durable downstream. Always False if the feed begins without one."""
    settings: str = ""
    """`FeedInfo.settings` of the last incarnation, which has sent rows above the checkpoint with them."""

    def to_bytes(self) -> bytes:
        """The stored form."""
        return _bytes(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedStatus:
        """From the stored form. Raises InvalidInput if it is not a feed's status."""
        body = _object(data, "changefeed status")
        try:
            resolved_ts, loaded = int(body.get("resolved_ts", 0)), bool(body.get("loaded", False))
            return cls(int(body["checkpoint_ts"]), resolved_ts, loaded, str(body.get("settings", "")))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                "a checkpoint in the metadata store is damaged", why=repr(error), fix=_RESTORE
            ) from error


def _bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise InvalidInput(
            f"a {what} in the metadata store is not JSON", why=str(error), fix=_RESTORE
        ) from error
    if not isinstance(body, dict):
        raise InvalidInput(f"a {what} in the metadata store is not a JSON object", fix=_RESTORE)
    return body
