"""The metadata of the control plane: keys, values to and from bytes, and the contract of the store.

The store has a subset of etcd's data model: keys with a create and a modification revision, one global
revision that each successful transaction raises by one, and transactions that compare revisions first.
`server.metadata.sqlite` implements it on one node, `etcd.metadata` for several captures.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import InvalidInput

ROOT: Final = "/tidegate"
FORMAT: Final = b"2"
DEFAULT_NAMESPACE: Final = "default"
NAME: Final = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
"""The form that TiCDC allows for changefeed ids and namespaces, with at most 128 characters."""
MAX_NAME: Final = 128
RESTORE: Final = "restore the metadata store from a copy, or remove the key and create the changefeed again"

SELECT_VALUE: Final = "SELECT value FROM kv WHERE key = ?"
"""The query by which a process with only the SQLite file reads one key: the latest committed value."""


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
class WriteResult:
    """Whether all guards were true, and the store's revision afterwards."""

    succeeded: bool
    revision: int


class GuardedWrites(NamedTuple):
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

    def transact(self, guards: Sequence[Compare], writes: Sequence[Put | Delete]) -> WriteResult:
        """Apply all writes at one new revision if all guards are true, otherwise none."""
        ...

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
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
    cuts_at_ms: int = 0
    """When the places of cuts in tables were last chosen, by upstream's time. 0: not known, or never."""
    cuts_why: str = ""
    """Why they were, in words."""
    recuts: int = 0
    """How often in a row they were chosen by load. Each time the next choice is later."""

    @property
    def settings(self) -> str:
        """A digest of the configuration: 16 hex digits."""
        # Sorted, so that the order in which settings are stored does not change the digest.
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """The stored form."""
        return to_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedInfo:
        """From the stored form. Raises InvalidInput if it is not a feed's info."""
        body = json_object(data, "changefeed info")
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
                cuts_at_ms=int(body.get("cuts_at_ms", 0)),
                cuts_why=str(body.get("cuts_why", "")),
                recuts=int(body.get("recuts", 0)),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInput(
                "a changefeed in the metadata store is damaged", why=repr(problem), fix=RESTORE
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
        return to_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedStatus:
        """From the stored form. Raises InvalidInput if it is not a feed's status."""
        body = json_object(data, "changefeed status")
        try:
            resolved_ts, loaded = int(body.get("resolved_ts", 0)), bool(body.get("loaded", False))
            return cls(int(body["checkpoint_ts"]), resolved_ts, loaded, str(body.get("settings", "")))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                "a checkpoint in the metadata store is damaged", why=repr(error), fix=RESTORE
            ) from error


def to_json(body: dict[str, Any]) -> bytes:
    """A value of the store."""
    return json.dumps(body, separators=(",", ":")).encode()


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """The members of a stored value. `what`: its kind, for errors. Raises InvalidInput."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise InvalidInput(
            f"a {what} in the metadata store is not JSON", why=str(error), fix=RESTORE
        ) from error
    if not isinstance(body, dict):
        raise InvalidInput(f"a {what} in the metadata store is not a JSON object", fix=RESTORE)
    return body
