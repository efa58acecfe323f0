"""A capture among others: its name, its session in etcd, and its place in the election.

    etcd answers -> session -> capture key -> stand -> [another is the owner] ... -> elected
                                                          the session ends at any time --> SessionLost

The name is the data folder's: what the capture was granted before it died is known under it. The id is the
process's, as TiCDC has it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidegate.control.metadata import FeedId
from tidegate.disk import replace_file
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.election import Candidate, Election, capture_prefix, put_leased
from tidegate.etcd.metadata import EtcdMetadata
from tidegate.etcd.session import Session

NAME_FILE: Final = "capture-name"
LOOK_S: Final = 0.25
"""How often a capture that stands by looks whether it is the owner."""
CHECK_S: Final = 0.1
"""How often it looks whether its session holds."""
AGAIN_S: Final = 1.0
"""Before a capture that has lost its session stands again."""


class SessionLost(Fenced):
    """Another capture may own the feeds by now."""


class Resigned(Fenced):
    """It was asked to let another capture own the feeds."""


def unreached(feed: FeedId) -> Resigned:
    """Upstream reaches other captures and not the owner, whose bound then holds back all of them."""
    return Resigned(
        "The capture resigns as owner, because upstream does not reach it.",
        where=f"changefeed {feed}",
        why="other captures receive changes, and this one has received none for minutes",
        fix="check the network between this capture and PD and TiKV; another capture owns the changefeeds "
        "meanwhile",
    )


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What a capture says of itself in its key."""

    id: str
    name: str
    address: str
    """Of its API."""
    version: str

    def to_bytes(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CaptureInfo:
        """Raises InvalidInput when it is not one."""
        try:
            body = json.loads(data)
            return cls(*(str(body[name]) for name in ("id", "name", "address", "version")))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput("A capture's key in etcd is damaged.", why=repr(error)) from error


class Membership:
    """One session of one capture. Blocks as etcd does; raises Retryable while that does not answer."""

    def __init__(self, client: EtcdClient, cluster: int, me: CaptureInfo, ttl_s: int) -> None:
        self.metadata, self.me = EtcdMetadata(client), me
        self._client, self._cluster = client, cluster
        self._session = Session(client, ttl_s)
        self._election = Election(client, cluster, self._session.lease, me.name)

    def register(self) -> int:
        """Say that we are there; the revision at which we do. Raises Retryable while our last session, or
        another's, has the name, or ours has ended.
        """
        key = capture_prefix(self._cluster) + self.me.name
        put_leased(self._client, key, self.me.to_bytes(), self._session.lease)
        found = self.metadata.get(key)
        if found is None:
            raise Retryable("The capture's session has ended.", where=key)
        return found.mod_revision

    def stand(self) -> None:
        """Be a candidate."""
        self._election.stand()

    def owner(self) -> Candidate | None:
        """Who is elected; None: nobody."""
        return self._election.owner()

    def is_mine(self, owner: Candidate) -> bool:
        """Whether that is this session's candidate."""
        return owner.key == self._election.key

    def captures(self) -> list[CaptureInfo]:
        """All that are there now, by name."""
        return [CaptureInfo.from_bytes(kv.value) for kv in self.metadata.under(capture_prefix(self._cluster))]

    def evict(self, capture: str) -> bool:
        """End another capture's session: it stops what it does within a moment, and registers again as a new
        one. False: it is not there.
        """
        found = self._client.range((capture_prefix(self._cluster) + capture).encode()).kvs
        if not found:
            return False
        self._client.revoke(int(found[0].lease))
        return True

    def beat(self) -> None:
        """Say that the control process gets on: its session is renewed for some time because of that."""
        self._session.beat()

    @property
    def holds(self) -> bool:
        """Whether nobody else can be the owner yet, if we are."""
        return self._session.holds

    def lost(self) -> SessionLost:
        """Why it does not."""
        return SessionLost(
            "The capture's session in etcd has ended.",
            where=self._client.where,
            why=self._session.why_lost,
            fix="nothing, if etcd can be reached again: the capture stands by then",
        )

    def close(self) -> None:
        """End the session: another is elected at once."""
        self._session.close()


def capture_name(data_dir: Path) -> str:
    """The name that belongs to a data folder, given once: 12 hex digits."""
    file = data_dir / NAME_FILE
    try:
        found = file.read_text("ascii").strip()
    except FileNotFoundError:
        found = uuid.uuid4().hex[:12]
        replace_file(file, found.encode())
    if len(found) != 12 or not set(found) <= set("0123456789abcdef"):
        raise InvalidInput(
            "The capture's name is damaged.",
            where=str(file),
            why="it is not 12 hex digits",
            fix="restore the file, or start with a new --data-dir",
        )
    return found
