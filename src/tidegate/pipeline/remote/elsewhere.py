"""A worker on another machine, which reaches its capture only over the network.

    a Spark job of one task --> serve --> Capture/Work: pieces of work, the same as for any worker
                                      --> RemoteAccess: what a piece needs, from `pipeline.remote.service`

The process kills itself as soon as its line to the application ends, because the host has given it up by
then. Before each commit it asks the host whether its lease is still valid. If the lease ends after that
answer, the sink's fence stops the commit.

Certificates come from files on this machine, named by its environment (TIDEGATE_CA, _CERT, _KEY).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, assert_never

import grpc
import pyarrow as pa
from pyspark import TaskContext

from tidegate import __version__
from tidegate.errors import Retryable
from tidegate.eventstore.seek import place_of
from tidegate.grpc_tls import client_credentials
from tidegate.model.position import Place
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.mounter import bases
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.exchange import questions
from tidegate.pipeline.exchange.beats import INTERVAL_S
from tidegate.pipeline.exchange.feed import Bounds, DurableBefore
from tidegate.pipeline.exchange.lines import StreamLine
from tidegate.pipeline.exchange.questions import (
    BaseFound,
    BoundsContent,
    DurableRows,
    Fetch,
    GetBase,
    GetBegun,
    GetBounds,
    GetDurable,
    GetGranted,
    GetSpan,
    GetSpec,
    Granted,
    Kept,
    Question,
    ReadBase,
    ReadEvents,
    SetAside,
    SpanKeys,
    SpecContent,
)
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Alive, Begun, ElsewhereHello, Lease, Tasks, to_json
from tidegate.pipeline.remote.service import ERROR, MORE, NAME, OPTIONS, SECRET
from tidegate.pipeline.worker import kept
from tidegate.pipeline.worker.access import Ranges, SpanState
from tidegate.pipeline.worker.load_task import load
from tidegate.pipeline.worker.worker import work
from tidegate.sink import quarantine
from tidegate.tls import Tls

CALL_S: Final = 60.0
"""The timeout of a call. The application answers in milliseconds, unless its machine hangs."""
ASIDE_BYTES: Final = 8 << 20
"""The most bytes of quarantine entries in one call. A larger entry is sent alone."""
BASE_TRIES: Final = 10
"""How often a base file is fetched, at most: the capture may replace it during the fetch."""

Reply = TypeVar("Reply")


class Capture:
    """The connection to one application."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self._address = address
        self._channel = (
            grpc.insecure_channel(address, options)
            if tls is None
            else grpc.secure_channel(address, client_credentials(tls), options)
        )
        self._work = self._channel.stream_stream(f"/{NAME}/Work")
        self._unary = {
            name: self._channel.unary_unary(f"/{NAME}/{name}") for name in ("Ask", "Read", "Catalogue")
        }

    def line(self) -> StreamLine:
        """Open the stream for pieces of work."""
        line = StreamLine(lambda: call.cancel())
        call = self._work(line.outgoing())
        threading.Thread(target=line.feed, args=(call,), name="line", daemon=True).start()
        return line

    def ask(self, secret: str, question: Question, kind: type[Reply]) -> Reply:
        """The answer, which is of this kind. Raises what the capture raised, and Retryable when it does not
        answer.
        """
        data = self._call("Ask", secret, question)
        with self.understood("Ask"):
            answer = questions.parse_answer(json.loads(data), kind)
        if isinstance(answer, Failed):
            raise answer.error()
        return answer

    def fetch(self, secret: str, fetch: Fetch) -> tuple[bool, bytes]:
        """Whether there is more to fetch, and the bytes of this answer. Raises as `ask`."""
        match fetch:
            case ReadEvents():
                method = "Read"
            case ReadBase():
                method = "Catalogue"
            case _:
                assert_never(fetch)
        data = self._call(method, secret, fetch)
        if data[:1] == ERROR:
            with self.understood(method):
                failed = questions.parse(json.loads(data[1:]), [Failed])
            raise failed.error()
        return data[:1] == MORE, data[1:]

    @contextmanager
    def understood(self, method: str) -> Iterator[None]:
        """Raises Retryable if reading an answer within it fails."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Retryable(
                "the worker does not understand its capture",
                where=f"{self._address}, {method}",
                why=(str(error) if isinstance(error, ValueError) else repr(error))[:500],
                fix="install the same version of Tidegate on this machine and on the capture's",
            ) from error

    def close(self) -> None:
        """End all calls."""
        self._channel.close()

    def _call(self, method: str, secret: str, asked: Question | Fetch) -> bytes:
        request = json.dumps(questions.to_json(asked)).encode()
        try:
            data: bytes = self._unary[method](request, timeout=CALL_S, metadata=((SECRET, secret),))
        except grpc.RpcError as error:
            raise Retryable(
                "the capture does not answer a worker",
                where=f"{self._address}, {method}",
                why=f"{error.code().name}: {error.details()}",
            ) from error
        return data


class RemoteAccess:
    """`pipeline.worker.access.Access` over the capture's service."""

    def __init__(self, capture: Capture, secret: str, beat: Callable[[], None]) -> None:
        """`secret`: the secret of the incarnation. `beat`: reports that work was done."""
        self._capture, self._secret = capture, secret
        self.spec = self._ask(GetSpec(), SpecContent).spec
        self.is_over = False
        self.beat = beat

    def _ask(self, question: Question, kind: type[Reply]) -> Reply:
        return self._capture.ask(self._secret, question, kind)

    def durable(self) -> DurableBefore | None:
        return self._ask(GetDurable(), DurableRows).durable

    def bounds(self) -> Bounds:
        return self._ask(GetBounds(), BoundsContent).bounds

    def span(self, name: str) -> SpanState:
        found = self._ask(GetSpan(name), SpanKeys)
        return SpanState(found.keys, found.dropped_to)

    def read(
        self, spans: Ranges, past: Place | None = None, tables: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        ids = None if tables is None else tuple(sorted(tables))
        more = True
        while more:
            ranges = tuple(Range(*span) for span in spans)
            more, data = self._capture.fetch(self._secret, ReadEvents(ranges, past, ids))
            last: pa.RecordBatch | None = None
            with pa.ipc.open_stream(pa.py_buffer(data)) as blocks:
                for block in blocks:
                    if block.num_rows:
                        last = block
                        yield block
            if more:
                # Without a row the place does not move, and the same question would be asked for ever.
                if last is None:
                    raise Retryable("the capture reports more rows, and sends none")
                past = place_of(last, last.num_rows - 1)
                # Skip everything below the commit ts of the last row: it need not be read again.
                before = past[0] - 1
                spans = [(span, max(after, before), upto) for span, after, upto in spans if upto > before]

    def catalogue(self, ts: Timestamp) -> SchemaStore:
        for _ in range(BASE_TRIES - 1):
            try:
                return self._catalogue(ts)
            except Retryable:
                time.sleep(0.1)  # the base was replaced during the fetch
        return self._catalogue(ts)

    def _catalogue(self, ts: Timestamp) -> SchemaStore:
        base = self._ask(GetBase(ts), BaseFound).base
        if base is None:
            raise Retryable("the catalogue is not there", fix="nothing: the capture reads it from upstream")
        with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
            with (Path(folder) / base.name).open("wb") as file:
                more = True
                while more:
                    more, data = self._capture.fetch(self._secret, ReadBase(base, file.tell()))
                    file.write(data)
            return bases.load(Path(folder), base)  # the mapping stays valid after the file is removed

    def set_aside(self, entries: Sequence[Mapping[str, Any]]) -> None:
        some: list[Mapping[str, Any]] = []
        size = 0
        for entry in entries:
            length = len(json.dumps(quarantine.to_json(entry)))
            if some and size + length > ASIDE_BYTES:
                self._ask(SetAside(some), Kept)
                some, size = [], 0
            # In order, and each part on the capture's disk before the next: what is sent to the sink
            # afterwards must not precede an entry in the quarantine.
            some.append(entry)
            size += length
        if some:
            self._ask(SetAside(some), Kept)

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        return self._ask(GetGranted(lease), Granted).ranges

    def confirm(self, lease: Lease) -> None:
        # docs/guarantees.md#a-worker-on-another-machine-that-was-given-up-writes-nothing-that-counts: the
        # host refuses a lease that another worker has by now.
        self.granted(lease)

    def begun(self, records: Mapping[str, bytes]) -> Begun:
        return self._ask(GetBegun(records), Begun)


class AliveReporter:
    """Sends Alive on the line when work was done, at intervals. Callable from several threads."""

    def __init__(self, line: StreamLine) -> None:
        self._line = line
        self._sent_at = float("-inf")

    def beat(self) -> None:
        """Report that work was done just now."""
        now = time.monotonic()
        if now - self._sent_at >= INTERVAL_S:
            self._sent_at = now
            try:
                self._line.send_message(to_json(Alive()))
            except OSError:
                return  # the process is about to end


def serve(address: str, nonce: str, _: Iterator[int]) -> None:
    """The task of a job: work until the application ends the connection; then the process kills itself.

    When Spark has lost an executor, it runs the task again in spite of all settings. Such a second attempt
    returns at once, because the nonce is valid only once.
    """
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        return
    capture = Capture(address, Tls.from_environment())
    # Before the hello, so that the end of the line is noticed from the first moment on.
    line = capture.line()
    # The process may be doing anything when the line ends, so it is killed. Spark's next task gets a new one.
    end_with(line)
    line.send_message(to_json(ElsewhereHello(os.getpid(), socket.gethostname(), __version__, nonce)))
    reporter = AliveReporter(line)
    kept.OPENED[0] = lambda secret: RemoteAccess(capture, secret, reporter.beat)
    work(line, Tasks(kept.begin, kept.deliver, load, kept.rest))


def end_with(line: StreamLine) -> None:
    """Kill this process when the line ends."""

    def wait() -> None:
        line.wait_end()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-line", daemon=True).start()
