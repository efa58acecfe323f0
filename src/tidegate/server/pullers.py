"""The pullers of a capture: a process for each kv mode, the event store it fills, the spans it follows.

    of(kv_mode) -> process started -> hello -> reports ... -> process ended -> a pause -> process started ...
                                                 silence -> killed

A puller that is gone costs nothing but time: the next one reads the same event store, and follows the same
spans.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from tidegate import metrics
from tidegate.clock import Clock
from tidegate.config.values import TABLE_MODE
from tidegate.control.metadata import FeedError
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.disk import disk_bytes
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event, redact
from tidegate.model.reports import Failed, FromPuller, Gone, PullerHello, Refused, Status
from tidegate.server.catalogues import Catalogues
from tidegate.server.node import Captured
from tidegate.server.processes import described
from tidegate.server.puller_process import store_dir
from tidegate.server.spans import SpanRegistry
from tidegate.server.supervisor import Child, Connection, spawn

LOG: Final = logging.getLogger(__name__)

RESTART_FIRST_S: Final = 0.2
RESTART_MAX_S: Final = 5.0
PULLER_START_S: Final = 600.0
"""Patience with a puller that has not said anything yet: it opens its store, and compiles kernels where there
are none for this machine."""
WATCH_S: Final = 0.5
"""How often a puller's signs of life are looked at."""
RESERVE_MAX: Final = 20 << 30
"""However large a disk is, the event store need not leave more of it."""
HEALTHY_S: Final = 30.0
"""A puller that lived so long starts again without waiting."""


@dataclass(frozen=True, slots=True)
class PullerOptions:
    """What the pullers of a capture are started with."""

    pd: str
    data_dir: Path
    cluster: int
    address: str
    """Of the capture's API, for errors."""
    event_store_bytes: int
    """The disk quota of each event store; 0: none."""
    event_store_reserve: float
    """The share of the disk that each event store leaves to others, of at most RESERVE_MAX bytes."""
    timeout_s: float
    """A puller that follows spans and says nothing for so long is killed and started again."""


class Pullers:
    """Keeps one puller running for each kv mode that was asked for, until `stop`."""

    def __init__(
        self,
        options: PullerOptions,
        clock: Clock,
        open_catalogues: Callable[[Path], Catalogues],
        on_error: Callable[[FeedError], None],
    ) -> None:
        """`open_catalogues` takes the tables' event store. `on_error` is called with each puller error."""
        self.processes: dict[str, Child] = {}
        """By kv mode, those that were started last."""
        self._options, self._clock, self._on_error = options, clock, on_error
        self._open_catalogues = open_catalogues
        self._modes: dict[str, Captured] = {}
        self._said: dict[int, int] = {}
        """How often each puller has reported, by its process id; it says hello before it opens its store."""
        self._keepers: list[asyncio.Task[None]] = []
        self._trouble = ("", 0)
        """The last error that a puller has reported, and its first time in ms."""

    def of(self, kv_mode: str) -> Captured:
        """The event store of a kv mode, and what its puller follows; the first call starts the puller."""
        if kv_mode not in self._modes:
            store = store_dir(self._options.data_dir, self._options.cluster, kv_mode)
            store.mkdir(parents=True, exist_ok=True)
            catalogues = self._open_catalogues(store) if kv_mode == TABLE_MODE else None
            self._modes[kv_mode] = Captured(store, SpanRegistry(kv_mode), catalogues)
            keeper = asyncio.create_task(self._keep(kv_mode), name=f"puller keeper {kv_mode}")
            self._keepers.append(keeper)
        return self._modes[kv_mode]

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return len(self.processes) == len(self._modes) and all(one.alive for one in self.processes.values())

    async def stop(self) -> None:
        """End the processes."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(puller.stop() for puller in self.processes.values()))

    def receive(self, connection: Connection, puller: PullerHello, report: FromPuller) -> None:
        """A report of the puller that has introduced itself on this connection."""
        spans = self.of(puller.kv_mode).spans
        if isinstance(report, Status | Failed):
            self._said[puller.pid] = self._said.get(puller.pid, 0) + 1
        match report:
            case PullerHello():
                spans.connect(connection)
            case Gone():
                spans.disconnect(connection)
            case Status():
                spans.receive_status(report)
            case Refused():
                spans.receive_refused(report)
            case Failed(what, where, why):
                event(LOG, logging.WARNING, "puller error", error=what, where=where, why=why)
                self._on_error(self._error(report))
            case _:
                assert_never(report)

    def _error(self, failed: Failed) -> FeedError:
        """The same words again carry the time of the first: since when it is so."""
        text = redact("\n".join(filter(None, (failed.what, failed.where, failed.why, failed.fix))))
        if text != self._trouble[0]:
            self._trouble = (text, self._clock.now_ms())
        return FeedError(text, "CDC:ErrPuller", self._trouble[1], self._options.address)

    async def _keep(self, kv_mode: str) -> None:
        """Start the puller of a mode, and start it again with a growing pause whenever it ends."""
        options, wait = self._options, RESTART_FIRST_S
        keep_free = self._keep_free()
        command = [sys.executable, "-m", "tidegate.server.puller_process", str(options.data_dir), options.pd]
        command += [str(options.event_store_bytes), kv_mode, str(keep_free)]
        event(LOG, logging.INFO, "event store leaves disk free", kv_mode=kv_mode, bytes=keep_free)
        name = "puller" if kv_mode == TABLE_MODE else f"puller-{kv_mode}"
        while True:
            began = self._clock.monotonic()
            try:
                puller = await spawn(name, command, options.data_dir / f"{name}.log")
            except (OSError, TidegateError) as error:  # no room for its log, for one
                event(LOG, logging.WARNING, "puller not started", kv_mode=kv_mode, error=str(error))
                await asyncio.sleep(RESTART_MAX_S)
                continue
            self.processes[kv_mode] = puller
            await self._watch(kv_mode, puller)
            code = await puller.wait()
            event(LOG, logging.WARNING, "puller ended", kv_mode=kv_mode, exit_code=code)
            metrics.restarts.labels("puller").inc()
            healthy = self._clock.monotonic() - began > HEALTHY_S
            wait = RESTART_FIRST_S if healthy else min(RESTART_MAX_S, wait * 2)
            await asyncio.sleep(wait)

    def _keep_free(self) -> int:
        """Bytes of the disk that each event store leaves free."""
        share = round(disk_bytes(self._options.data_dir) * self._options.event_store_reserve)
        return min(share, RESERVE_MAX)

    async def _watch(self, kv_mode: str, puller: Child) -> None:
        """Returns when the puller has ended; kills one that has spans to follow and says nothing."""
        watchdog = Watchdog()
        ended = asyncio.create_task(puller.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=WATCH_S)
                said, spans = self._said.get(puller.pid, 0), len(self._modes[kv_mode].spans.held)
                work = "its start" if not said else f"{spans} spans to follow" if spans else ""
                patience = self._options.timeout_s if said else PULLER_START_S
                hung = watchdog.step(self._clock.monotonic(), work, said, patience)
                if hung is not None and not ended.done():
                    self._on_hung(hung, puller)
                    await puller.stop(grace_s=0)
        finally:
            ended.cancel()
            self._said.pop(puller.pid, None)

    def _on_hung(self, hung: Hung, puller: Child) -> None:
        error = Retryable(
            f"The puller has said nothing for {hung.silent_s:.0f} s. It is killed and started again.",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(puller.pid)}",
            fix="nothing, and nothing is lost; on a machine that is only too slow raise --puller-timeout",
        )
        event(LOG, logging.ERROR, "puller stands still", error=str(error))
        now = self._clock.now_ms()
        self._on_error(FeedError(str(error), "CDC:ErrPullerHung", now, self._options.address))
