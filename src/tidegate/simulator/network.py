"""A network that delays, reorders, duplicates and loses messages between captures and requests to services.

Places are the names of captures, `etcd` and `sink`. A cut blocks one direction between two places. A message
that meets a cut is sent again for a while, so it may arrive much later; a request that meets a cut is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.errors import Retryable
from tidegate.simulator.timeline import Timeline
from tidegate.simulator.virtual_time import Process, Signal, Steps, VirtualTime

ETCD: Final = "etcd"
SINK: Final = "sink"
QUICK_S: Final = (0.0005, 0.005)
"""How long a message or a request takes, at least and at most."""
SLOW_S: Final = (0.05, 12.0)
"""How long a late message takes, at least and at most. Others overtake it."""
AGAIN_S: Final = (0.3, 2.0)
"""The pause before a message that met a cut is sent again, as in `server.captures.message_client`."""
ATTEMPTS: Final = 12
"""After this number of attempts a message is lost."""


@dataclass(slots=True)
class Conditions:
    """The shares of messages that are lost, duplicated and late."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0


@dataclass(slots=True)
class Network:
    """All connections between places."""

    time: VirtualTime
    timeline: Timeline
    conditions: Conditions = field(default_factory=Conditions)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    """(from, to) of each cut."""
    down: set[str] = field(default_factory=set)
    """The services that are down."""
    slow: dict[str, float] = field(default_factory=dict)
    """For each slow service, the factor by which its requests take longer."""

    def send(self, source: str, to: str, deliver: Callable[[], None]) -> None:
        """Send a message, which may arrive once, twice or never."""
        rng, conditions, counts = self.time.rng, self.conditions, self.timeline.counts
        counts["messages sent"] += 1
        # One draw decides between lost and doubled, so a message is never both.
        chance = rng.random()
        if chance < conditions.lost:
            counts["messages lost"] += 1
            return
        copies = 2 if chance < conditions.lost + conditions.doubled else 1
        counts["messages doubled"] += copies - 1
        for _ in range(copies):
            self.time.after(self._delay_s(), self._arrive, source, to, deliver, ATTEMPTS)

    def _delay_s(self) -> float:
        rng = self.time.rng
        if self.conditions.late and rng.random() < self.conditions.late:
            self.timeline.counts["messages late"] += 1
            return rng.uniform(*SLOW_S)
        return rng.uniform(*QUICK_S)

    def _arrive(self, source: str, to: str, deliver: Callable[[], None], attempts: int) -> None:
        # The cut is looked up on arrival, not on sending: a cut that begins meanwhile holds the message back.
        if (source, to) not in self.cuts:
            deliver()
        elif attempts > 1:
            self.time.after(self.time.rng.uniform(*AGAIN_S), self._arrive, source, to, deliver, attempts - 1)
        else:
            self.timeline.counts["messages cut off"] += 1

    def is_open(self, source: str, to: str) -> bool:
        """Whether a request from one place reaches another."""
        return (source, to) not in self.cuts and to not in self.down and source not in self.down

    def call(
        self, process: Process, source: str, service: str, work: Callable[[], Any], patience_s: float
    ) -> Steps[Any]:
        """Send one request to a service, and wait for its answer. Raises Retryable, or the error that `work`
        returns.

        If the request arrives, the service carries out `work` once, even if the process that asked is stopped
        or dead by then.
        """
        answer: list[Any] = []
        answered = Signal(self.time)
        factor = self.slow.get(service, 1.0)

        def reply(found: Any) -> None:
            answer.append(found)
            answered.set()

        def arrive() -> None:
            if self.is_open(source, service):
                found = work()
                # The work was carried out, and only its answer is lost. The caller cannot distinguish this
                # from a request that was lost, which is the case that retries must survive.
                if self.is_open(service, source):
                    self.time.within(process, self.time.rng.uniform(*QUICK_S) * factor, reply, found)

        self.time.after(self.time.rng.uniform(*QUICK_S) * factor, arrive)
        # A late answer changes nothing from here on: `reply` fills a list that nobody reads any more.
        if not (yield answered.wait(patience_s)):
            self.timeline.counts["requests without answer"] += 1
            raise Retryable(f"{service} does not answer", where=service)
        # Services return their errors. One that is raised in `arrive` leaves the queue and ends the run, as a
        # Violation must.
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]
