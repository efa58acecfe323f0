"""The session of a capture that shares an etcd: its lease, the other captures, and its turn as owner.

`server.captures.membership` makes the blocking calls. This module runs in the event loop: it keeps the
session alive and reads the list of captures. When the session ends, or the list is not read any more, the
capture is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.election import Candidate
from tidegate.log import event
from tidegate.server.captures.lifetime import Lifetime
from tidegate.server.captures.membership import CHECK_S, LOOK_S, CaptureInfo, Membership

LOG: Final = logging.getLogger(__name__)

CAPTURES_S: Final = 0.5
"""How often the list of captures is read."""
PAUSE_S: Final = 0.5
"""The longest pause between two attempts. While no capture reaches etcd nothing is delivered, so each second
counts when etcd is back, and an attempt is one small request.
"""

T = TypeVar("T")


async def until_etcd_answers(lifetime: Lifetime, work: Callable[[], T], what: str) -> T:
    """The result of a call to etcd, however long that takes; see `Lifetime.until`."""

    def on_wait(error: Retryable) -> None:
        event(LOG, logging.WARNING, "waiting for etcd", error=str(error))

    return await lifetime.until(work, what, on_wait, PAUSE_S)


class Candidacy:
    """One session of a capture: `register`, `until_elected`, `close`, in this order. Between the last two,
    the capture may step down and be elected again, any number of times.

    `captures` and `owner` have the values that were read last; etcd may have newer ones.
    """

    def __init__(
        self,
        client: EtcdClient,
        member: Membership,
        where: str,
        lifetime: Lifetime,
        standing_by: Callable[[], None],
    ) -> None:
        """`where`: the etcd, in words. `standing_by` is called whenever another capture is seen as owner."""
        self.member = member
        self.captures: tuple[CaptureInfo, ...] = ()
        self.owner: CaptureInfo | None = None
        """The owner of the feeds while this capture is a standby."""
        self._client, self._where, self._lifetime, self._standing_by = client, where, lifetime, standing_by
        self._watches: list[asyncio.Task[None]] = []
        self._has_left = False

    async def register(self) -> int:
        """Make this capture visible to the others, and read which others there are; returns its epoch.

        It waits until the previous session of this capture has ended, if there still is one.
        """
        # First. The wait below may last longer than the lease, which is renewed only while beats come.
        self._watches.append(asyncio.create_task(self._watch_session(), name="session"))
        what = f"{self._where}: the capture's last session to end"
        epoch = await until_etcd_answers(self._lifetime, self.member.register, what)
        seeing = asyncio.create_task(self._watch_captures(), name="captures")
        seeing.add_done_callback(self._on_watch_end)
        self._watches.append(seeing)
        return epoch

    async def until_elected(self) -> Candidate:
        """Become a candidate and wait until elected; the owner's key and revision. Raises if lost."""
        member, lifetime = self.member, self._lifetime
        await until_etcd_answers(lifetime, member.stand, f"{self._where} to answer")
        shown = None
        while True:
            lifetime.raise_if_lost()
            try:
                owner = await asyncio.to_thread(member.owner)
                if owner is not None and member.is_mine(owner):
                    # Read now: the last reading may still have the capture that was the owner, and the
                    # changefeeds would wait for its answer (`ProcessorLink.meet`).
                    # A damaged key of another capture must not end each one that is elected.
                    with contextlib.suppress(InvalidInput):
                        self.captures = tuple(await asyncio.to_thread(member.captures))
                    break
                # Once for each owner: to stand by asks etcd for the list of captures.
                if owner is not None and owner != shown:
                    await self._stand_by(owner.capture)
                    shown = owner
            except Retryable as error:  # the session ends if this lasts too long
                event(LOG, logging.WARNING, "etcd does not answer", error=str(error))
            await asyncio.sleep(LOOK_S)
        lifetime.waiting_for, self.owner = "", None
        event(LOG, logging.INFO, "elected", capture=member.me.name, owner_rev=owner.revision)
        return owner

    async def step_down(self, revision: int) -> None:
        """Let another capture be elected, and keep the session. After that, `until_elected` again.

        `revision`: by which this capture is the owner; it must not write as owner any more.
        """
        await asyncio.to_thread(self.member.step_down, revision)

    async def leave(self) -> None:
        """End the session, so that the next owner need not wait for the lease to expire. One attempt."""
        if self._has_left:
            return
        self._has_left = True
        if self._lifetime.lost.done():
            # The session is over, so nothing is gained by waiting for etcd.
            self._client.hurry()
        try:
            await asyncio.to_thread(self.member.close)
        except TidegateError as error:
            event(LOG, logging.WARNING, "session not ended, it will expire", error=str(error))

    async def close(self) -> None:
        """Stop watching, and leave."""
        for watch in reversed(self._watches):
            watch.cancel()
        await self.leave()

    def over(self) -> TidegateError | None:
        """Why this capture may not write any more; None if it may."""
        if self._lifetime.lost.done():
            return self._lifetime.lost.result()
        return None if self.member.holds else self.member.lost()

    def ids(self) -> dict[str, str]:
        """The ids of all captures that have a session, by their names in grants."""
        me = self.member.me
        return {one.name: one.id for one in self.captures} | {me.name: me.id}

    def others(self) -> dict[str, str]:
        """The API addresses of the other captures that have a session, by their names in grants."""
        return {one.name: one.address for one in self.captures if one.name != self.member.me.name}

    async def _stand_by(self, name: str) -> None:
        found = await asyncio.to_thread(self.member.captures)
        self.owner = next((one for one in found if one.name == name), None)
        address = self.owner.address if self.owner is not None else ""
        at = f" at {address}" if self.owner is not None else ""
        self._lifetime.waiting_for = f"its turn: capture {name}{at} is the owner"
        event(LOG, logging.INFO, "another capture is the owner", owner=name, owner_addr=address)
        self._standing_by()

    async def _watch_session(self) -> None:
        while self.member.holds:
            self.member.beat()
            await asyncio.sleep(CHECK_S)
        self._lifetime.lose(self.member.lost())

    async def _watch_captures(self) -> None:
        """Keep the list of captures up to date."""
        failed = False
        while True:
            try:
                self.captures = tuple(await asyncio.to_thread(self.member.captures))
                failed = False
            except TidegateError as error:  # the captures read before may still exist
                if not failed:
                    event(LOG, logging.WARNING, "captures not read", error=str(error))
                failed = True
            await asyncio.sleep(CAPTURES_S)

    def _on_watch_end(self, watch: asyncio.Task[None]) -> None:
        """End the session after a defect: otherwise nobody would notice captures that come and go."""
        if not watch.cancelled() and (error := watch.exception()) is not None:
            why = f"{type(error).__name__}: {error}"
            self._lifetime.lose(
                Fatal("the capture can no longer read the other captures", why=why, fix="start it again")
            )
