"""A region: an id, a key range, an epoch, its peers and their leader; and the regions of a new cluster.

All stores of an upstream share one engine, so a peer is only a right to serve and not a copy of the data.
Clients see the same as from TiKV: `conf_ver` rises with changes of peers, `version` with changes of the
range, `term` with changes of the leader (`region_change`). Voters elect the leader; learners only follow.
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
"""The id of the first store."""
FIRST_REGION_ID: Final = 2
FIRST_TERM: Final = 6
"""TiKV's RAFT_INIT_LOG_TERM plus one election."""
REPLICAS: Final = 3
"""The peers of a region if there are that many stores; with fewer stores a region has one peer."""
PEER_IDS: Final = 1 << 32
"""The peers of a cluster's first regions have ids above this, so they differ from all region ids."""
_SIGN: Final = 1 << 63
_FIRST_SPLIT_TABLE: Final = 118
_SPLIT_HANDLE: Final = 100


class Role(IntEnum):
    """The role of a peer, with metapb's numbers. The last two exist only in a joint state (`conf_change`)."""

    VOTER = 0
    LEARNER = 1
    INCOMING_VOTER = 2
    DEMOTING_VOTER = 3

    @property
    def words(self) -> str:
        """The role as text for messages."""
        return self.name.lower().replace("_", " ")


JOINT: Final = (Role.INCOMING_VOTER, Role.DEMOTING_VOTER)


class Peer(NamedTuple):
    """A store's membership in a region."""

    id: int
    store_id: int
    role: Role = Role.VOTER

    def message(self) -> metapb_pb2.Peer:
        """The peer as metapb's message."""
        return metapb_pb2.Peer(id=self.id, store_id=self.store_id, role=metapb_pb2.PeerRole.Name(self.role))


@dataclass(frozen=True, slots=True)
class Region:
    """A range of encoded keys [start, end); empty bounds are infinity.

    `leader`: the leader's store; 0 if there is none, because most voters are down. `merging`: the region that
    this one is being merged into; 0 otherwise. `flashback`: the start_ts of a flashback in progress, during
    which the region serves nothing else; 0 otherwise.
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
        # Made once for each version of a region, because PD and the stores send it in almost every answer.
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
        """The stores that may lead: those with a voter; in a joint state demoting voters come last."""
        found = [peer for peer in self.peers if peer.role is not Role.LEARNER]
        return tuple(
            peer.store_id for peer in sorted(found, key=lambda peer: peer.role is Role.DEMOTING_VOTER)
        )

    @property
    def is_joint(self) -> bool:
        """Whether the region is in a joint state."""
        return any(peer.role in JOINT for peer in self.peers)

    def has_quorum(self, up: Collection[int]) -> bool:
        """Whether most voters are on stores that are up; in a joint state most old and most new voters."""

        def most(roles: Collection[Role]) -> bool:
            stores = [peer.store_id for peer in self.peers if peer.role in roles]
            return sum(store in up for store in stores) * 2 > len(stores)

        # Raft's joint consensus: both the old and the new configuration must agree, or each could elect a
        # leader.
        return most((Role.VOTER, Role.DEMOTING_VOTER)) and most((Role.VOTER, Role.INCOMING_VOTER))

    def contains(self, key: bytes) -> bool:
        """Whether an encoded key is in the range."""
        return self.start <= key and (not self.end or key < self.end)

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Whether the region overlaps [start, end)."""
        return (not end or self.start < end) and (not self.end or start < self.end)


def split_keys(count: int) -> list[bytes]:
    """`count` - 1 encoded split keys where tables of a TiDB cluster are likely to have rows.

    The first user tables of a new cluster have ids from 118 on, usually every second one. The split keys go
    from table to table, alternately inside the rows and at the table's start. So there are tables with
    several regions, and regions with several tables.
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
    """The regions between ascending encoded boundaries; n boundaries make n + 1 regions.

    The leaders are distributed over the `stores` in turn; the other peers are on the following stores.
    """
    if any(left >= right for left, right in pairwise(boundaries)) or b"" in boundaries:
        raise InvalidInput("region split keys must ascend and not be empty")
    starts = [b"", *boundaries]
    ends = [*boundaries, b""]
    # Two peers would be worse than one: both must be up for a quorum.
    replicas = REPLICAS if stores >= REPLICAS else 1
    regions = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        number = FIRST_REGION_ID + i
        on = [STORE_ID + (i + j) % stores for j in range(replicas)]
        peers = tuple(Peer(number + (j + 1) * PEER_IDS, store) for j, store in enumerate(on))
        regions.append(Region(number, start, end, peers=peers, leader=on[0]))
    return regions
