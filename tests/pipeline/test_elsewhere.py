"""A worker elsewhere gets the same from its capture as a local one, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from tests.kvclient.test_tls import certified
from tests.pipeline.recorded import CAPTURE, RecordedFeed

from tidegate import __version__
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable
from tidegate.eventstore import seek
from tidegate.eventstore.store_view import read_manifest
from tidegate.model.reports import Durable, Failed
from tidegate.model.span import Span
from tidegate.pipeline.exchange import questions
from tidegate.pipeline.exchange.feed import DurableBefore, FeedSpec
from tidegate.pipeline.exchange.lines import WAITING_MAX, StreamLine
from tidegate.pipeline.exchange.questions import GetSpec, SpanKeys, SpecContent
from tidegate.pipeline.exchange.work import (
    NO_LEASE,
    TO_WORKER,
    Begin,
    Begun,
    Deliver,
    Delivered,
    ElsewhereHello,
    GiveUp,
    Lease,
    ToWorker,
    WorkerHello,
    parse,
    to_json,
)
from tidegate.pipeline.host.host import Host
from tidegate.pipeline.host.incarnation import Incarnation
from tidegate.pipeline.remote import service as service_module
from tidegate.pipeline.remote.elsewhere import Capture, RemoteAccess, serve
from tidegate.pipeline.remote.service import ERROR, SECRET, Service
from tidegate.pipeline.worker.access import Access, LocalAccess
from tidegate.sink import quarantine
from tidegate.sink.base import Description
from tidegate.tls import Tls

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
WAIT_S = 60


class Here:
    """A capture with one changefeed, and its service."""

    def __init__(self, folder: Path, tls: Tls | None = None, names: tuple[str, ...] = ()) -> None:
        self.feed = RecordedFeed(folder / "capture", BANK, URI, UPTO)
        path = self.feed.write()
        self.spec = FeedSpec.load(path)
        self.spec.durable_file.write_text(json.dumps(DurableBefore().to_json()))
        self.reported: list[Any] = []
        self.over = threading.Event()
        self.host = Host(folder, 2, lambda one: self.over.set(), elsewhere=True)
        self.one = Incarnation(self.spec, str(path), self.reported.append, lambda: None)
        self.host.begin(self.one)
        self.service = Service(self.host, "127.0.0.1:0", tls, names)
        self.service.start()
        self.captures: list[Capture] = []
        self.ended_jobs: list[str] = []
        self._jobs = NoJobs()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run(self) -> None:
        """Give work to workers that come, until `close`."""
        self._thread.start()

    def _run(self) -> None:
        with suppress(Retryable):
            self.host.run(self._jobs)

    def capture(self, tls: Tls | None = None) -> Capture:
        self.captures.append(Capture(self.service.address, tls))
        return self.captures[-1]

    def access(self, secret: str | None = None) -> RemoteAccess:
        secret = self.one.secret if secret is None else secret
        return RemoteAccess(self.capture(), secret, lambda: None)

    def nonce(self, name: str = "job") -> str:
        return self.service.expect(lambda: self.ended_jobs.append(name))

    def come(self, **hello: Any) -> StreamLine:
        """A worker connects."""
        line = self.capture().line()
        known = ElsewhereHello(1, "there", __version__, hello.get("nonce") or self.nonce())
        line.send_message(to_json(replace(known, **hello)))
        return line

    def close(self) -> None:
        for each in self.captures:
            each.close()
        self.service.stop()
        # Its threads look for work all the time, and would slow down every later test.
        self.host._threads.fail(Retryable("the test is over"))
        self._jobs.over.set()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive(), "it runs"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    running = Here(tmp_path)
    yield running
    running.close()


def eventually(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def received(line: StreamLine) -> ToWorker | None:
    assert line.waits(WAIT_S)
    message = line.receive()
    return None if message is None else parse(message, TO_WORKER)


# --- the same as on the capture's machine -------------------------------------------------------------------


def test_what_is_asked_by_the_network_is_what_the_files_say(here: Here) -> None:
    near: Access = LocalAccess(here.spec)
    far: Access = here.access()
    hidden = {"feed_dir": Path("x")}
    assert replace(far.spec, **hidden) == replace(near.spec, **hidden)
    assert far.bounds() == near.bounds()
    assert far.durable() == near.durable() == DurableBefore()
    for span in [*near.bounds().spans, near.bounds().ddl_span]:
        assert far.span(span) == near.span(span)
    assert far.granted(NO_LEASE) == near.granted(NO_LEASE) == (Span(b"", b""),)
    assert far.catalogue(here.feed.start_ts).dump() == near.catalogue(here.feed.start_ts).dump()
    here.spec.durable_file.unlink()
    assert far.durable() is None
    assert far.begun({}) == near.begun({})


@pytest.mark.parametrize("size", [1, 5_000, 1 << 30], ids=["a block", "some blocks", "all"])
def test_events_come_in_the_same_order_whatever_an_answer_holds(
    here: Here, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(service_module, "READ_BYTES", size)
    near: Access = LocalAccess(here.spec)
    far: Access = here.access()
    spans = [(span, ts, here.feed.last_ts) for span, ts in near.bounds().spans.items()]
    tables = [table for table in here.feed.rows if table < 1 << 40][:1]
    (middle, *_) = near.read(spans)
    place = seek.place_of(middle, middle.num_rows // 2)
    for past in (None, place, place[:3]):
        for wanted in (None, tables):
            expected = pa.Table.from_batches(near.read(spans, past, wanted), middle.schema)
            assert pa.Table.from_batches(far.read(spans, past, wanted), middle.schema).equals(expected)
            assert expected.num_rows > 0


def test_what_cannot_be_read_here_is_the_same_error_there(here: Here) -> None:
    ahead = [
        (span, ts, here.feed.last_ts + 100) for span, ts in LocalAccess(here.spec).bounds().spans.items()
    ]
    for access in (LocalAccess(here.spec), here.access()):
        with pytest.raises(Retryable, match="not") as caught:
            list(access.read(ahead))
        assert "resolved" in caught.value.render()


def test_what_is_set_aside_is_in_the_quarantine_with_its_bytes(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipeline.remote.elsewhere.ASIDE_BYTES", 100)
    entries = [{"where": {"span": str(i)}, "why": "it is", "key": bytes([i]) * 50} for i in range(5)]
    here.access().set_aside(entries)
    assert quarantine.read(here.spec.feed_dir / "quarantine.jsonl") == entries


# --- and no more --------------------------------------------------------------------------------------------


def test_only_the_word_of_a_running_incarnation_opens_anything(here: Here) -> None:
    access = here.access()
    for secret in ("", "0" * 64, here.one.secret[:-1]):
        with pytest.raises(Fenced, match="is over"):
            here.access(secret)
    here.host.end(here.one.key)
    assert here.over.wait(WAIT_S)
    for ask in (access.bounds, lambda: access.granted(NO_LEASE), lambda: access.set_aside([{"why": "x"}])):
        with pytest.raises(Fenced, match="is over"):
            ask()
    with pytest.raises(Fenced, match="is over"):
        list(access.read([("0" * 16, 0, 1)]))
    assert not (here.spec.feed_dir / "quarantine.jsonl").exists()


def test_a_proof_says_what_is_granted_now_and_to_whom_the_slot_is_leased(here: Here) -> None:
    access = here.access()
    mine = here.one.leases.lease("a worker", [])
    assert mine is not None
    assert access.granted(mine) == (Span(b"", b""),)
    access.confirm(mine)
    here.one.leases.end("a worker")
    other = here.one.leases.lease("another", [])
    assert other == Lease(mine.slot, mine.number + 1)
    for ask in (access.granted, access.confirm):
        with pytest.raises(Fenced, match="was given to another worker"):
            ask(mine)
    here.feed.grant(2)
    with pytest.raises(Fenced, match="another incarnation"):
        access.granted(other)


def test_no_events_but_those_of_its_ranges_and_ddl_are_given(tmp_path: Path) -> None:
    here = Here(tmp_path)
    try:
        mine, *others = sorted(LocalAccess(here.spec).bounds().spans)
        held = read_manifest(here.spec.store_dir, mine).span
        here.one.spec = replace(here.spec, ranges=(held,))
        access = here.access()
        assert access.span(mine).span == held
        assert access.span(access.bounds().ddl_span)
        for ask in (access.span, lambda span: list(access.read([(span, 0, 1)]))):
            with pytest.raises(Fenced, match="not the changefeed's"):
                ask(others[0])
            for strange in ("../../metadata.db", "/etc", "", "0" * 15):
                with pytest.raises(Fenced, match="not a span"):
                    ask(strange)
    finally:
        here.close()


def refusal(here: Here, message: Any) -> Failed:
    """The answer to a message that is no question."""
    named = message.get("type") if isinstance(message, dict) else None
    method = {"read-events": "Read", "read-base": "Catalogue"}.get(named, "Ask")
    call = here.capture()._unary[method]
    data = call(json.dumps(message).encode(), timeout=WAIT_S, metadata=((SECRET, here.one.secret),))
    return questions.parse(json.loads(data.removeprefix(ERROR)), [Failed])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"type": "nothing"}, "'nothing' does not belong here"),
        ([], "None does not belong here"),
        ({"type": "get-span"}, "get-span has the members [], not ['span']"),
        ({"type": "get-spec", "more": 1}, "get-spec has the members ['more'], not []"),
        ({"type": "set-aside", "entries": 3}, "a list of entries is none"),
        ({"type": "set-aside", "entries": [{"key": {"base64": 5}}]}, "not in base64"),
        ({"type": "get-base", "ts": "1"}, "'1' is not int"),
        ({"type": "get-granted", "lease": {"slot": 1}}, "lease has the members ['slot']"),
        ({"type": "read-base", "base": ["../../../x", 1], "offset": 0}, "'../../../x' is not int"),
        ({"type": "read-events", "spans": [1], "past": None, "tables": None}, "range is no object"),
        ({"type": "read-events", "spans": [], "past": [1], "tables": None}, "no place in the event store"),
    ],
)
def test_what_nobody_asks_for_is_refused_with_its_reason(here: Here, message: Any, why: str) -> None:
    found = refusal(here, message)
    assert found.kind == "Fenced"
    assert found.what == "the worker asked a question that the capture does not know"
    assert why in found.why
    assert found.where.startswith("tidegate.Capture/")
    assert "same version" in found.fix


def test_an_answer_that_a_worker_does_not_understand_is_an_error(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "_answer", lambda *given: SpanKeys(Span(b"a", b"b"), 7))
    with pytest.raises(Retryable, match="does not understand") as caught:
        here.access()
    assert "'span-keys' does not belong here" in caught.value.why
    assert caught.value.where.endswith("Ask")
    answer: Any = {"type": "spec-content", "spec": {**here.spec.to_json(), "sink_uri": 3}}
    monkeypatch.setattr(service_module, "_encoded", lambda given: json.dumps(answer).encode())
    with pytest.raises(Retryable, match="does not understand") as caught:
        here.access()
    assert "the spec has another form" in caught.value.why


# --- who comes to work --------------------------------------------------------------------------------------


def test_a_worker_gets_work_by_the_word_and_its_slot_by_lease(here: Here) -> None:
    here.run()
    line = here.come()
    assert received(line) == Begin(here.one.secret)
    line.send_message(to_json(Begun(LocalAccess(here.spec).bounds().spans)))
    piece = received(line)
    assert isinstance(piece, Deliver)
    assert (piece.spec, piece.lease.number) == (here.one.secret, 1)
    here.access().confirm(piece.lease)
    reported = threading.Event()
    here.one.send = lambda report: reported.set() if isinstance(report, Durable) else None
    line.send_message(to_json(Delivered({one.span: one.upto for one in piece.ranges}, {})))
    assert reported.wait(WAIT_S)
    line.close()


def test_one_whose_line_ends_is_not_counted_on_and_its_job_is_ended(here: Here) -> None:
    here.run()
    line = here.come(nonce=here.nonce("its job"))
    assert isinstance(received(line), Begin)
    line.close()
    assert here.over.wait(WAIT_S)
    assert here.one.given_up
    assert here.one.error is not None
    assert "on there" in here.one.error.render()
    with pytest.raises(Fenced):
        here.access()
    eventually(lambda: here.ended_jobs == ["its job"])


@dataclass
class Fences:
    """A sink of which only its description and its fence are asked for."""

    described: Description
    over: threading.Event
    fenced: list[tuple[dict[str, int], bool]] = field(default_factory=list)
    """Whom, and whether the incarnation had ended by then."""
    fails: bool = False
    asks: Callable[[], object] = lambda: None
    """The acts of a worker that was given up meanwhile."""
    refused: bool = False

    def describe(self) -> Description:
        return self.described

    def fence(self, writers: Mapping[str, int], prove: Callable[[], None]) -> dict[str, bytes]:
        self.fenced.append((dict(writers), self.over.is_set()))
        try:
            self.asks()
        except Fenced:
            self.refused = True
        if self.fails:
            raise Retryable("the sink is gone")
        return {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_never_ends_is_fenced_before_its_feeds_end_is_known(
    here: Here, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A changefeed that is paused has no next incarnation to do it."""
    sink = Fences(here.spec.sink.describe(), here.over, fails=fails)
    monkeypatch.setattr(FeedSpec, "sink", sink)
    here.run()
    line = here.come()
    assert isinstance(received(line), Begin)
    access = here.access()
    sink.asks = lambda: access.granted(NO_LEASE)
    here.host.end(here.one.key)  # the worker never says that it is done
    assert here.over.wait(WAIT_S)
    while (message := received(line)) is not None:
        assert isinstance(message, GiveUp)
    assert sink.refused, "else it could open a writer after the fence"
    assert sink.fenced == [({CAPTURE: here.spec.slots}, False)]
    log = here.spec.feed_dir / "log"
    assert ("could not be fenced" in log.read_text()) if fails else not log.exists()


def test_who_is_done_in_time_needs_no_fence(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Fences(here.spec.sink.describe(), here.over)
    monkeypatch.setattr(FeedSpec, "sink", sink)
    monkeypatch.setattr("tidegate.pipeline.host.incarnations.GRACE_S", WAIT_S)
    here.run()
    line = here.come()
    assert isinstance(received(line), Begin)
    here.host.end(here.one.key)
    line.send_message(to_json(Begun({})))
    assert here.over.wait(WAIT_S)
    assert sink.fenced == []


@pytest.mark.parametrize("lacks", [{"here": True}, {"fenced_by": ""}])
def test_a_sink_that_only_the_captures_machine_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: dict[str, Any]
) -> None:
    known = vars(FeedSpec)["sink"].fget
    monkeypatch.setattr(
        FeedSpec,
        "sink",
        property(lambda spec: Fences(replace(known(spec).describe(), **lacks), threading.Event())),
    )
    here = Here(tmp_path)
    try:
        assert here.over.wait(WAIT_S)
        assert isinstance(here.one.error, Fatal)
        assert "--spark-master local" in here.one.error.fix
    finally:
        here.close()


def test_a_task_that_spark_runs_again_asks_for_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*given: Any) -> Capture:
        raise AssertionError("it reaches for the capture")

    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    monkeypatch.setattr("tidegate.pipeline.remote.elsewhere.Capture", connect)
    nonce = here.nonce()
    serve(here.service.address, nonce, iter([0]))
    assert here.service._expected.keys() == {nonce}


ENDS = """
import time
from tidegate.pipeline.remote.elsewhere import end_with
from tidegate.pipeline.exchange.lines import StreamLine

line = StreamLine(lambda: None)
end_with(line)
print("busy", flush=True)
line.end()
time.sleep(60)
"""


def test_a_process_ends_with_its_line_in_the_midst_of_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    done = subprocess.run([sys.executable, "-c", ENDS], stdout=subprocess.PIPE, text=True, timeout=WAIT_S)
    assert (done.stdout, done.returncode) == ("busy\n", -9)


def test_a_nonce_is_good_once_and_versions_are_the_same(here: Here) -> None:
    nonce = here.nonce()
    first = here.come(nonce=nonce)
    eventually(lambda: here.host._workforce.free == 1)
    assert received(here.come(nonce=nonce)) is None
    assert "came twice" in here.service.refused
    assert received(here.come(nonce="0" * 64)) is None
    void = here.nonce()
    here.service.forget(void)
    assert received(here.come(nonce=void)) is None
    assert received(here.come(version="0.0.9")) is None
    assert "there has Tidegate 0.0.9" in here.service.refused
    line = here.capture().line()
    line.send_message(to_json(WorkerHello(1)))
    assert received(line) is None
    last = here.come()
    eventually(lambda: here.service.refused == "")
    assert not any(each.waits(0.5) for each in (first, last)), "they wait for work"


class Room(threading.Semaphore):
    """Says when it was taken first."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.taken = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        found = super().acquire(blocking, timeout)
        if found:
            self.taken.set()
        return found


def test_no_more_unknown_senders_are_read_than_there_is_room_for(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(1)
    monkeypatch.setattr(here.service, "_unidentified", room)
    silent = here.capture().line()
    assert room.taken.wait(WAIT_S), "however slow its connection is"
    one_more = here.capture().line()
    with suppress(BrokenPipeError):  # it may have been sent away before it says who it is
        one_more.send_message(to_json(ElsewhereHello(1, "there", __version__, here.nonce())))
    assert received(one_more) is None
    silent.close()


def test_one_that_sends_without_end_is_sent_away() -> None:
    line = StreamLine(lambda: None)
    line.feed(b"{}" for _ in range(WAITING_MAX + 10))
    assert line.ended is False  # what has come before is still there
    assert sum(line.receive() is not None for _ in range(WAITING_MAX)) == WAITING_MAX
    assert line.receive() is None


def test_certificates_are_asked_for_and_their_names_count(tmp_path: Path) -> None:
    ours, theirs = certified(tmp_path, "ours"), certified(tmp_path, "theirs")
    here = Here(tmp_path, ours, ("ours",))
    try:
        assert here.capture(ours).ask(here.one.secret, GetSpec(), SpecContent).spec.name == here.feed.name
        for tls in (theirs, None):
            with pytest.raises(Retryable, match="UNAVAILABLE"):
                here.capture(tls).ask(here.one.secret, GetSpec(), SpecContent)
    finally:
        here.close()


def test_a_certificate_of_another_name_is_none(tmp_path: Path) -> None:
    ours = certified(tmp_path, "ours")
    here = Here(tmp_path, ours, ("theirs",))
    try:
        with pytest.raises(Retryable, match="PERMISSION_DENIED"):
            here.capture(ours).ask(here.one.secret, GetSpec(), SpecContent)
        assert received(here.capture(ours).line()) is None
    finally:
        here.close()


def test_an_address_that_is_taken_is_named(here: Here) -> None:
    with pytest.raises(InvalidInput, match="cannot be used"):
        Service(here.host, here.service.address, None)


class NoJobs:
    """Workers come by themselves."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def size(self) -> int:
        return 2

    def spares(self) -> int:
        return 0

    def run(self) -> None:
        self.over.wait()

    def trouble(self) -> str:
        return ""
