"""A capture: one node that replicates. Control process, puller processes, one application for all feeds.

    async with capture(options) as node: ...      opens everything, ends everything

Only one capture can use a data folder (a lock on `DATA_DIR/lock`). At the start it waits until PD answers,
however long that takes; `waiting_for` says so. A capture that is alone then rewrites the cluster's owner key.
The key's new revision is the first part of every token that the capture grants, and it guards every write,
so a capture that was replaced cannot store anything. Captures that share an etcd hold an election instead:
each runs all its processes and waits until it is the owner (`server.captures.membership`). If its session
ends, the next capture of the same process takes over the application (`server.captures.capture_process`).
Children die with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, cast

from tidegate import kernel, program
from tidegate.access import AccessToken
from tidegate.clock import Clock, SystemClock
from tidegate.config.values import TABLE_MODE
from tidegate.control.gc import TTL_S
from tidegate.control.metadata import FeedError, FeedId
from tidegate.disk import Ballast
from tidegate.errors import Retryable, TidegateError
from tidegate.etcd.metadata import SCHEME
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.reports import (
    FromPipeline,
    FromPuller,
    PipelineHello,
    PullerHello,
    Report,
)
from tidegate.server.captures.candidacy import Candidacy
from tidegate.server.captures.capture_process import CaptureProcess
from tidegate.server.captures.data_folder import check_mode
from tidegate.server.captures.key_loads_client import KeyLoadsClient
from tidegate.server.captures.lifetime import Lifetime
from tidegate.server.captures.message_client import MessageClient
from tidegate.server.captures.recorder import Recorder, follow_nothing
from tidegate.server.captures.requests_in_flight import RequestsInFlight
from tidegate.server.catalogue.catalogues import Catalogues
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.changefeeds.reactor import Reactor
from tidegate.server.changefeeds.readers import Readers
from tidegate.server.delivery.application import ApplicationCommand
from tidegate.server.delivery.plan import Paths
from tidegate.server.delivery.sink_thread import OpenSink, open_owner
from tidegate.server.metadata.ownership import take_ownership
from tidegate.server.node import Node
from tidegate.server.processor.registry import ProcessorRegistry
from tidegate.server.pulling.puller_process import store_dir
from tidegate.server.pulling.pullers import PullerOptions, Pullers
from tidegate.server.pulling.spans import SpanRegistry
from tidegate.server.session import CaptureSession
from tidegate.server.supervision import compilation
from tidegate.server.supervision.supervisor import Connection, Spawn, spawn
from tidegate.server.tenure import Tenure
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)


def application_command(
    socket: Path, folder: Path, spark_master: str = "local[*]", workers: Sequence[str] = ()
) -> list[str]:
    """The application's command line. `workers`: its options on a cluster
    (`pipeline.application.Workers`).
    """
    return program.command("tidegate.pipeline.application", socket, folder, spark_master, *workers)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings with which a capture is started."""

    pd: str
    data_dir: Path
    id: str = ""
    """The capture's id for the life of this process; empty: a new one is made."""
    address: str = ""
    """The address of its API, shown in status."""
    event_store_bytes: int = 0
    """The event store's disk quota; 0: none."""
    event_store_reserve: float = 0.05
    """The share of the disk that the event store leaves free, limited to `pullers.RESERVE_MAX` bytes."""
    puller_timeout_s: float = 60.0
    """A puller that follows spans and sends nothing for this long is killed and restarted."""
    gc_ttl_s: int = TTL_S
    """How long upstream's history is held for a stopped or failed feed, and how long PD keeps a hold that is
    not renewed.
    """
    application_command: ApplicationCommand = application_command
    elsewhere: bool = False
    """Whether `application_command` runs the workers on other machines."""
    spawn: Spawn = spawn
    """Starts pullers and the application, which must end when the capture's process does."""
    etcd: str = ""
    """Endpoints of the etcd that several captures share; empty: this capture is alone."""
    session_ttl_s: int = 10
    """How long the session of a capture lasts without a renewal."""
    standing_by: Callable[[Capture], None] = lambda capture: None
    """Called when the capture begins to stand by, and when another owner is elected while it does."""
    token: AccessToken | None = None
    """The token of the APIs of all captures, this one included."""
    api_tls: Tls | None = None
    """The TLS settings of the API, on all captures of a cluster; None: plain HTTP."""
    record: Path | None = None
    """The file that records the decisions of owners and processors; None: nothing is recorded."""
    open_sink: OpenSink = open_owner
    clock: Clock = field(default_factory=SystemClock)


class Capture:
    """A running capture. `start` opens it, `stop` ends it."""

    def __init__(self, options: Options, process: CaptureProcess | None = None) -> None:
        """`process`: what the last capture of this process has kept; None: this is the first one."""
        self.options = options
        self.process = process or CaptureProcess(options.application_command, options.clock, options.spawn)
        self.id = options.id or str(uuid.uuid4())
        self.cluster = 0
        self.takes_messages = False
        """Whether other captures may send messages to this one."""
        self.resigns = asyncio.Event()
        """Set when a user asks the owner to `step_down`."""
        self._lifetime = Lifetime()
        self._stack = contextlib.AsyncExitStack()
        self.session = CaptureSession(
            self.id, self.process, self._lifetime, self._stack, lambda: options.standing_by(self)
        )
        self._ready = False
        self._requests = RequestsInFlight()

    async def start(self) -> None:
        """Open everything; raises TidegateError. If it fails or is cancelled, it ends as by `end_session`."""
        try:
            await self._open()
            self._ready = True
        except BaseException:
            await self.end_session()
            raise

    async def stop(self) -> None:
        """End feeds and children, close everything; takes a few seconds at most."""
        await self.end_session()
        await self.process.close()

    def request(self) -> AbstractContextManager[None]:
        """A context for a request that may change what this capture owns; `step_down` waits for its end."""
        return self._requests.one()

    async def step_down(self) -> None:
        """Let another capture own the changefeeds, as it was asked to; see `Tenure.step_down`."""
        self._ready = False
        self.resigns.clear()
        await self.tenure.step_down(self._requests.ended)
        self._ready = True

    async def end_session(self) -> None:
        """The same, but keep `process`, so that the next capture need not start the application."""
        self._ready = self.takes_messages = False
        if self.session.candidacy is not None and self.lost.done():
            # Another capture takes over without waiting for this end: its sinks fence our writers.
            await self.session.candidacy.leave()
        await self._stack.aclose()

    # --- the start -----------------------------------------------------------------------------------

    async def _open(self) -> None:
        options, stack = self.options, self._stack
        self.process.lock(options.data_dir)
        if not kernel.is_compiled():
            with self._lifetime.wait(compilation.WAITS_FOR):
                await compilation.compile_kernels()
        self.pd = PdClient(options.pd, retry_s=5.0)
        stack.callback(self.pd.close)
        self.cluster = await self._wait_for_pd()
        paths = Paths(options.data_dir, store_dir(options.data_dir, self.cluster))
        await asyncio.to_thread(paths.rename_earlier)
        # One thread, so that transactions are committed in the order in which they were asked for.
        disk = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        # Without waiting: a write to a dead disk may never return.
        stack.callback(disk.shutdown, False)
        ballast = Ballast(options.data_dir)
        ballast.keep(options.clock.now_ms())
        check_mode(paths, shared=bool(options.etcd))
        if options.etcd:
            address, ttl_s = options.address, options.session_ttl_s
            place = await self.session.open_etcd(self.cluster, options.etcd, options.data_dir, address, ttl_s)
        else:
            place = await self.session.open_alone(self.cluster, paths, disk, ballast)
        application = await self.process.open(paths, self._receive)
        self.pullers = self._pullers()
        self.node = Node(
            cluster=self.cluster,
            identity=place.identity,
            capture=place.name,
            epoch=place.epoch,
            address=options.address,
            owner_rev=place.owner_rev,
            paths=paths,
            pd=self.pd,
            metadata=place.metadata,
            captured=self.pullers.of,
            clock=options.clock,
            disk=disk,
            application=application,
            open_sink=options.open_sink,
            lost=self._lifetime.lose,
            shared=f"{SCHEME}{options.etcd}" if options.etcd else "",
            gc_ttl_s=options.gc_ttl_s,
            ballast=ballast,
            follow=follow_nothing if options.record is None else Recorder(options.record).follow,
        )
        self.processor_registry = ProcessorRegistry(self.node)
        candidacy = self.session.candidacy
        self.tenure = Tenure(self.node, self.processor_registry, candidacy, elsewhere=options.elsewhere)
        # The stack is undone from its end: first the reactor, then the processors, then the pullers. The
        # application ends after them, because they need it to end their work.
        stack.push_async_callback(self.pullers.stop)
        # This starts a child, which connects to the socket at once.
        self.pullers.of(TABLE_MODE)
        stack.push_async_callback(self.processor_registry.stop)
        if candidacy is None:
            self.processor_registry.start()
        else:
            self._stand_by(candidacy)
        await self.tenure.begin()
        if candidacy is not None:
            # Pushed before the reactor's end, so that it is done after it: the next owner is elected when
            # this one writes nothing more.
            stack.push_async_callback(candidacy.leave)
        stack.push_async_callback(self.tenure.end)

    async def _wait_for_pd(self) -> int:
        """The cluster's id, as soon as PD answers. Raises InvalidInput when what answers is no PD."""
        address, began = self.options.pd, self.options.clock.monotonic()
        # Without retries of its own, so that the first failure is shown at once.
        probe = PdClient(address, retry_s=0.0)
        self._stack.callback(probe.close)
        waits: list[Retryable] = []

        def on_wait(error: Retryable) -> None:
            waits.append(error)
            fields = {"pd": error.where, "why": error.why, "fix": error.fix}
            event(LOG, logging.WARNING, "waiting for PD", **fields, api=self.options.address)

        cluster = await self._lifetime.until(lambda: probe.cluster_id, f"PD at {address} to answer", on_wait)
        if waits:
            seconds = self.options.clock.monotonic() - began
            event(LOG, logging.INFO, "PD answers", pd=address, waited_s=round(seconds))
        return cluster

    def _pullers(self) -> Pullers:
        options = self.options
        started_with = PullerOptions(
            pd=options.pd,
            data_dir=options.data_dir,
            cluster=self.cluster,
            address=options.address,
            event_store_bytes=options.event_store_bytes,
            event_store_reserve=options.event_store_reserve,
            timeout_s=options.puller_timeout_s,
            spawn=options.spawn,
        )
        return Pullers(started_with, options.clock, self._open_catalogues, self._on_puller_error)

    def _open_catalogues(self, store: Path) -> Catalogues:
        catalogues = Catalogues(store, partial(load_catalogue, self.pd), self.options.clock)
        self._stack.callback(catalogues.close)
        return catalogues

    def _stand_by(self, candidacy: Candidacy) -> None:
        """Work as a standby from now on, with all processes running."""
        node, processor_registry, options = self.node, self.processor_registry, self.options
        # Before the processors start, because they ask it whether this capture may work.
        node.over, node.ids, node.others = candidacy.over, candidacy.ids, candidacy.others
        address_of = lambda to: node.others().get(to, "")  # noqa: E731
        token, tls, store = options.token, options.api_tls, node.captured(TABLE_MODE).store
        node.key_loads = KeyLoadsClient(node.capture, self.cluster, store, address_of, token, tls).ask
        processor_registry.start(MessageClient(node.capture, self.cluster, address_of, token, tls))
        processor_registry.stand_by()
        node.application.warm()
        # Only now, because the answers to messages need the client.
        self.takes_messages = True

    # --- what it is ----------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the start is complete; before that there is no reactor and no node."""
        return self._ready

    @property
    def waiting_for(self) -> str:
        """Describes what the start waits for; empty when the start is over."""
        return self._lifetime.waiting_for

    @property
    def lost(self) -> asyncio.Future[TidegateError]:
        """Resolves with the reason when the capture cannot continue."""
        return self._lifetime.lost

    @property
    def reactor(self) -> Reactor:
        """The changefeeds, while this capture owns them."""
        return self.tenure.reactor

    @property
    def readers(self) -> Readers:
        """The readers, while this capture owns the changefeeds."""
        return self.tenure.readers

    @property
    def spans(self) -> SpanRegistry:
        """The span registry of the puller for tables."""
        return self.pullers.of(TABLE_MODE).spans

    @property
    def puller_alive(self) -> bool:
        """Whether the pullers' processes run."""
        return self.pullers.alive

    # --- what a user may ask -------------------------------------------------------------------------

    async def resign(self) -> None:
        """Give up ownership. A capture that is alone takes it again at once: its feeds end and restart under
        new tokens. If captures share an etcd, another one becomes the owner and this one a standby
        (`step_down`).
        """
        if self.session.candidacy is not None:
            self.resigns.set()
            return
        await self.reactor.resign(lambda: take_ownership(self.node.metadata, self.cluster, self.id))

    # --- the socket ----------------------------------------------------------------------------------

    async def _receive(self, connection: Connection, report: Report) -> None:
        """Pass a report of a puller or a pipeline to its receiver."""
        match connection.hello:
            case PullerHello() as puller:
                self.pullers.receive(connection, puller, cast(FromPuller, report))
            case PipelineHello(changefeed, incarnation, _):
                processor = self.processor_registry.processors.get(FeedId.parse(changefeed))
                if processor is not None:
                    processor.pipeline.receive(incarnation, cast(FromPipeline, report))

    def _on_puller_error(self, error: FeedError) -> None:
        self.reactor.puller_error(error)
