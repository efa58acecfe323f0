"""A capture among those that share an etcd, in the event loop: its session, the others, its turn as owner.

`server.membership` makes the calls, which block; this keeps the session and looks at what etcd has while the
capture runs. When the session ends, or nobody looks at the other captures any more, the capture is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.election import Candidate
from tidegate.log import event
from tidegate.server.lifetime import Lifetime
from tidegate.server.membership import CHECK_S, LOOK_S, CaptureInfo, Membership

LOG: Final = logging.getLogger(__name__)

CAPTURES_S: Final = 0.5
"""How often is looked which captures there are."""

T = TypeVar("T")


async def until_etcd_answers(lifetime: Lifetime, work: Callable[[], T], what: str) -> T:
    """The result of a call to etcd, however long that takes; see `Lifetime.until`."""
    return await lifetime.until(
        work, what, lambda error: event(LOG, logging.WARNING, "waiting for etcd", error=str(error))
    )


class Candidacy:
    """One session of a capture: `register`, `until_elected`, `close`, in this order.

    `captures` and `owner` are those that were read last; the others may know more.
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
        """Who owns the feeds while this capture stands by."""
        self._client, self._where, self._lifetime, self._standing_by = client, where, lifetime, standing_by
        self._watches: list[asyncio.Task[None]] = []

    async def register(self) -> int:
        """Be seen by the others, and see them; the revision of this capture's key.

        It waits until this capture's last session, if that lasts, has ended.
        """
        self._watches.append(asyncio.create_task(self._watch_session(), name="session"))
        what = f"{self._where}: the capture's last session to end"
        epoch = await until_etcd_answers(self._lifetime, self.member.register, what)
        seeing = asyncio.create_task(self._watch_captures(), name="captures")
        seeing.add_done_callback(self._on_watch_end)
        self._watches.append(seeing)
        return epoch

    async def until_elected(self) -> Candidate:
        """Stand, and wait for our turn; the key and revision of an owner. Raises when the capture is lost."""
        member, lifetime = self.member, self._lifetime
        await until_etcd_answers(lifetime, member.stand, f"{self._where} to answer")
        shown = None
        while True:
            lifetime.raise_if_lost()
            try:
                owner = await asyncio.to_thread(member.owner)
                if owner is not None and member.is_mine(owner):
                    break
                if owner is not None and owner != shown:
                    await self._stand_by(owner.capture)
                    shown = owner
            except Retryable as error:  # the session says when this has lasted too long
                event(LOG, logging.WARNING, "etcd does not answer", error=str(error))
            await asyncio.sleep(LOOK_S)
        lifetime.waiting_for, self.owner = "", None
        event(LOG, logging.INFO, "elected", capture=member.me.name, owner_rev=owner.revision)
        return owner

    async def leave(self) -> None:
        """End the session, so that the next owner need not wait until it has run out. May be called again."""
        if self._lifetime.lost.done():
            self._client.hurry()
        try:
            await asyncio.to_thread(self.member.close)
        except TidegateError as error:
            event(LOG, logging.WARNING, "session ends by itself", error=str(error))

    async def close(self) -> None:
        """Look no more, and leave."""
        for watch in reversed(self._watches):
            watch.cancel()
        await self.leave()

    def over(self) -> TidegateError | None:
        """Why nothing may be written any more."""
        if self._lifetime.lost.done():
            return self._lifetime.lost.result()
        return None if self.member.holds else self.member.lost()

    def ids(self) -> dict[str, str]:
        """The captures that are there: their ids, by their names in grants."""
        me = self.member.me
        return {one.name: one.id for one in self.captures} | {me.name: me.id}

    def others(self) -> dict[str, str]:
        """The other captures that are there: the addresses of their APIs, by their names in grants."""
        return {one.name: one.address for one in self.captures if one.name != self.member.me.name}

    async def _stand_by(self, name: str) -> None:
        found = await asyncio.to_thread(self.member.captures)
        self.owner = next((one for one in found if one.name == name), None)
        address = self.owner.address if self.owner is not None else ""
        at = f" at {address}" if self.owner is not None else ""
        self._lifetime.waiting_for = f"its turn: capture {name}{at} is the owner"
        event(LOG, logging.INFO, "standing by", owner=name, owner_addr=address)
        self._standing_by()

    async def _watch_session(self) -> None:
        while self.member.holds:
            self.member.beat()
            await asyncio.sleep(CHECK_S)
        self._lifetime.lose(self.member.lost())

    async def _watch_captures(self) -> None:
        """Know which captures there are."""
        failed = False
        while True:
            try:
                self.captures = tuple(await asyncio.to_thread(self.member.captures))
                failed = False
            except TidegateError as error:  # those known before may still be there
                if not failed:
                    event(LOG, logging.WARNING, "captures not read", error=str(error))
                failed = True
            await asyncio.sleep(CAPTURES_S)

    def _on_watch_end(self, watch: asyncio.Task[None]) -> None:
        """A defect must end the session: without it nobody would notice captures that come and go."""
        if not watch.cancelled() and (error := watch.exception()) is not None:
            why = f"{type(error).__name__}: {error}"
            self._lifetime.lose(
                Fatal("The capture does not see the others any more.", why=why, fix="start it again")
            )
