"""Sends messages to other captures over their HTTP API, in batches, one request at a time to each capture.

    send(capture, message) --> queue of that capture --> POST /api/v2/messages

Each message replaces the one before, and its sender repeats it, so the client promises little. A message
that could not be sent is tried again while it is among the newest `QUEUE_MAX`. It may arrive twice if an
answer is lost.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.access import AccessToken
from tidegate.errors import InvalidInput
from tidegate.log import event
from tidegate.tls import Tls

if TYPE_CHECKING:
    import httpx

LOG: Final = logging.getLogger(__name__)

PATH: Final = "/api/v2/messages"
SENDER: Final = "x-tidegate-capture"
"""The header with the sender's name in grants."""
CLUSTER: Final = "x-tidegate-cluster"
QUEUE_MAX: Final = 4096
"""The most messages that wait for one capture. The oldest are dropped, because senders repeat them."""
BATCH_BYTES: Final = 1 << 20
"""The greatest size of a request; a single larger message is sent alone."""
ANSWER_S: Final = 5.0
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
IDLE_S: Final = 60.0
"""A connection that has sent nothing for this long is closed."""


def scheme(tls: Tls | None) -> str:
    """The URL scheme of the captures' addresses. All APIs of a cluster use TLS, or none does."""
    return "http" if tls is None else "https"


def peer_client(
    tls: Tls | None, timeout_s: float, headers: dict[str, str] | None = None
) -> httpx.AsyncClient:
    """A client for requests to other captures. Raises InvalidInput if a certificate cannot be read."""
    import httpx  # here, because its import takes 0.2 s, and most captures have no peer

    # Without TLS there is nothing to verify, and reading the certificates of all authorities takes 20 ms of
    # CPU for each client. A context without any trusts nobody.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.http_client()
    return httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=verify, headers=headers)


class MessageClient:
    """The queues to all other captures. Lives in one asyncio loop."""

    def __init__(
        self,
        me: str,
        cluster: int,
        address_of: Callable[[str], str],
        token: AccessToken | None,
        tls: Tls | None = None,
    ) -> None:
        """`me`: this capture's name in grants. `address_of`: the API address of another capture by its name,
        empty while that capture is not running. `tls`: the certificates for requests, None: plain HTTP.
        """
        self._address_of, self._tls = address_of, tls
        self._headers = {SENDER: me, CLUSTER: str(cluster), "content-type": "application/json"}
        self._headers |= token.header if token is not None else {}
        self._routes: dict[str, _Route] = {}

    def send(self, capture: str, message: bytes) -> None:
        """Queue a message; returns at once."""
        route = self._routes.get(capture)
        # A task ends after IDLE_S without a message, so that captures that are gone leave nothing.
        if route is None or route.task.done():
            route = self._routes[capture] = _Route()
            route.task = asyncio.create_task(self._carry(capture, route), name=f"messages to {capture}")
        route.waiting.append(message)
        route.some.set()

    async def stop(self) -> None:
        """Stop sending; messages that wait are dropped."""
        tasks = [route.task for route in self._routes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, capture: str, route: _Route) -> None:
        """Send until nothing was queued for `IDLE_S`."""
        failures, logged = 0, ""
        while await route.wait(IDLE_S):
            why = await self._carry_on(capture, route)
            if not why:
                failures, logged = 0, ""
                continue
            if why != logged:
                event(LOG, logging.WARNING, "messages not sent", capture=capture, why=why)
            logged = why
            await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2**failures))
            # Bounded, so that the power stays a small number however long the capture is gone.
            failures = min(failures + 1, 10)

    async def _carry_on(self, capture: str, route: _Route) -> str:
        """Send until a request fails; returns the reason. The next client reads the certificates again, so
        renewed ones are used.
        """
        try:
            opened = peer_client(self._tls, ANSWER_S, self._headers)
        except InvalidInput as error:
            return str(error)
        async with opened as client:
            while await route.wait(IDLE_S):
                batch = route.batch()
                why, again = await self._post(client, capture, batch)
                if not again:
                    route.sent(batch)
                if why:
                    return why
        return ""

    async def _post(self, client: httpx.AsyncClient, capture: str, batch: list[bytes]) -> tuple[str, bool]:
        """Send one batch; returns the reason of a failure, or "", and whether to send the batch again."""
        import httpx

        address = self._address_of(capture)
        if not address:
            return "it is not among the captures", False  # senders repeat the messages if it comes back
        try:
            url = f"{scheme(self._tls)}://{address}{PATH}"
            answer = await client.post(url, content=b"[" + b",".join(batch) + b"]")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}", True
        # A batch that was refused would be refused again, and would block the messages behind it.
        # These three may pass: a token is being replaced on one capture after the other, or the other one is
        # busy.
        refused = 400 <= answer.status_code < 500 and answer.status_code not in (401, 403, 429)
        return ("", False) if answer.is_success else (f"{address} answers {answer.status_code}", not refused)


class _Route:
    """The queue of messages to one capture."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque(maxlen=QUEUE_MAX)
        self.some = asyncio.Event()
        self.task: asyncio.Task[None]

    async def wait(self, most_s: float) -> bool:
        """Whether a message waits; returns after `most_s` seconds at the latest."""
        try:
            async with asyncio.timeout(None if self.waiting else most_s):
                await self.some.wait()
        except TimeoutError:
            return bool(self.waiting)
        return True

    def batch(self) -> list[bytes]:
        """The oldest messages, as many as fit into one request."""
        found: list[bytes] = []
        size = 0
        for message in self.waiting:
            size += len(message) + 1
            # Without `found` a message larger than a request would never go out.
            if found and size > BATCH_BYTES:
                break
            found.append(message)
        return found

    def sent(self, batch: list[bytes]) -> None:
        """Remove the sent messages; newer ones may have displaced some of them meanwhile."""
        for message in batch:
            # By identity, because two messages may have the same bytes.
            if self.waiting and self.waiting[0] is message:
                self.waiting.popleft()
        if not self.waiting:
            self.some.clear()
