"""What the control plane keeps: keys, values, and the store's contract; to and from bytes.

The store is etcd's data model in small: keys with a create and a modification revision, one global
revision that each successful transaction raises by one, and transactions that compare revisions first.
`server.metadata_sqlite` keeps it on one node, `etcd.metadata` for several captures.

Keys (cluster is PD's cluster id):

    /tidegate/{cluster}/format                               the number of this form
    /tidegate/{cluster}/owner                                whose mod revision is the tokens' owner_rev
    /tidegate/{cluster}/{namespace}/changefeed/info/{id}     FeedInfo: what the user wants; the feed's life
    /tidegate/{cluster}/{namespace}/changefeed/status/{id}   FeedStatus: the durable checkpoint
    /tidegate/{cluster}/{namespace}/changefeed/grant/{id}/{capture}
                                                             Grant: what the capture may write; stays after
                                                             removal

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
"""What TiCDC allows as changefeed id and namespace; at most 128 characters."""
MAX_NAME: Final = 128

SELECT_VALUE: Final = "SELECT value FROM kv WHERE key = ?"
"""How a process that only has the SQLite file reads one key (a committed value, never a stale one)."""


GRANTS_MAX: Final = 120
"""Captures that have ranges of a changefeed or get some, in one division. All their grants are compared or
written in one transaction of etcd, which takes 128 keys."""
CAPTURES_MAX: Final = 100
"""At most so many get ranges of one changefeed: their grants are stored in one transaction of etcd."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as stored."""

    key: str
    value: bytes = field(repr=False)
    """A feed's has its secrets."""
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A guard of a transaction: the key's `mod_revision` (0: must not exist) or `create_revision`."""

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
    """Remove a key; not an error when it is absent."""

    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all guards held, and the store's revision afterwards."""

    succeeded: bool
    revision: int


class Transaction(NamedTuple):
    """All writes, if all guards hold."""

    guards: tuple[Compare, ...]
    writes: tuple[Put | Delete, ...]


class MetadataStore(Protocol):
    """The contract of the embedded store and of etcd. What a call has written is durable when it returns;
    linearizable.
    """

    def get(self, key: str) -> KeyValue | None:
        """The latest committed value of a key."""
        ...

    def under(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that begin with `prefix`, in key order."""
        ...

    def transact(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        """Apply all writes at one new revision if all guards hold, else none."""
        ...

    def transact_all(self, asked: Sequence[Transaction]) -> list[Outcome]:
        """As if one after the other, each at a revision of its own.

        If this or `transact` raises, each may have been applied or not: an answer can be lost on its way.
        """
        ...

    def close(self) -> None:
        """Give up the store; no call may follow."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class FeedId:
    """Namespace and id of a changefeed: part of every key, path and identity."""

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
        """Raises InvalidInput when TiCDC would refuse one of the names."""
        for what, text in (("namespace", namespace), ("changefeed id", name)):
            if len(text) > MAX_NAME or not NAME.fullmatch(text):
                raise InvalidInput(
                    f"'{text}' is not a {what}.",
                    fix=f"use letters, digits and single hyphens between them, at most {MAX_NAME} characters",
                )
        return cls(namespace, name)


def owner_key(cluster: int) -> str:
    """The key every start of a control process rewrites."""
    return f"{ROOT}/{cluster}/owner"


def format_key(cluster: int) -> str:
    """The key of the number of the form in which all others are written."""
    return f"{ROOT}/{cluster}/format"


def identity_key(cluster: int) -> str:
    """The key of a random word that tells this store's changefeeds from another store's, given once."""
    return f"{ROOT}/{cluster}/identity"


def holder_key(cluster: int, term: str) -> str:
    """The key that says that an owner may hold upstream's history in its term; without it, it begins all."""
    return f"{ROOT}/{cluster}/__cdc_meta__/holder/{term}"


def feed_key(cluster: int, feed: FeedId, what: str) -> str:
    """The key of a feed's `info` or `status`."""
    assert what in ("info", "status")
    return f"{ROOT}/{cluster}/{feed.namespace}/changefeed/{what}/{feed.name}"


def grant_key(cluster: int, feed: FeedId, capture: str) -> str:
    """The key of what a capture may write for a feed; without the capture it begins those of all."""
    return f"{ROOT}/{cluster}/{feed.namespace}/changefeed/grant/{feed.name}/{capture}"


def feed_of_key(key: str) -> tuple[FeedId, str] | None:
    """The feed and the last-but-one part (`info`, `status`) of a feed's key, else None."""
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
    """What one capture may write of a feed: its incarnation there, and the ranges that it holds.

    The incarnation is one higher whenever a capture begins to deliver, and never goes back, not even
    under a new token. A writer whose (instance, token, incarnation) is not the stored one is fenced.
    """

    instance: str
    """`FeedInfo.instance`: in a new metadata store tokens and incarnations begin anew."""

    token: tuple[int, int]
    """(owner_rev, grant_seq), compared in that order: that of the grant. No range's is greater."""
    incarnation: int
    slots: int
    """Transactional ids 0..slots-1 that any incarnation on this capture has ever used; never shrinks."""
    ranges: tuple[GrantedRange, ...] = ()
    givers: Mapping[str, int] = field(default_factory=dict)
    """Captures from which ranges were taken, each with its slots: they are fenced before progress is read."""
    fenced: bool = False
    """Whether the capture's writers were fenced after it had lost its last range. Without a range it cannot
    prove a new one, so it has none until its next incarnation, whose grant says False again."""

    @property
    def spec_file(self) -> str:
        """The name of the file that tells this incarnation, and no other, what it is."""
        return f"spec-{self.incarnation}-{self.instance}.json"

    @property
    def work_folder(self) -> str:
        """The name of the folder with what this incarnation's processes keep while they run."""
        return f"spark-{self.incarnation}-{self.instance}"

    def is_same(self, other: Grant) -> bool:
        """Whether both are of one incarnation, whatever ranges it still has."""
        mine = self.instance, self.token, self.incarnation
        return mine == (other.instance, other.token, other.incarnation)

    def is_proven_by(self, stored: Grant | None) -> bool:
        """Whether whoever works under this grant may write, by what is stored now.

        Without a range it was taken over: a taker takes the ranges and leaves the rest as it is.
        """
        return stored is not None and stored.is_same(self) and bool(stored.ranges)

    def to_bytes(self) -> bytes:
        """As stored."""
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
        """Raises InvalidInput when the value is not a grant."""
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
            raise InvalidInput("A grant in the metadata store is damaged.", why=repr(error)) from error


def raised(
    stored: Mapping[str, Grant],
    capture: str,
    instance: str,
    token: tuple[int, int],
    ranges: Iterable[Span],
    slots: int,
) -> dict[str, Grant]:
    """The grants to be stored, by capture, so that one begins its next incarnation with these ranges.

    Whoever else has some of them loses them, and is fenced by that incarnation before it reads what is
    durable: nothing that the giver still does counts then. A giver that has been fenced once stays named,
    since only its own next incarnation says that it was.
    """
    wanted = [GrantedRange(span, token) for span in ranges]
    mine = stored.get(capture)
    givers = dict(mine.givers) if mine is not None else {}
    changed = {}
    for name, other in stored.items():
        if name == capture:
            continue
        kept = tuple(one for one in other.ranges if all(one.id.intersect(new.id) is None for new in wanted))
        others = {giver: n for giver, n in other.givers.items() if giver != capture}
        if kept != other.ranges:
            givers[name] = max(other.slots, givers.get(name, 0))
            # Those it was to fence, too: it may have died before it did.
            for giver, slots_of in other.givers.items():
                if giver != capture:
                    givers[giver] = max(slots_of, givers.get(giver, 0))
        if (kept, others) != (other.ranges, other.givers):
            changed[name] = replace(other, ranges=kept, givers=others)
    incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (0, 0)
    changed[capture] = Grant(instance, token, incarnation + 1, max(slots, used), tuple(wanted), givers)
    return changed


def shared_out(
    stored: Mapping[str, Grant],
    instance: str,
    token: tuple[int, int],
    shares: Mapping[str, Sequence[Span]],
    slots: Mapping[str, int],
) -> dict[str, Grant]:
    """The grants to be stored, by capture, so that several begin their next incarnations together.

    `shares` tile all that the changefeed follows; `slots`: of each capture in them. A capture may give ranges
    and take others in one step. As givers each names the captures that had any of its ranges, and those
    that these had still to fence. The owner fences them all before it dispatches any of these
    incarnations, and then stores the grants as `settled`. If each taker fenced its givers itself, captures
    that exchange ranges would fence one another's new writers.
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
        givers.pop(name, None)  # its own earlier writers it fences anyway
        incarnation, used = (mine.incarnation, mine.slots) if mine is not None else (0, 0)
        granted = tuple(GrantedRange(span, token) for span in spans)
        changed[name] = Grant(instance, token, incarnation + 1, max(slots[name], used), granted, givers)
    return changed


def writers_of(stored: Mapping[str, Grant]) -> dict[str, int]:
    """The captures that may have writers, or transactions that they have left open, each with its slots."""
    found = {name: grant.slots for name, grant in stored.items() if not grant.fenced}
    for grant in stored.values():
        for giver, slots in grant.givers.items():
            found[giver] = max(slots, found.get(giver, 0))
    return found


def settled(grant: Grant) -> Grant:
    """The same once all writers are fenced, those of its givers and those of its earlier incarnations."""
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
    """What the user asked for, and where the feed's life stands."""

    sink_uri: str = field(repr=False)
    """With its secrets, as it is stored."""
    config: dict[str, Any] = field(repr=False)
    """`ReplicaConfig.to_json()`, with its secrets."""
    start_ts: int
    target_ts: int
    """0: none."""
    create_time_ms: int
    state: str
    """A `control.changefeed.State`."""
    instance: str
    """Random, given at creation. In the sink it tells this feed's records from those of an earlier feed of
    the same name, whoever made that: its metadata may be gone, or another capture's."""
    error: FeedError | None = None
    creator_version: str = ""
    ended_ms: int = 0
    """When it was last stopped or failed, by upstream's time; 0: it runs."""
    repartition: int = 0
    """Over how many partitions of its topic rows are to be spread from now on; 0: nothing is to change."""
    partitions: int = 0
    """That number as it was changed last; 0: it never was, and `partition-num` or the topic says it."""

    @property
    def settings(self) -> str:
        """A digest of the configuration: 16 hex digits."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """As stored."""
        return _bytes(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedInfo:
        """Raises InvalidInput when the value is not a feed's info."""
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
                "A changefeed in the metadata store is damaged.", why=repr(problem)
            ) from problem


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The feed's durable progress."""

    checkpoint_ts: int
    """Every commit <= it is durable downstream; below an unfinished DDL's FinishedTS."""
    resolved_ts: int = 0
    """For display: up to where changes had been received."""
    loaded: bool = False
    """Whether the initial load, of a feed that begins with one, is durable downstream."""
    settings: str = ""
    """`FeedInfo.settings` of the last incarnation: what it sent above the checkpoint it sent by them."""

    def to_bytes(self) -> bytes:
        """As stored."""
        return _bytes(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedStatus:
        """Raises InvalidInput when the value is not a feed's status."""
        body = _object(data, "changefeed status")
        try:
            resolved_ts, loaded = int(body.get("resolved_ts", 0)), bool(body.get("loaded", False))
            return cls(int(body["checkpoint_ts"]), resolved_ts, loaded, str(body.get("settings", "")))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput("A checkpoint in the metadata store is damaged.", why=repr(error)) from error


def _bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"A {what} in the metadata store is not JSON.", why=str(error)) from error
    if not isinstance(body, dict):
        raise InvalidInput(f"A {what} in the metadata store is not a JSON object.")
    return body
