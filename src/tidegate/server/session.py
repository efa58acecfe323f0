"""A capture's session: its right to the metadata store, alone with its data folder or in a shared etcd.

A capture that is alone owns what its data folder has, and takes ownership at once. Captures that share an
etcd have a lease there, which the others see (`membership`), and hold an election (`candidacy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate import __version__
from tidegate.control.metadata import MetadataStore
from tidegate.disk import Ballast
from tidegate.etcd.client import EtcdClient
from tidegate.log import event
from tidegate.server.captures.candidacy import Candidacy, until_etcd_answers
from tidegate.server.captures.capture_process import CaptureProcess
from tidegate.server.captures.lifetime import Lifetime
from tidegate.server.captures.membership import CaptureInfo, Membership, capture_name
from tidegate.server.changefeeds.new_feed import Refused as RequestRefused
from tidegate.server.delivery.plan import Paths
from tidegate.server.metadata.ownership import identified, take_ownership
from tidegate.server.metadata.sqlite import SqliteMetadata

LOG: Final = logging.getLogger(__name__)

LOCAL: Final = "local"
"""The name in grants and transactional ids of a capture that does not share an etcd. It is the same for every
data folder, so a feed that is created again with another folder fences the writers of its predecessor.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The metadata store of a capture's changefeeds, and the capture's rights in it."""

    metadata: MetadataStore
    identity: str
    """The metadata store's id."""
    name: str
    """The capture's name in grants."""
    epoch: int
    """Greater than that of every earlier session with this name."""
    owner_rev: int
    """The owner's revision; 0 while another capture may be the owner."""


class CaptureSession:
    """One session of one capture, opened once. Lives in one asyncio loop."""

    def __init__(
        self,
        capture_id: str,
        process: CaptureProcess,
        lifetime: Lifetime,
        stack: contextlib.AsyncExitStack,
        standing_by: Callable[[], None],
    ) -> None:
        """`stack`: gets what must be closed. `standing_by`: see `Candidacy`."""
        self._id, self._process, self._lifetime, self._stack = capture_id, process, lifetime, stack
        self._standing_by = standing_by
        self._name = LOCAL
        self.candidacy: Candidacy | None = None
        """The lease in the shared etcd; None: this capture is alone, or has not come that far yet."""

    async def open_alone(
        self, cluster: int, paths: Paths, disk: ThreadPoolExecutor, ballast: Ballast
    ) -> Place:
        """Open the metadata store of the data folder, and take ownership of what it contains."""
        loop = asyncio.get_running_loop()
        metadata = await loop.run_in_executor(disk, SqliteMetadata, paths.metadata, ballast)
        self._stack.callback(metadata.close)
        prepare = partial(identified, metadata, cluster, str(paths.data_dir))
        identity = await loop.run_in_executor(disk, prepare)
        owner_rev = take_ownership(metadata, cluster, self._id)
        return Place(metadata, identity, LOCAL, epoch=owner_rev, owner_rev=owner_rev)

    async def open_etcd(self, cluster: int, etcd: str, data_dir: Path, address: str, ttl_s: int) -> Place:
        """Open the metadata store that several captures share, with a session of this capture.

        `etcd`: its endpoints. `address`: that of this capture's API. `ttl_s`: how long the session lasts
        without a renewal.
        """
        stack, me = self._stack, CaptureInfo(self._id, capture_name(data_dir), address, __version__)
        self._name = me.name
        client, where = EtcdClient(etcd), f"etcd at {etcd}"
        stack.callback(client.close)
        # Ended by the new session: otherwise this capture would wait for its own last session to expire.
        earlier = self._process.last_lease
        begin = partial(Membership, client, cluster, me, ttl_s, earlier)
        member = await until_etcd_answers(self._lifetime, begin, f"{where} to answer")
        # Kept by the process and not by the session, which ends with its lease.
        self._process.last_lease = member.lease
        candidacy = Candidacy(client, member, where, self._lifetime, self._standing_by)
        self.candidacy = candidacy
        stack.push_async_callback(candidacy.close)
        epoch = await candidacy.register()
        event(LOG, logging.INFO, "session begun", capture=me.name, etcd=etcd, ttl_s=ttl_s)
        prepare = partial(identified, member.metadata, cluster, etcd)
        identity = await until_etcd_answers(self._lifetime, prepare, f"{where} to answer")
        return Place(member.metadata, identity, me.name, epoch=epoch, owner_rev=0)

    # --- the captures of the cluster -----------------------------------------------------------------

    @property
    def membership(self) -> Membership | None:
        """The capture's session in the shared etcd; None: it is alone, or has not come that far yet."""
        return None if self.candidacy is None else self.candidacy.member

    @property
    def owner(self) -> CaptureInfo | None:
        """The owner of the feeds while this capture is a standby."""
        return None if self.candidacy is None else self.candidacy.owner

    @property
    def ids(self) -> dict[str, str]:
        """The ids of all captures that are running, by their names in grants."""
        return {LOCAL: self._id} if self.candidacy is None else self.candidacy.ids()

    def named(self, capture: str) -> str:
        """A capture's name in grants, found by its id or its name. Raises Refused."""
        for name, found in self.ids.items():
            if capture in (name, found):
                return name
        raise RequestRefused(
            "CDC:ErrCaptureNotExist",
            f"[CDC:ErrCaptureNotExist]capture not exists, {capture[:64]}",
            fix="choose one that `tidegate capture list` shows",
        )

    async def evict(self, capture: str) -> None:
        """End the session of another capture, which need not answer for that. Raises Refused."""
        name, member = self.named(capture), self.membership
        if member is None or name == self._name:
            raise RequestRefused(
                "CDC:ErrCaptureNotExist",
                "the owner cannot evict itself",
                fix="run `tidegate capture resign` first: another capture then becomes the owner",
            )
        await asyncio.to_thread(member.evict, name)
        event(LOG, logging.WARNING, "capture evicted", capture=name)
