"""A capture in the shared etcd: its name, its session, and its place in the election.

    etcd answers -> session -> capture key -> stand -> [another is the owner] ... -> elected
                                                          the session ends at any time --> SessionLost

The name belongs to the data folder, so that a restarted capture finds what it was granted before. The id
belongs to the process, as in TiCDC.
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
LOOK_S: Final = 0.1
"""How often a standby checks whether it is the owner: one small request to etcd. After the loss of an owner
nothing is announced until then.
"""
CHECK_S: Final = 0.1
"""How often a capture checks whether its session is still valid."""
AGAIN_S: Final = 1.0
"""The pause before a capture that has lost its session campaigns again."""


class SessionLost(Fenced):
    """Another capture may own the feeds by now."""


class Resigned(Fenced):
    """The capture was asked to let another one own the feeds."""


def unreached(feed: FeedId) -> Resigned:
    """Upstream reaches other captures but not the owner, whose bound then holds back all of them."""
    return Resigned(
        "the capture resigns as owner, because upstream does not reach it",
        where=f"changefeed {feed}",
        why="other captures receive changes, and this one has received none for minutes",
        fix="check the network between this capture and PD and TiKV; another capture owns the changefeeds "
        "meanwhile",
    )


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """The content of a capture's key in etcd."""

    id: str
    name: str
    address: str
    """The address of its API."""
    version: str

    def to_bytes(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CaptureInfo:
        """Raises InvalidInput if the stored value is damaged."""
        try:
            body = json.loads(data)
            return cls(*(str(body[name]) for name in ("id", "name", "address", "version")))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                "a capture's key in etcd is damaged", why=repr(error), fix="restart that capture"
            ) from error


class Membership:
    """One session of one capture. Calls block as etcd does, and raise Retryable if it does not answer."""

    def __init__(
        self, client: EtcdClient, cluster: int, me: CaptureInfo, ttl_s: int, earlier: int = 0
    ) -> None:
        """`earlier`: the lease of this process's last session, whose work has ended; 0: it had none."""
        self.metadata, self.me = EtcdMetadata(client), me
        self._client, self._cluster = client, cluster
        if earlier:
            # Its keys are in the way: that of our name, and if it was the owner, of all candidates. A member
            # of etcd that becomes the leader gives each lease its whole TTL again.
            client.revoke(earlier)
        self._session = Session(client, ttl_s)
        self._election = Election(client, cluster, self._session.lease, me.name)

    @property
    def lease(self) -> int:
        """The session's lease in etcd."""
        return self._session.lease

    def register(self) -> int:
        """Write this capture's key; returns its revision. Raises Retryable while another session, such as our
        last one, has the name, or if our session has ended.
        """
        key = capture_prefix(self._cluster) + self.me.name
        put_leased(self._client, key, self.me.to_bytes(), self._session.lease)
        # Read back, because the key may be from an earlier attempt whose answer was lost.
        found = self.metadata.get(key)
        if found is None:
            raise Retryable("the capture's session has ended", where=key)
        return found.mod_revision

    def stand(self) -> None:
        """Become a candidate."""
        self._election.stand()

    def step_down(self, revision: int) -> None:
        """Let another candidate be elected; `revision`: by which we are the owner."""
        self._election.step_down(revision)

    def owner(self) -> Candidate | None:
        """The elected candidate; None: there is none."""
        return self._election.owner()

    def is_mine(self, owner: Candidate) -> bool:
        """Whether this is the candidate of our session."""
        return owner.key == self._election.key

    def captures(self) -> list[CaptureInfo]:
        """All captures that have a session now, by name."""
        return [CaptureInfo.from_bytes(kv.value) for kv in self.metadata.under(capture_prefix(self._cluster))]

    def evict(self, capture: str) -> bool:
        """End another capture's session. That capture stops its work within a moment and registers a new
        session. False: there is no such capture.
        """
        found = self._client.range((capture_prefix(self._cluster) + capture).encode()).kvs
        if not found:
            return False
        self._client.revoke(int(found[0].lease))
        return True

    def beat(self) -> None:
        """Report that the control process makes progress; without that the session soon ends."""
        self._session.beat()

    @property
    def holds(self) -> bool:
        """Whether the session is valid: if we are the owner, nobody else can be yet."""
        return self._session.holds

    def lost(self) -> SessionLost:
        """The error that says why the session has ended."""
        return SessionLost(
            "the capture's session in etcd has ended",
            where=self._client.where,
            why=self._session.why_lost,
            fix="nothing, if etcd can be reached again: the capture then waits to be elected",
        )

    def close(self) -> None:
        """End the session, so that another owner is elected at once."""
        self._session.close()


def capture_name(data_dir: Path) -> str:
    """The name of a data folder, which it gets once: 12 hex digits."""
    file = data_dir / NAME_FILE
    try:
        found = file.read_text("ascii").strip()
    except FileNotFoundError:
        found = uuid.uuid4().hex[:12]
        # Written before it is used: keys in the metadata have this name, and it must survive a restart.
        replace_file(file, found.encode())
    if len(found) != 12 or not set(found) <= set("0123456789abcdef"):
        raise InvalidInput(
            "the capture's name is damaged",
            where=str(file),
            why="it is not 12 hex digits",
            fix="restore the file, or start with a new --data-dir",
        )
    return found
