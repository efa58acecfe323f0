"""The pullers of a capture: for each kv mode a process, the event store it writes, the spans it follows.

    of(kv_mode) -> process started -> hello -> reports ... -> process ended -> a pause -> process started ...
                                                 silence -> killed

Losing a puller only costs time: the next one reads the same event store, and follows the same spans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from tidegate import metrics, program
from tidegate.clock import Clock
from tidegate.config.values import TABLE_MODE
from tidegate.control.metadata import FeedError
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.disk import disk_bytes
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event, redact
from tidegate.model.reports import ConnectionClosed, Failed, FromPuller, PullerHello, Refused, Status
from tidegate.server.catalogue.catalogues import Catalogues
from tidegate.server.pulling.puller_process import store_dir
from tidegate.server.pulling.spans import Captured, SpanRegistry
from tidegate.server.supervision.processes import described
from tidegate.server.supervision.supervisor import Child, Connection, Spawn, spawn

LOG: Final = logging.getLogger(__name__)

RESTART_FIRST_S: Final = 0.2
RESTART_MAX_S: Final = 5.0
PULLER_START_S: Final = 600.0
"""How long a puller may take to its first report. It opens its store, and compiles kernels if this machine
has none yet.
"""
WATCH_S: Final = 0.5
"""How often the pullers' reports are checked."""
RESERVE_MAX: Final = 20 << 30
"""The event store need not leave more than this free, however large the disk is."""
HEALTHY_S: Final = 30.0
"""A puller that ran for this long is restarted after the shortest pause."""


@dataclass(frozen=True, slots=True)
class PullerOptions:
    """The settings with which the pullers of a capture are started."""

    pd: str
    data_dir: Path
    cluster: int
    address: str
    """The address of the capture's API, shown in errors."""
    event_store_bytes: int
    """The disk quota of each event store; 0: none."""
    event_store_reserve: float
    """The share of the disk that each event store leaves free, limited to RESERVE_MAX bytes."""
    timeout_s: float
    """A puller that follows spans and reports nothing for this long is killed and restarted."""
    spawn: Spawn = spawn
    """Starts pullers, which must end when this process does."""


class Pullers:
    """Keeps one puller running for each requested kv mode until `stop`."""

    def __init__(
        self,
        options: PullerOptions,
        clock: Clock,
        open_catalogues: Callable[[Path], Catalogues],
        on_error: Callable[[FeedError], None],
    ) -> None:
        """`open_catalogues` takes the tables' event store. `on_error` is called with each puller error."""
        self.processes: dict[str, Child] = {}
        """The processes started last, by kv mode."""
        self._options, self._clock, self._on_error = options, clock, on_error
        self._open_catalogues = open_catalogues
        self._modes: dict[str, Captured] = {}
        self._report_counts: dict[int, int] = {}
        """The number of reports of each puller, by process id. Its hello, sent before it opens the store,
        does not count.
        """
        self._supervisors: list[asyncio.Task[None]] = []
        self._trouble = ("", 0)
        """The last error that a puller has reported, and when it was first reported, in ms."""

    def of(self, kv_mode: str) -> Captured:
        """The event store of a kv mode, and the spans to follow; the first call starts the puller."""
        if kv_mode not in self._modes:
            store = store_dir(self._options.data_dir, self._options.cluster, kv_mode)
            store.mkdir(parents=True, exist_ok=True)
            catalogues = self._open_catalogues(store) if kv_mode == TABLE_MODE else None
            self._modes[kv_mode] = Captured(store, SpanRegistry(kv_mode), catalogues)
            supervisor = asyncio.create_task(self._supervise(kv_mode), name=f"puller supervisor {kv_mode}")
            self._supervisors.append(supervisor)
        return self._modes[kv_mode]

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return len(self.processes) == len(self._modes) and all(one.alive for one in self.processes.values())

    async def stop(self) -> None:
        """End the processes."""
        for supervisor in self._supervisors:
            # First, because they would start the processes again.
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        await asyncio.gather(*(puller.stop() for puller in self.processes.values()))

    def receive(self, connection: Connection, puller: PullerHello, report: FromPuller) -> None:
        """Take a report of a puller; its hello on this connection says which puller it is."""
        spans = self.of(puller.kv_mode).spans
        if isinstance(report, Status | Failed):
            self._report_counts[puller.pid] = self._report_counts.get(puller.pid, 0) + 1
        match report:
            case PullerHello():
                spans.connect(connection)
            case ConnectionClosed():
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
        """An error with the time of its first report, so that users see since when it lasts."""
        text = redact("\n".join(filter(None, (failed.what, failed.where, failed.why, failed.fix))))
        # The same error comes with each retry. Its first time is the one that a person needs.
        if text != self._trouble[0]:
            self._trouble = (text, self._clock.now_ms())
        return FeedError(text, "CDC:ErrPuller", self._trouble[1], self._options.address)

    async def _supervise(self, kv_mode: str) -> None:
        """Start the puller of a mode, and restart it with a growing pause whenever it ends."""
        options, wait = self._options, RESTART_FIRST_S
        keep_free = self._keep_free()
        given = options.data_dir, options.pd, str(options.event_store_bytes), kv_mode, str(keep_free)
        command = program.command("tidegate.server.pulling.puller_process", *given)
        event(LOG, logging.INFO, "event store leaves disk free", kv_mode=kv_mode, bytes=keep_free)
        name = "puller" if kv_mode == TABLE_MODE else f"puller-{kv_mode}"
        while True:
            began = self._clock.monotonic()
            try:
                puller = await options.spawn(name, command, options.data_dir / f"{name}.log")
            except (OSError, TidegateError) as error:  # for example no disk space for its log
                event(LOG, logging.WARNING, "puller not started", kv_mode=kv_mode, error=str(error))
                # The supervisor must outlive a full disk, because nothing else would start the puller again.
                await asyncio.sleep(RESTART_MAX_S)
                continue
            self.processes[kv_mode] = puller
            await self._watch(kv_mode, puller)
            code = await puller.wait()
            event(LOG, logging.WARNING, "puller ended", kv_mode=kv_mode, exit_code=code)
            metrics.restarts.labels("puller").inc()
            healthy = self._clock.monotonic() - began > HEALTHY_S
            # One that has run for a while did not fail at its start, so its successor need not wait.
            wait = RESTART_FIRST_S if healthy else min(RESTART_MAX_S, wait * 2)
            await asyncio.sleep(wait)

    def _keep_free(self) -> int:
        """Bytes of the disk that each event store leaves free."""
        share = round(disk_bytes(self._options.data_dir) * self._options.event_store_reserve)
        return min(share, RESERVE_MAX)

    async def _watch(self, kv_mode: str, puller: Child) -> None:
        """Wait until the puller has ended; kill one that has spans to follow and reports nothing."""
        watchdog = Watchdog()
        ended = asyncio.create_task(puller.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=WATCH_S)
                reports, spans = self._report_counts.get(puller.pid, 0), len(self._modes[kv_mode].spans.held)
                # Without spans a puller has nothing to report, so its silence proves nothing.
                work = "its start" if not reports else f"{spans} spans to follow" if spans else ""
                patience = self._options.timeout_s if reports else PULLER_START_S
                hung = watchdog.step(self._clock.monotonic(), work, reports, patience)
                if hung is not None and not ended.done():
                    self._on_hung(hung, puller)
                    # No grace: a process that is stopped or hangs would not see a polite signal.
                    await puller.stop(grace_s=0)
        finally:
            ended.cancel()
            # A later puller may get the same process id. With this count its slow start would be taken for
            # a hang.
            self._report_counts.pop(puller.pid, None)

    def _on_hung(self, hung: Hung, puller: Child) -> None:
        error = Retryable(
            f"the puller was silent for {hung.silent_s:.0f} s: it is killed and restarted",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(puller.pid)}",
            fix="nothing, and nothing is lost; on a machine that is only too slow raise --puller-timeout",
        )
        event(LOG, logging.ERROR, "puller is hung", error=str(error))
        now = self._clock.now_ms()
        self._on_error(FeedError(str(error), "CDC:ErrPullerHung", now, self._options.address))
