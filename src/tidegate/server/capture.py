"""A capture: one node that replicates. Control process, puller process, one application for all feeds.

    async with capture(options) as node: ...      opens everything, ends everything

One capture a data folder (a lock on `DATA_DIR/lock`). At start it waits until PD answers, however long that
takes: `waiting_for` says so. Then it rewrites the cluster's owner key; the key's new revision is the first
part of every token it grants and guards every write it makes, so that a capture that was replaced can store
nothing. Where several captures share an etcd it stands in the election instead, with all its processes
running, until it is the owner (`server.membership`). Children die with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never, cast

from tidegate import __version__, metrics
from tidegate.access import Token
from tidegate.clock import Clock, SystemClock
from tidegate.config.values import TABLE_MODE
from tidegate.control.gc import TTL_S
from tidegate.control.metadata import (
    FORMAT,
    Compare,
    FeedError,
    FeedId,
    MetadataStore,
    Put,
    format_key,
    identity_key,
    owner_key,
)
from tidegate.control.watchdog import Hung, Watchdog
from tidegate.disk import Ballast, disk_bytes, lock_file
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.metadata import SCHEME
from tidegate.kvclient.pd import PdClient
from tidegate.log import event, redact
from tidegate.model.reports import (
    ApplicationHello,
    Failed,
    FromApplication,
    FromPipeline,
    FromPuller,
    Gone,
    PipelineHello,
    PullerHello,
    Refused,
    Report,
    Status,
)
from tidegate.server.application import Application, ApplicationCommand
from tidegate.server.catalogues import Catalogues
from tidegate.server.courier import Courier
from tidegate.server.feed_plan import Paths
from tidegate.server.membership import (
    CHECK_S,
    LOOK_S,
    NAME_FILE,
    CaptureInfo,
    Membership,
    Resigned,
    capture_name,
)
from tidegate.server.metadata_sqlite import SqliteMetadata
from tidegate.server.new_feed import Refused as RequestRefused
from tidegate.server.node import Captured, Node
from tidegate.server.owner_sink import OpenSink, open_owner
from tidegate.server.processes import described
from tidegate.server.puller_process import store_dir
from tidegate.server.reactor import Reactor
from tidegate.server.readers import Readers
from tidegate.server.schema_tracker import load_catalogue
from tidegate.server.spans import SpanRegistry
from tidegate.server.supervisor import Child, Connection, ControlSocket, spawn
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)

PD_WAITS_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses between the attempts at the start; the last one repeats."""
RESTART_FIRST_S: Final = 0.2
RESTART_MAX_S: Final = 5.0
CAPTURES_S: Final = 0.5
"""How often is looked which captures there are."""
PULLER_START_S: Final = 600.0
"""Patience with a puller that has not said anything yet: it opens its store, and compiles kernels where there
are none for this machine."""
WATCH_S: Final = 0.5
"""How often a puller's signs of life are looked at."""
LOCAL: Final = "local"
"""The capture's name in grants and transactional ids: a metadata store of one node has one. The same for
every data folder, so that a feed which is made again in another fences what the first has left behind."""
RESERVE_MAX: Final = 20 << 30
"""However large a disk is, the event store need not leave more of it."""
HEALTHY_S: Final = 30.0
"""A puller that lived so long starts again without waiting."""


def application_command(
    socket: Path, folder: Path, spark_master: str = "local[*]", workers: Sequence[str] = ()
) -> list[str]:
    """How the application is started. `workers`: on a cluster (`pipeline.application.Workers`)."""
    module = "tidegate.pipeline.application"
    return [sys.executable, "-m", module, str(socket), str(folder), spark_master, *workers]


@dataclass(frozen=True, slots=True)
class Options:
    """What a capture is started with."""

    pd: str
    data_dir: Path
    id: str = ""
    """The capture's id, as long as its process lives; empty: a new one."""
    address: str = ""
    """Where its API will be, for status."""
    event_store_bytes: int = 0
    """The event store's disk quota; 0: none."""
    event_store_reserve: float = 0.05
    """The share of the disk that the event store leaves to others, of at most RESERVE_MAX bytes."""
    puller_timeout_s: float = 60.0
    """A puller that follows spans and says nothing for so long is killed and started again."""
    gc_ttl_s: int = TTL_S
    """How long upstream's history is kept for a feed that is stopped or has failed, and by PD without us."""
    application_command: ApplicationCommand = application_command
    elsewhere: bool = False
    """Whether that runs its workers on other machines."""
    etcd: str = ""
    """Endpoints of the etcd in which several captures keep what they share; empty: this capture is alone."""
    session_ttl_s: int = 10
    """How long others wait for a capture that says nothing."""
    standing_by: Callable[[Capture], None] = lambda capture: None
    """Called when the capture begins to stand by, and when another owner is elected meanwhile."""
    token: Token | None = None
    """What the other captures ask for, as this one does."""
    api_tls: Tls | None = None
    """With what the API speaks TLS, on all captures of a cluster; None: it does not."""
    open_sink: OpenSink = open_owner
    clock: Clock = field(default_factory=SystemClock)


class Capture:
    """A running capture. Made by `start`, ended by `stop`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.id = options.id or str(uuid.uuid4())
        self.lost: asyncio.Future[TidegateError] = asyncio.get_running_loop().create_future()
        """Resolves when the capture cannot go on."""
        self.cluster = 0
        self.waiting_for = ""
        """What the start waits for, in words; empty once that is over."""
        self._stack = contextlib.AsyncExitStack()
        self._modes: dict[str, Captured] = {}
        self._pullers: dict[str, Child] = {}
        self._said: dict[int, int] = {}
        """How often each puller has reported, by its process id; it says hello before it opens its store."""
        self._keepers: list[asyncio.Task[None]] = []
        self._application: Application | None = None
        self._etcd: EtcdClient | None = None
        self._puller_trouble = ("", 0)
        self._ready = False
        self.membership: Membership | None = None
        """Among the captures that share an etcd; None: this one is alone, or not that far yet."""
        self.owner: CaptureInfo | None = None
        """Who owns the feeds while this capture stands by."""
        self.takes_messages = False
        """Whether other captures may speak to this one."""
        self._captures: tuple[CaptureInfo, ...] = ()
        """Those that are there, by what was read last."""
        self._epoch = 0
        """The revision of this capture's key: greater than that of any session before."""

    async def start(self) -> None:
        """Open everything; raises TidegateError. Leaves nothing behind when it fails or is cancelled."""
        try:
            await self._open()
            self._ready = True
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End feeds and children, close everything; takes a few seconds at most."""
        self._ready = self.takes_messages = False
        if self.membership is not None and self.lost.done() and self._application is not None:
            # Another is to deliver, and need not wait: its sinks fence what still writes here.
            await asyncio.gather(self._application.stop(), self._leave())
        await self._stack.aclose()

    async def _open(self) -> None:
        options, stack = self.options, self._stack
        stack.callback(os.close, lock_folder(options.data_dir))
        self.pd = PdClient(options.pd, retry_s=5.0)
        stack.callback(self.pd.close)
        self.cluster = await self._wait_for_pd()
        paths = Paths(options.data_dir, store_dir(options.data_dir, self.cluster))
        await asyncio.to_thread(paths.rename_earlier)
        disk = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        stack.callback(disk.shutdown, False)
        ballast = Ballast(options.data_dir)
        ballast.keep(options.clock.now_ms())
        check_mode(paths, shared=bool(options.etcd))
        metadata = await self._open_metadata(paths, disk, ballast)
        member = self.membership
        where = options.etcd or str(options.data_dir)
        prepare = partial(identified, metadata, self.cluster, where)
        if member is None:
            identity = await asyncio.get_running_loop().run_in_executor(disk, prepare)
            owner_rev = take_ownership(metadata, self.cluster, self.id)
        else:
            identity, owner_rev = await self._until(prepare, f"etcd at {options.etcd} to answer"), 0
        application = Application(options.application_command, paths.socket, paths.application, options.clock)
        self._application = application
        self.node = Node(
            cluster=self.cluster,
            identity=identity,
            capture=LOCAL if member is None else member.me.name,
            epoch=owner_rev if member is None else self._epoch,
            address=options.address,
            owner_rev=owner_rev,
            paths=paths,
            pd=self.pd,
            metadata=metadata,
            captured=self._captured,
            clock=options.clock,
            disk=disk,
            application=application,
            open_sink=options.open_sink,
            lost=self._on_lost,
            shared=f"{SCHEME}{options.etcd}" if member is not None else "",
            over=self._over,
            gc_ttl_s=options.gc_ttl_s,
            ballast=ballast,
        )
        self.reactor = Reactor(self.node)
        self.readers = Readers(self.reactor, elsewhere=options.elsewhere)
        socket = ControlSocket(paths.socket, self._receive)
        await socket.open()
        stack.push_async_callback(socket.close)
        stack.push_async_callback(self._end_pullers)
        stack.push_async_callback(application.stop)
        self._captured(TABLE_MODE)
        crew = self.reactor.crew
        stack.push_async_callback(crew.stop)
        if member is None:
            crew.start()
        else:
            name = member.me.name
            self.node.ids = lambda: self.ids
            self.node.others = lambda: {one.name: one.address for one in self._captures if one.name != name}
            address_of = lambda to: self.node.others().get(to, "")  # noqa: E731
            crew.start(Courier(name, self.cluster, address_of, options.token, options.api_tls))
            crew.stand_by()
            application.warm()
            self.takes_messages = True
            await self._until_elected(member)
        await self.reactor.start()
        stack.push_async_callback(self._leave)
        stack.push_async_callback(self.reactor.stop)
        sweep = asyncio.create_task(self.readers.sweep(), name="readers without a query")
        stack.callback(sweep.cancel)

    async def _wait_for_pd(self) -> int:
        """The cluster's id, as soon as PD tells it. Raises InvalidInput when what answers is no PD."""
        failures, began = 0, self.options.clock.monotonic()
        probe = PdClient(self.options.pd, retry_s=0.0)
        self._stack.callback(probe.close)
        while True:
            try:
                cluster = await asyncio.to_thread(lambda: probe.cluster_id)
            except Retryable as error:
                if failures == 0:
                    self.waiting_for = f"PD at {self.options.pd} to answer"
                    reported = {"pd": error.where, "why": error.why, "fix": error.fix}
                    event(LOG, logging.WARNING, "waiting for PD", **reported, api=self.options.address)
                await asyncio.sleep(PD_WAITS_S[min(failures, len(PD_WAITS_S) - 1)])
                failures += 1
                continue
            if failures:
                seconds = self.options.clock.monotonic() - began
                event(LOG, logging.INFO, "PD answers", pd=self.options.pd, waited_s=round(seconds))
            self.waiting_for = ""
            return cluster

    # --- among others --------------------------------------------------------------------------------

    async def _open_metadata(self, paths: Paths, disk: ThreadPoolExecutor, ballast: Ballast) -> MetadataStore:
        options, stack, loop = self.options, self._stack, asyncio.get_running_loop()
        if not options.etcd:
            alone = await loop.run_in_executor(disk, SqliteMetadata, paths.metadata, ballast)
            stack.callback(alone.close)
            return alone
        self._etcd = client = EtcdClient(options.etcd)
        me = CaptureInfo(self.id, capture_name(options.data_dir), options.address, __version__)
        stack.callback(client.close)
        begin = partial(Membership, client, self.cluster, me, options.session_ttl_s)
        where = f"etcd at {options.etcd}"
        member: Membership = await self._until(begin, f"{where} to answer")
        self.membership = member
        stack.push_async_callback(self._leave)
        watch = asyncio.create_task(self._watch_session(member), name="session")
        stack.callback(watch.cancel)
        what = f"{where}: the capture's last session to end"
        self._epoch = await self._until(member.register, what)
        seeing = asyncio.create_task(self._watch_captures(member), name="captures")
        seeing.add_done_callback(self._on_watch_end)
        stack.callback(seeing.cancel)
        event(
            LOG,
            logging.INFO,
            "session begun",
            capture=me.name,
            etcd=options.etcd,
            ttl_s=options.session_ttl_s,
        )
        return member.metadata

    async def _until(self, work: Callable[[], Any], what: str) -> Any:
        """Until a call to etcd succeeds, however long that takes; `waiting_for` says so."""
        failures = 0
        while True:
            self._raise_if_lost()
            try:
                found = await asyncio.to_thread(work)
            except Retryable as error:
                if failures == 0:
                    self.waiting_for = what
                    event(LOG, logging.WARNING, "waiting for etcd", error=str(error))
                await asyncio.sleep(PD_WAITS_S[min(failures, len(PD_WAITS_S) - 1)])
                failures += 1
                continue
            self.waiting_for = ""
            return found

    async def _leave(self) -> None:
        """End the session, so that the next owner need not wait until it has run out."""
        member, client = self.membership, self._etcd
        if member is None or client is None:
            return
        if self.lost.done():
            client.hurry()
        try:
            await asyncio.to_thread(member.close)
        except TidegateError as error:
            event(LOG, logging.WARNING, "session ends by itself", error=str(error))

    async def _watch_session(self, member: Membership) -> None:
        while member.holds:
            member.beat()
            await asyncio.sleep(CHECK_S)
        self._on_lost(member.lost())

    def _on_watch_end(self, watch: asyncio.Task[None]) -> None:
        """A defect must end the session: without it nobody would notice captures that come and go."""
        if not watch.cancelled() and (error := watch.exception()) is not None:
            why = f"{type(error).__name__}: {error}"
            self._on_lost(
                Fatal("The capture does not see the others any more.", why=why, fix="start it again")
            )

    async def _watch_captures(self, member: Membership) -> None:
        """Know which captures there are."""
        failed = False
        while True:
            try:
                self._captures = tuple(await asyncio.to_thread(member.captures))
                failed = False
            except TidegateError as error:  # those known before may still be there
                if not failed:
                    event(LOG, logging.WARNING, "captures not read", error=str(error))
                failed = True
            await asyncio.sleep(CAPTURES_S)

    async def _until_elected(self, member: Membership) -> None:
        """Stand, and wait for our turn."""
        await self._until(member.stand, f"etcd at {self.options.etcd} to answer")
        shown = None
        while True:
            self._raise_if_lost()
            try:
                owner = await asyncio.to_thread(member.owner)
                if owner is not None and member.is_mine(owner):
                    break
                if owner is not None and owner != shown:
                    await self._stand_by(member, owner.capture)
                    shown = owner
            except Retryable as error:  # the session says when this has lasted too long
                event(LOG, logging.WARNING, "etcd does not answer", error=str(error))
            await asyncio.sleep(LOOK_S)
        self.node.owner_key, self.node.owner_rev = owner.key, owner.revision
        self.waiting_for, self.owner = "", None
        event(LOG, logging.INFO, "elected", capture=member.me.name, owner_rev=owner.revision)

    async def _stand_by(self, member: Membership, name: str) -> None:
        found = await asyncio.to_thread(member.captures)
        self.owner = next((one for one in found if one.name == name), None)
        at = f" at {self.owner.address}" if self.owner is not None else ""
        self.waiting_for = f"its turn: capture {name}{at} is the owner"
        event(
            LOG, logging.INFO, "standing by", owner=name, owner_addr=self.owner.address if self.owner else ""
        )
        self.options.standing_by(self)

    @property
    def ids(self) -> dict[str, str]:
        """The captures that are there: their ids, by their names in grants."""
        return {one.name: one.id for one in self._captures} | {self.node.capture: self.id}

    def _over(self) -> TidegateError | None:
        """Why nothing may be written any more."""
        member = self.membership
        if member is not None and self.lost.done():
            return self.lost.result()
        return None if member is None or member.holds else member.lost()

    def _raise_if_lost(self) -> None:
        if self.lost.done():
            raise self.lost.result()

    @property
    def ready(self) -> bool:
        """Whether the start is over: only then there are a reactor and a node."""
        return self._ready

    def _on_lost(self, error: TidegateError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)

    async def resign(self) -> None:
        """Take ownership anew, as another capture would: feeds end, and start again under new tokens.

        Among others: another capture becomes the owner, and this one stands by.
        """
        if self.membership is not None:
            self._on_lost(Resigned("The capture was asked to resign.", where=self.options.address))
            return
        await self.reactor.resign(lambda: take_ownership(self.node.metadata, self.cluster, self.id))

    def named(self, capture: str) -> str:
        """A capture's name in grants, by its id or its name. Raises Refused."""
        for name, found in self.ids.items():
            if capture in (name, found):
                return name
        raise RequestRefused(
            "CDC:ErrCaptureNotExist",
            f"[CDC:ErrCaptureNotExist]capture not exists, {capture[:64]}",
            fix="`tidegate capture list` shows those there are",
        )

    async def evict(self, capture: str) -> None:
        """End the session of another capture that can be reached no other way. Raises Refused."""
        name, member = self.named(capture), self.membership
        if member is None or name == self.node.capture:
            raise RequestRefused(
                "CDC:ErrCaptureNotExist",
                "The owner cannot evict itself.",
                fix="`tidegate capture resign` lets another become the owner",
            )
        await asyncio.to_thread(member.evict, name)
        event(LOG, logging.WARNING, "capture evicted", capture=name)

    # --- the puller ----------------------------------------------------------------------------------

    @property
    def spans(self) -> SpanRegistry:
        """The spans of tables."""
        return self._modes[TABLE_MODE].spans

    def _captured(self, kv_mode: str) -> Captured:
        """The event store of a kv mode, and its puller's ear; the first call starts the puller."""
        if kv_mode not in self._modes:
            store = store_dir(self.options.data_dir, self.cluster, kv_mode)
            store.mkdir(parents=True, exist_ok=True)
            self._modes[kv_mode] = Captured(store, SpanRegistry(kv_mode), self._catalogues(kv_mode, store))
            keeper = asyncio.create_task(self._keep_puller(kv_mode), name=f"puller keeper {kv_mode}")
            self._keepers.append(keeper)
        return self._modes[kv_mode]

    def _catalogues(self, kv_mode: str, store: Path) -> Catalogues | None:
        if kv_mode != TABLE_MODE:
            return None
        catalogues = Catalogues(store, partial(load_catalogue, self.pd), self.options.clock)
        self._stack.callback(catalogues.close)
        return catalogues

    async def _keep_puller(self, kv_mode: str) -> None:
        """Start the puller of a mode, and start it again with a growing pause whenever it ends."""
        data, wait = self.options.data_dir, RESTART_FIRST_S
        command = [sys.executable, "-m", "tidegate.server.puller_process", str(data), self.options.pd]
        keep_free = self._keep_free()
        command += [str(self.options.event_store_bytes), kv_mode, str(keep_free)]
        event(LOG, logging.INFO, "event store leaves disk free", kv_mode=kv_mode, bytes=keep_free)
        name = "puller" if kv_mode == TABLE_MODE else f"puller-{kv_mode}"
        while True:
            began = self.options.clock.monotonic()
            try:
                puller = await spawn(name, command, data / f"{name}.log")
            except (OSError, TidegateError) as error:  # no room for its log, for one
                event(LOG, logging.WARNING, "puller not started", kv_mode=kv_mode, error=str(error))
                await asyncio.sleep(RESTART_MAX_S)
                continue
            self._pullers[kv_mode] = puller
            await self._watch_puller(kv_mode, puller)
            code = await puller.wait()
            event(LOG, logging.WARNING, "puller ended", kv_mode=kv_mode, exit_code=code)
            metrics.restarts.labels("puller").inc()
            healthy = self.options.clock.monotonic() - began > HEALTHY_S
            wait = RESTART_FIRST_S if healthy else min(RESTART_MAX_S, wait * 2)
            await asyncio.sleep(wait)

    def _keep_free(self) -> int:
        """Bytes of the disk that each event store leaves free."""
        share = round(disk_bytes(self.options.data_dir) * self.options.event_store_reserve)
        return min(share, RESERVE_MAX)

    async def _watch_puller(self, kv_mode: str, puller: Child) -> None:
        """Returns when the puller has ended; kills one that has spans to follow and says nothing."""
        clock, watchdog = self.options.clock, Watchdog()
        ended = asyncio.create_task(puller.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=WATCH_S)
                said, spans = self._said.get(puller.pid, 0), len(self._modes[kv_mode].spans.held)
                work = "its start" if not said else f"{spans} spans to follow" if spans else ""
                patience = self.options.puller_timeout_s if said else PULLER_START_S
                hung = watchdog.step(clock.monotonic(), work, said, patience)
                if hung is not None and not ended.done():
                    self._receive_puller_hung(hung, puller)
                    await puller.stop(grace_s=0)
        finally:
            ended.cancel()
            self._said.pop(puller.pid, None)

    def _receive_puller_hung(self, hung: Hung, puller: Child) -> None:
        error = Retryable(
            f"The puller has said nothing for {hung.silent_s:.0f} s. It is killed and started again.",
            where=f"waiting: {hung.work}",
            why=f"its processes: {described(puller.pid)}",
            fix="nothing, and nothing is lost; on a machine that is only too slow raise --puller-timeout",
        )
        event(LOG, logging.ERROR, "puller stands still", error=str(error))
        now = self.options.clock.now_ms()
        self.reactor.puller_error(FeedError(str(error), "CDC:ErrPullerHung", now, self.options.address))

    async def _end_pullers(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(puller.stop() for puller in self._pullers.values()))

    @property
    def puller_alive(self) -> bool:
        """Whether the pullers' processes run."""
        return len(self._pullers) == len(self._modes) and all(p.alive for p in self._pullers.values())

    # --- the socket ----------------------------------------------------------------------------------

    async def _receive(self, connection: Connection, report: Report) -> None:
        """What a peer may say follows from its hello: the socket lets nothing else through."""
        match connection.hello:
            case PullerHello() as puller:
                self._receive_puller(connection, puller, cast(FromPuller, report))
            case ApplicationHello():
                self.node.application.receive(connection, cast(FromApplication, report))
            case PipelineHello(changefeed, incarnation, _):
                processor = self.reactor.processors.get(FeedId.parse(changefeed))
                if processor is not None:
                    processor.receive(incarnation, cast(FromPipeline, report))

    def _receive_puller(self, connection: Connection, puller: PullerHello, report: FromPuller) -> None:
        spans = self._captured(puller.kv_mode).spans
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
            case Failed():
                event(
                    LOG,
                    logging.WARNING,
                    "puller error",
                    error=report.what,
                    where=report.where,
                    why=report.why,
                )
                self.reactor.puller_error(self._puller_error(report))
            case _:
                assert_never(report)

    def _puller_error(self, failed: Failed) -> FeedError:
        """The same words again carry the time of the first: since when it is so."""
        text = redact("\n".join(filter(None, (failed.what, failed.where, failed.why, failed.fix))))
        if text != self._puller_trouble[0]:
            self._puller_trouble = (text, self.options.clock.now_ms())
        return FeedError(text, "CDC:ErrPuller", self._puller_trouble[1], self.options.address)


def lock_folder(data_dir: Path) -> int:
    """Make the data folder ours; the descriptor holds the lock. Raises InvalidInput when another has it."""
    try:
        data_dir.mkdir(0o700, parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # another's folder: its files are ours alone all the same
            data_dir.chmod(0o700)
        return lock_file(data_dir / "lock", 0o600)
    except BlockingIOError as error:
        raise InvalidInput(
            "Another capture uses this data folder.",
            where=str(data_dir),
            fix="stop it, or choose another --data-dir",
        ) from error
    except OSError as error:
        raise InvalidInput(
            "The data folder cannot be used.",
            where=str(data_dir),
            why=error.strerror or str(error),
            fix="choose a --data-dir that can be made and written",
        ) from error


def check_mode(paths: Paths, *, shared: bool) -> None:
    """Raises InvalidInput when the changefeeds of this data folder are kept elsewhere than we would look."""
    other = paths.metadata if shared else paths.data_dir / NAME_FILE
    if other.exists():
        kept = "in the folder itself" if shared else "in an etcd"
        raise InvalidInput(
            "The data folder was used in another way.",
            where=str(paths.data_dir),
            why=f"its changefeeds are kept {kept}; started so they would be gone, or run twice",
            fix="start with a new --data-dir" + ("" if shared else ", or with the --etcd it was used with"),
        )


def check_format(metadata: MetadataStore, cluster: int, where: str) -> None:
    """Raises InvalidInput when another version, to which the grants say something else, has written here."""
    found, owned = metadata.get(format_key(cluster)), metadata.get(owner_key(cluster))
    if (found.value if found is not None else b"") == FORMAT:
        return
    if found is not None or owned is not None:
        raise InvalidInput(
            "The data folder was written by another version of Tidegate.",
            where=str(where),
            why=f"its metadata has the form {found.value.decode() if found else '1'}, not {FORMAT.decode()}",
            fix="start with another --data-dir and create the changefeeds again, or use that version",
        )
    metadata.transact((Compare(format_key(cluster), mod_revision=0),), (Put(format_key(cluster), FORMAT),))


def identified(metadata: MetadataStore, cluster: int, where: str) -> str:
    """The store's word, once its form was looked at. Raises InvalidInput."""
    check_format(metadata, cluster, where)
    return identity_of(metadata, cluster)


def take_ownership(metadata: MetadataStore, cluster: int, capture: str) -> int:
    """Become the owner of a cluster's feeds: the new owner_rev. Whoever was it before can write no more."""
    value = json.dumps({"capture": capture, "pid": os.getpid()}).encode()
    outcome = metadata.transact((), (Put(owner_key(cluster), value),))
    if not outcome.succeeded:
        raise Fatal("The metadata store refused an unguarded write.", where=owner_key(cluster))
    return outcome.revision


def identity_of(metadata: MetadataStore, cluster: int) -> str:
    """The metadata store's own word, made when it is first asked for."""
    key = identity_key(cluster)
    metadata.transact((Compare(key, mod_revision=0),), (Put(key, uuid.uuid4().hex[:12].encode()),))
    found = metadata.get(key)
    assert found is not None
    return found.value.decode()
