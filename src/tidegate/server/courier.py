"""Sends messages to other captures over their HTTP API, in batches, one request at a time to each.

    send(capture, message) --> queue of that capture --> POST /api/v2/messages

Messages replace one another and are repeated by their senders, so the courier promises little: what could not
be sent is tried again while it is among the newest `QUEUE_MAX`, and may arrive twice if an answer is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import httpx

from tidegate.access import Token
from tidegate.errors import InvalidInput
from tidegate.log import event
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)

PATH: Final = "/api/v2/messages"
SENDER: Final = "x-tidegate-capture"
"""The header with the sender's name in grants."""
CLUSTER: Final = "x-tidegate-cluster"
QUEUE_MAX: Final = 4096
"""Messages that wait for one capture; if there are more, the oldest are dropped: they are repeated."""
BATCH_BYTES: Final = 1 << 20
"""A request has at most so many, or one message."""
ANSWER_S: Final = 5.0
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
IDLE_S: Final = 60.0
"""The connection to a capture to which nothing was sent for so long is closed."""


def scheme(tls: Tls | None) -> str:
    """Of the addresses of captures: all of a cluster have an API with TLS, or none has."""
    return "http" if tls is None else "https"


def peer_client(
    tls: Tls | None, timeout_s: float, headers: dict[str, str] | None = None
) -> httpx.AsyncClient:
    """Asks other captures. Raises InvalidInput when a certificate cannot be read."""
    verify = True if tls is None else tls.http_client()
    return httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=verify, headers=headers)


class Courier:
    """The sending side. One asyncio loop."""

    def __init__(
        self,
        me: str,
        cluster: int,
        address_of: Callable[[str], str],
        token: Token | None,
        tls: Tls | None = None,
    ) -> None:
        """`me`: this capture's name in grants. `address_of`: of another's API by its name, empty while it is
        not there. `tls`: what APIs of captures ask for, None: nothing.
        """
        self._address_of, self._tls = address_of, tls
        self._headers = {SENDER: me, CLUSTER: str(cluster), "content-type": "application/json"}
        self._headers |= token.header if token is not None else {}
        self._routes: dict[str, _Route] = {}

    def send(self, capture: str, message: bytes) -> None:
        """Soon; returns at once."""
        route = self._routes.get(capture)
        if route is None or route.task.done():
            route = self._routes[capture] = _Route()
            route.task = asyncio.create_task(self._carry(capture, route), name=f"messages to {capture}")
        route.waiting.append(message)
        route.some.set()

    async def stop(self) -> None:
        """Send no more."""
        tasks = [route.task for route in self._routes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, capture: str, route: _Route) -> None:
        """Until nothing was sent for `IDLE_S`."""
        try:
            opened = peer_client(self._tls, ANSWER_S, self._headers)
        except InvalidInput as error:
            # The next message tries again, with what the files hold then.
            event(LOG, logging.WARNING, "messages not sent", capture=capture, why=str(error))
            await asyncio.sleep(RETRY_MAX_S)
            return
        async with opened as client:
            failures, said = 0, ""
            while await route.wait(IDLE_S):
                batch = route.batch()
                why, again = await self._post(client, capture, batch)
                if why and why != said:
                    event(LOG, logging.WARNING, "messages not sent", capture=capture, why=why)
                said = why
                if not again:
                    route.sent(batch)
                    failures = 0
                    continue
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2**failures))
                failures = min(failures + 1, 10)

    async def _post(self, client: httpx.AsyncClient, capture: str, batch: list[bytes]) -> tuple[str, bool]:
        """Why it failed, empty if it did not; and whether the same batch is to be sent again."""
        address = self._address_of(capture)
        if not address:
            return "it is not among the captures", False  # they are said again if it comes back
        try:
            url = f"{scheme(self._tls)}://{address}{PATH}"
            answer = await client.post(url, content=b"[" + b",".join(batch) + b"]")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}", True
        # What it cannot read it could not read later either, and what comes next would wait behind it.
        refused = 400 <= answer.status_code < 500 and answer.status_code not in (401, 403, 429)
        return ("", False) if answer.is_success else (f"{address} answers {answer.status_code}", not refused)


class _Route:
    """What waits for one capture."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque(maxlen=QUEUE_MAX)
        self.some = asyncio.Event()
        self.task: asyncio.Task[None]

    async def wait(self, most_s: float) -> bool:
        """Whether something waits, within so many seconds."""
        try:
            async with asyncio.timeout(None if self.waiting else most_s):
                await self.some.wait()
        except TimeoutError:
            return bool(self.waiting)
        return True

    def batch(self) -> list[bytes]:
        """The oldest, as many as go into one request."""
        found: list[bytes] = []
        size = 0
        for message in self.waiting:
            size += len(message) + 1
            if found and size > BATCH_BYTES:
                break
            found.append(message)
        return found

    def sent(self, batch: list[bytes]) -> None:
        """Drop them; newer ones may have pushed some out meanwhile."""
        for message in batch:
            if self.waiting and self.waiting[0] is message:
                self.waiting.popleft()
        if not self.waiting:
            self.some.clear()
