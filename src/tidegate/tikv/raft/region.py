"""A region: an id, a key range, an epoch, its peers and who leads them; and the regions of a new cluster.

The bytes are in one engine for all stores of an upstream, so a peer is a right to serve and not a copy. What
clients see of it is TiKV's: `conf_ver` grows with changes of peers, `version` with changes of the range,
`term` with changes of the leader (`region_change`). Voters decide who leads; learners only follow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tidegate.errors import InvalidInput
from tidegate.proto import metapb_pb2
from tidegate.tikv import keys

STORE_ID: Final = 1
"""The first store."""
FIRST_REGION_ID: Final = 2
FIRST_TERM: Final = 6
"""TiKV's RAFT_INIT_LOG_TERM and one election."""
REPLICAS: Final = 3
"""Peers of a region where there are as many stores; with fewer stores one."""
PEER_IDS: Final = 1 << 32
"""Peers of a cluster's first regions have ids from here on, so that they never meet a region's."""
_SIGN: Final = 1 << 63
_FIRST_SPLIT_TABLE: Final = 118
_SPLIT_HANDLE: Final = 100


class Role(IntEnum):
    """What a peer has to say, with metapb's numbers. The last two are of a joint state (`conf_change`)."""

    VOTER = 0
    LEARNER = 1
    INCOMING_VOTER = 2
    DEMOTING_VOTER = 3

    @property
    def words(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


JOINT: Final = (Role.INCOMING_VOTER, Role.DEMOTING_VOTER)


class Peer(NamedTuple):
    """A store's part in a region."""

    id: int
    store_id: int
    role: Role = Role.VOTER

    def message(self) -> metapb_pb2.Peer:
        """As clients see it."""
        return metapb_pb2.Peer(id=self.id, store_id=self.store_id, role=metapb_pb2.PeerRole.Name(self.role))


@dataclass(frozen=True, slots=True)
class Region:
    """A range of encoded keys [start, end); empty bounds are infinity.

    `leader` is the leader's store, 0 when there is none (most voters are down). `merging` is the region it is
    about to become a part of, 0 otherwise; `flashback` the start_ts of the flashback that alone it serves, 0
    otherwise.
    """

    id: int
    start: bytes
    end: bytes
    version: int = 1
    conf_ver: int = 1
    peers: tuple[Peer, ...] = ()
    leader: int = STORE_ID
    term: int = FIRST_TERM
    merging: int = 0
    flashback: int = 0
    message: metapb_pb2.Region = field(init=False, compare=False, repr=False)
    leader_peer: metapb_pb2.Peer | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert not self.end or self.start < self.end
        if not self.peers:
            object.__setattr__(self, "peers", (Peer(self.id + PEER_IDS, STORE_ID),))
        assert self.leader == 0 or self.leader in self.voters
        message = metapb_pb2.Region(
            id=self.id,
            start_key=self.start,
            end_key=self.end,
            region_epoch=metapb_pb2.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[peer.message() for peer in self.peers],
            is_in_flashback=bool(self.flashback),
            flashback_start_ts=self.flashback,
        )
        object.__setattr__(self, "message", message)
        leader = self.peer_on(self.leader)
        object.__setattr__(self, "leader_peer", None if leader is None else leader.message())

    def peer_on(self, store_id: int) -> Peer | None:
        """The peer on a store."""
        return next((peer for peer in self.peers if peer.store_id == store_id), None)

    @property
    def stores(self) -> tuple[int, ...]:
        """The stores with a peer."""
        return tuple(peer.store_id for peer in self.peers)

    @property
    def voters(self) -> tuple[int, ...]:
        """The stores that may lead: those with a voter, in joint state before those with a demoting one."""
        found = [peer for peer in self.peers if peer.role is not Role.LEARNER]
        return tuple(
            peer.store_id for peer in sorted(found, key=lambda peer: peer.role is Role.DEMOTING_VOTER)
        )

    @property
    def is_joint(self) -> bool:
        """Whether its voters are changing."""
        return any(peer.role in JOINT for peer in self.peers)

    def has_quorum(self, up: Collection[int]) -> bool:
        """Whether most voters are on stores that are up; in joint state of those before and those after."""

        def most(roles: Collection[Role]) -> bool:
            stores = [peer.store_id for peer in self.peers if peer.role in roles]
            return sum(store in up for store in stores) * 2 > len(stores)

        return most((Role.VOTER, Role.DEMOTING_VOTER)) and most((Role.VOTER, Role.INCOMING_VOTER))

    def contains(self, key: bytes) -> bool:
        """Whether an encoded key lies in the range."""
        return self.start <= key and (not self.end or key < self.end)

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Whether it has keys of [start, end)."""
        return (not end or self.start < end) and (not self.end or start < self.end)


def split_keys(count: int) -> list[bytes]:
    """`count` - 1 encoded keys where tables of a TiDB cluster are likely to have rows.

    The first user tables of a new cluster have ids from 118 on, mostly every second one. Split points go
    from table to table, alternately inside the rows and at the table's start, so that tables of several
    regions and regions of several tables occur.
    """
    found = []
    for i in range(count - 1):
        table = _FIRST_SPLIT_TABLE + 2 * i
        key = b"t" + (table + _SIGN).to_bytes(8, "big")
        if i % 2 == 0:
            key += b"_r" + (_SPLIT_HANDLE + _SIGN).to_bytes(8, "big")
        found.append(keys.encode(key))
    return found


def split(boundaries: Sequence[bytes], stores: int = 1) -> list[Region]:
    """The regions that ascending encoded boundaries make; n boundaries make n + 1 regions.

    Leaders go round the `stores`, so that each leads about as many; the other peers are on the next ones.
    """
    if any(left >= right for left, right in pairwise(boundaries)) or b"" in boundaries:
        raise InvalidInput("region split keys must ascend and not be empty")
    starts = [b"", *boundaries]
    ends = [*boundaries, b""]
    replicas = REPLICAS if stores >= REPLICAS else 1
    regions = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        number = FIRST_REGION_ID + i
        on = [STORE_ID + (i + j) % stores for j in range(replicas)]
        peers = tuple(Peer(number + (j + 1) * PEER_IDS, store) for j, store in enumerate(on))
        regions.append(Region(number, start, end, peers=peers, leader=on[0]))
    return regions
