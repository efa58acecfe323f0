"""A capture's lease in etcd, and until when the capture may rely on it.

    grant --every TTL / 3--> renew, renew, ...        no answer for TTL - margin, or "it is gone" --> lost

etcd ends a lease one TTL after it has answered a renewal. The answer takes time to arrive, and the capture
may be stopped in between. So the capture counts the TTL from the moment when it *sent* the renewal, and stops
a margin earlier. Then its lease has ended by its own clock before another capture can take over by etcd's
clock. Its clock is one that also runs while the machine sleeps (CLOCK_BOOTTIME).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from tidegate.errors import TidegateError
from tidegate.etcd.client import EtcdClient, Unanswered

LEAST_TTL_S: Final = 3
RENEWALS: Final = 3
"""How often a lease is renewed within its TTL."""
MARGIN: Final = 0.2
"""The share of a TTL by which the capture stops relying on its lease early."""
BEATS: Final = 3
"""TTLs without a beat after which a lease is not renewed, as this thread may run while the process hangs."""
PAUSE_S: Final = 0.1
"""The pause after a renewal that was not answered."""


def now_s() -> float:
    """Seconds by a clock that does not jump, and also runs while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(slots=True)
class LocalLease:
    """Until when this process may rely on a lease. Pure."""

    until: float = float("-inf")
    gone: bool = False

    def renewed(self, sent: float, ttl_s: int) -> None:
        """Note the answer to a renewal that was sent at `sent`."""
        if ttl_s <= 0:
            self.gone = True
        else:
            # From the moment of sending: etcd counts from the arrival of the request, which is later.
            self.until = max(self.until, sent + ttl_s * (1 - MARGIN))

    def holds(self, now: float) -> bool:
        """Whether no other capture can have taken over yet."""
        return not self.gone and now < self.until


class Session:
    """A lease that a thread renews until `close`. Raises Retryable if etcd does not answer at the start."""

    def __init__(self, client: EtcdClient, ttl_s: int) -> None:
        self._client, self._lease, self._ended = client, LocalLease(), threading.Event()
        sent = now_s()
        self.lease, self.ttl_s = client.grant_lease(ttl_s)
        self._lease.renewed(sent, self.ttl_s)
        self._beat = sent
        self.why_lost = "no answer of etcd"
        self._thread = threading.Thread(target=self._renew, name="etcd session", daemon=True)
        self._thread.start()

    @property
    def holds(self) -> bool:
        """Whether the capture may rely on its keys."""
        return self._lease.holds(now_s())

    def beat(self) -> None:
        """Report progress of the process. Without a beat for BEATS TTLs the session ends."""
        self._beat = now_s()

    def close(self) -> None:
        """End the lease, which deletes its keys, so that others need not wait for the TTL."""
        self._ended.set()
        self._client.revoke(self.lease)

    def _renew(self) -> None:
        pause = self.ttl_s / RENEWALS
        while not self._ended.wait(pause):
            sent = now_s()
            if sent - self._beat > BEATS * self.ttl_s:
                # To stop renewing is enough: `holds` ends by the clock, a margin before etcd ends the lease.
                self.why_lost = "the control process hangs"
                return
            try:
                self._lease.renewed(sent, self._client.keep_alive(self.lease, self.ttl_s / RENEWALS))
            except Unanswered as error:
                # Tried again soon, because the lease runs out meanwhile.
                self.why_lost, pause = str(error), PAUSE_S
                continue
            except TidegateError as error:  # etcd refuses us, and a later attempt would fail as well
                self.why_lost = str(error)
                return
            if self._lease.gone:
                self.why_lost = "etcd has ended the lease"
                return
            pause = self.ttl_s / RENEWALS
