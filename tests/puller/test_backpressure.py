"""No room for the event store: the puller waits, says so, sheds what it can pull again, loses nothing."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.puller.test_puller import SPAN, World, eventually, fail, spilled_files
from tidegate import program
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.order import Entry, entries_of
from tidegate.eventstore.store import RESERVE, RESERVE_BYTES, EventStore
from tidegate.ipc import HEADER, frame
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.reports import SpanStatus, ToPuller, Watch
from tidegate.model.span import Span, span_id
from tidegate.puller.backpressure import CROWDED_S, REST_S, SHED_AFTER_S, Action, Backpressure, greediest
from tidegate.puller.match import block_matcher
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.puller import Puller
from tidegate.server.pulling.puller_process import store_dir
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream


def look(
    room: Backpressure, now: float, pressure: str = "full", used: int = 100, room_again: bool = False
) -> Action:
    return room.look(pressure, crowded="", has_room=room_again, over_quota=bool(pressure), used=used, now=now)


def test_room_waits_then_sheds_one_by_one_and_resumes_after_a_rest() -> None:
    """It sheds only while the store grows."""
    room = Backpressure()
    assert look(room, 0.0, "") is Action.NOTHING
    assert not room.waits
    assert look(room, 1.0) is Action.NOTHING
    assert room.waits
    assert look(room, 1.0 + SHED_AFTER_S) is Action.SHED
    assert (room.waits, room.shedding, room.words) == (False, True, "full")
    assert look(room, 7.1) is Action.NOTHING  # it does not grow
    assert look(room, 7.2, used=120) is Action.SHED
    assert look(room, 7.5, "", room_again=True) is Action.NOTHING
    assert look(room, 7.3 + REST_S, "", room_again=True) is Action.RESUME
    assert room.words == ""
    look(room, 20.0)
    assert look(room, 20.0 + SHED_AFTER_S) is Action.SHED
    assert look(room, 25.0 + REST_S, "", room_again=True) is Action.NOTHING  # twice as long now
    assert look(room, 25.1 + 2 * REST_S, "", room_again=True) is Action.RESUME


def test_a_disk_that_others_filled_is_waited_for_however_long() -> None:
    room = Backpressure()
    for now in range(1000):
        deed = room.look("disk full", crowded="", has_room=False, over_quota=False, used=5, now=float(now))
        assert deed is Action.NOTHING
    assert room.waits


def look_early(room: Backpressure, now: float, crowded: str, used: int, room_again: bool = False) -> Action:
    return room.look("", crowded=crowded, has_room=room_again, over_quota=False, used=used, now=now)


def test_a_crowded_store_sheds_without_waiting_unless_it_was_a_short_peak() -> None:
    room = Backpressure()
    assert look_early(room, 1.0, "crowded", 90) is Action.NOTHING
    assert look_early(room, 1.1, "", 80) is Action.NOTHING
    assert look_early(room, 1.25, "crowded", 90) is Action.NOTHING
    assert look_early(room, 1.26 + CROWDED_S, "crowded", 91) is Action.SHED
    assert (room.waits, room.shedding, room.words) == (False, True, "crowded")
    assert look_early(room, 3.0, "crowded", 91) is Action.NOTHING  # it does not grow
    assert look_early(room, 4.0, "crowded", 92) is Action.SHED
    assert look_early(room, 4.1 + REST_S, "", 10, room_again=True) is Action.RESUME


def test_a_store_that_was_crowded_and_is_full_sheds_at_once() -> None:
    room = Backpressure()
    look_early(room, 1.0, "crowded", 90)
    deed = room.look(
        "full", crowded="crowded", has_room=False, over_quota=True, used=101, now=1.1 + CROWDED_S
    )
    assert (deed, room.waits, room.words) == (Action.SHED, False, "full")


def test_the_largest_span_is_shed_but_none_below_half_an_equal_share() -> None:
    assert greediest({"a": 10, "b": 60, "c": 30}, 120, 3) == "b"
    assert greediest({"a": 10, "c": 21}, 120, 3) == "c"
    assert greediest({"a": 10, "c": 20}, 120, 3) is None
    assert greediest({}, 120, 3) is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    block_matcher.warm()
    store_kernels.warm()
    cuts = [encode_bytes(b"t" + bytes([cut])) for cut in (60, 120, 200)]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=cuts)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(3))
    pd.close()
    upstream.stop()


def fat(world: World, number: int, size: int = 2000) -> None:
    world.commit({bytes([*b"t", 130 + number % 60, i]): world.random.randbytes(size) for i in range(5)})


@pytest.mark.integration
def test_a_full_quota_holds_the_stream_back_until_readers_let_segments_go(world: World) -> None:
    start = world.pd.tso()
    store = EventStore(world.folder, disk_bytes=100_000)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    for number in range(25):  # 250 kB, of which all may be under way when the quota is noticed
        fat(world, number)
    eventually(lambda: "disk quota is used up" in puller.trouble, "the quota to be noticed")
    assert "of 100000 bytes" in puller.status()[0].waiting_for
    for number in range(50):
        fat(world, number)
    assert store.used_bytes < 400_000, "of 750 kB: the stream is held"
    found: list[Entry] = []
    after = start
    while after < world.last_ts:  # a reader that releases what it has read
        upto = store_view.read_frontier(world.folder)[span_id(SPAN)]
        for block in reader.read(world.folder, span_id(SPAN), after, upto):
            found += [e._replace(start_ts=0) for e in entries_of(block)]
        store.open_span(SPAN).drop_below(upto)
        after = upto
    assert sorted(found) == sorted(e for e in world.history if e.commit_ts > start)
    eventually(lambda: puller.trouble == "", "the end of the trouble")
    puller.close()
    store.close()


@pytest.mark.integration
def test_while_streams_are_held_no_region_on_them_counts_as_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their resolved ts do not advance because nothing is read; registering again would only cost scans."""
    monkeypatch.setattr("tidegate.puller.backpressure.SHED_AFTER_S", 1e9)
    start = world.pd.tso()
    store = EventStore(world.folder, disk_bytes=60_000)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    for number in range(15):
        fat(world, number)
    eventually(lambda: puller.trouble != "", "the quota to be noticed")
    fat(world, 15)  # perhaps all the others had room, and the stream would not be held
    (stream,) = puller.streams
    eventually(lambda: stream.rows > puller.status()[0].rows, "rows that wait for room")
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 0.3)
    until = time.monotonic() + 1.5
    eventually(lambda: time.monotonic() > until, "several times the patience")
    assert (puller.trouble != "", puller.status()[0].errors) == (True, {})
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 300.0)
    store.disk_bytes = 1 << 30
    world.check(SPAN, start)
    puller.close()
    store.close()


@pytest.mark.integration
def test_rows_beyond_a_stuck_resolved_ts_are_shed_and_pulled_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can free room here: all that is kept waits for a lock's end, which comes on the held stream."""
    monkeypatch.setattr("tidegate.puller.backpressure.SHED_AFTER_S", 0.3)
    for name in ("REST_S", "REST_MAX_S"):
        monkeypatch.setattr(f"tidegate.puller.backpressure.{name}", 0.5)
    start = world.pd.tso()
    store = EventStore(world.folder, memory_bytes=20_000, disk_bytes=60_000)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    puller.watch(Span(b"m", b"n"), start)
    key = b"t\x05\x00"
    open_one = TwoPhase(world.pd, world.pd.tso(), key, ttl_ms=3_600_000)
    open_one.prewrite([Mutation(PUT, key, b"pinned")], Backoff(5000))
    for number in range(15):
        fat(world, number)

    def given_up() -> bool:  # until the next attempt, REST_S later
        line = next(line for line in puller.status() if line.span == span_id(SPAN))
        return line.regions == 0 and "disk quota" in line.waiting_for

    eventually(given_up, "the span to be given up")
    # The other span's stream flows on meanwhile.
    goal = world.pd.tso()
    eventually(
        lambda: store_view.read_frontier(world.folder).get(span_id(Span(b"m", b"n")), 0) > goal,
        "the other span",
    )
    commit_ts = world.pd.tso()
    open_one.commit([key], commit_ts, Backoff(5000))
    world.history.append(Entry(commit_ts, 0, 1, key, b"pinned", b""))
    world.last_ts = commit_ts
    store.disk_bytes = 1 << 30
    world.check(SPAN, start)
    puller.close()
    store.close()


@pytest.mark.integration
def test_a_read_span_continues_while_an_unread_one_fills_the_quota(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for nothing, and its rows make the store grow, too, until its readers release them."""
    monkeypatch.setattr("tidegate.puller.backpressure.SHED_AFTER_S", 1e9)
    monkeypatch.setattr("tidegate.puller.backpressure.STEP_S", 0.0)
    looks: list[int] = []
    look = Backpressure.look

    def counted(room: Backpressure, *args: Any, used: int, **more: Any) -> Action:
        looks.append(used)
        return look(room, *args, used=used, **more)

    monkeypatch.setattr(Backpressure, "look", counted)
    start = world.pd.tso()
    store = EventStore(world.folder, disk_bytes=100_000)
    puller = Puller(world.pd, store, on_failure=fail)
    read = Span(b"m", b"n")
    puller.watch(SPAN, start)
    puller.watch(read, start)
    for number in range(15):
        fat(world, number)

    def given_up(span: Span) -> bool:
        line = next(line for line in puller.status() if line.span == span_id(span))
        return line.regions == 0 and "disk quota" in line.waiting_for

    eventually(lambda: given_up(SPAN), "the span that nobody reads to be given up")
    for number in range(3):
        before = looks[-1]
        world.commit({bytes([*b"m", number]): world.random.randbytes(500)})
        goal = world.last_ts
        eventually(
            lambda goal=goal: store_view.read_frontier(world.folder).get(span_id(read), 0) >= goal,
            "the other span",
        )
        eventually(lambda before=before: looks[-1] > before, "a look at what it takes")
    assert not given_up(read)
    puller.close()
    store.close()


@pytest.mark.integration
def test_an_open_transaction_above_the_quota_is_shed_and_comes_at_its_end(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spilled rows count; only the transaction's end frees them, and that comes on the held stream."""
    monkeypatch.setattr(EventStore, "crowded", "")  # it is the wait that is looked at here
    quota, rows_of_a_step = 200_000, 50
    start = world.pd.tso()
    store = EventStore(world.folder, disk_bytes=quota)
    spill = tmp_path / "spill"
    puller = Puller(world.pd, store, spill=spill, memory=StreamMemory(20_000), on_failure=fail)
    other = Span(b"m", b"n")
    puller.watch(SPAN, start)
    puller.watch(other, start)

    def on_disk() -> int:
        return sum(spilled_files(spill).values())

    second = puller._spans.find(other)
    assert second is not None

    def reported(ts: int) -> bool:
        """Whether the one stream has reported all up to here, or is held."""
        return puller.trouble != "" or all(mark > ts for _, mark in puller._spans.ranges(second))

    changes = {b"t%05d" % number: bytes(500) for number in range(1200)}
    large = TwoPhase(world.pd, world.pd.tso(), min(changes), ttl_ms=3_600_000)
    mutations = [Mutation(PUT, *change) for change in changes.items()]
    monkeypatch.setattr("tidegate.puller.backpressure.SHED_AFTER_S", 1e9)
    for first in range(0, len(mutations), rows_of_a_step):
        large.prewrite(mutations[first : first + rows_of_a_step], Backoff(20_000))
        sent = world.pd.tso()
        eventually(lambda sent=sent: reported(sent), "the step")  # type: ignore[misc]
        eventually(lambda: puller._upkeep.spilled == on_disk(), "the count")
    eventually(lambda: "disk quota is used up" in puller.trouble, "the quota to be noticed")
    eventually(lambda: quota < store.used_bytes == on_disk(), "what was under way to be counted")
    assert on_disk() < 2 * quota, "of 600 kB: the stream is held"
    monkeypatch.setattr("tidegate.puller.backpressure.SHED_AFTER_S", 0.1)
    for name in ("REST_S", "REST_MAX_S"):
        monkeypatch.setattr(f"tidegate.puller.backpressure.{name}", 0.5)
    eventually(lambda: puller._upkeep.backpressure.shedding and on_disk() == 0, "the span to be given up")
    goal = world.pd.tso()
    eventually(
        lambda: store_view.read_frontier(world.folder).get(span_id(other), 0) > goal,
        "the other span's stream",
    )
    world.last_ts = commit_ts = world.pd.tso()
    large.commit(list(changes), commit_ts, Backoff(20_000))
    world.history += [Entry(commit_ts, 0, 1, *change, b"") for change in changes.items()]
    world.check(SPAN, start)
    assert store.used_bytes > quota
    store.open_span(SPAN).drop_below(world.last_ts)
    eventually(lambda: puller.trouble == "" and store.used_bytes == 0, "the end of the trouble")
    puller.close()
    store.close()


class Control:
    """The control process's end of a puller process's socket."""

    def __init__(self, folder: Path, pd: str) -> None:
        folder.mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "control.sock"))
        self._listener.listen()
        command = program.command("tidegate.server.pulling.puller_process", folder, pd)
        self.log = folder / "puller.log"
        self.process = subprocess.Popen(command, stderr=self.log.open("wb"))
        self._connection, _ = self._listener.accept()
        self.errors: list[dict[str, Any]] = []
        self.spans: list[SpanStatus] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def tell(self, report: ToPuller) -> None:
        self._connection.sendall(frame(report))

    def _listen(self) -> None:
        stream = self._connection.makefile("rb")
        while header := stream.read(HEADER.size):
            message = json.loads(stream.read(HEADER.unpack(header)[0]))
            if message["type"] == "failed":
                self.errors.append(message)
            elif message["type"] == "status":
                self.spans = [SpanStatus(*line) for line in message["spans"]]

    def limit_files(self, size: int) -> None:
        """No file may grow beyond `size`: what is written fails as on a full disk."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def close(self) -> int:
        self._connection.shutdown(socket.SHUT_RDWR)
        code = self.process.wait(120)
        self._thread.join(120)
        self._listener.close()
        return code


@pytest.mark.integration
def test_a_full_disk_is_waited_for_at_every_kind_of_file(world: World, tmp_path: Path) -> None:
    """In turn no file may be written at all, then none but small ones, while commits continue."""
    start = world.pd.tso()
    world.folder = store_dir(tmp_path / "data", world.pd.cluster_id)
    control = Control(tmp_path / "data", world.upstream.pd_addr)
    reserve = world.folder / RESERVE
    eventually(lambda: reserve.exists() and reserve.stat().st_size == RESERVE_BYTES, "the store, whole")
    control.limit_files(0)
    control.tell(Watch(SPAN, start, True))
    eventually(lambda: bool(control.errors), "the refused order")
    assert control.errors[0]["what"] == "the disk is full"
    assert control.errors[0]["why"] == os.strerror(27)
    control.limit_files(resource.RLIM_INFINITY)
    world.run(10)
    world.check(SPAN, start)
    for size in (0, 3000):  # frontier and manifest; segments
        before = len(control.errors)
        control.limit_files(size)
        for number in range(10):
            fat(world, number)
        eventually(lambda before=before: len(control.errors) > before, "the puller to say so")  # type: ignore[misc]
        assert control.errors[-1]["what"] == "the puller waits: the event store is full"
        assert "File too large" in control.errors[-1]["why"]
        eventually(lambda: "full" in control.spans[0].waiting_for, "the status")
        control.limit_files(resource.RLIM_INFINITY)
        world.check(SPAN, start)
        eventually(lambda: "full" not in control.spans[0].waiting_for, "the end of the trouble")
    control.limit_files(0)
    fat(world, 1)
    eventually(lambda: "full" in control.spans[0].waiting_for, "the status")
    assert control.close() == 0  # a stop on a full disk is a clean one
    assert "Traceback" not in control.log.read_text()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.check(SPAN, start)
    puller.close()
    store.close()
