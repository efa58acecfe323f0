"""The application's gRPC service for workers on other machines: their work, and all they read of the capture.

    tidegate.Capture/Work       a stream: the worker's line to the host (`exchange.work`), JSON each way
    tidegate.Capture/Ask        a question in, its answer out (`exchange.questions`): spec, bounds, span, ...
    tidegate.Capture/Read       a question in, events out, some MiB at a time
    tidegate.Capture/Catalogue  a question in, a piece of a base file out

A worker gets work if it shows the nonce of one of the application's jobs. Each piece of work carries the
secret of its incarnation, 256 random bits, and the worker sends this secret with every other call. The secret
gives access to the ranges of that incarnation until it ends: the host forgets the secret before it reports
Ended. With TLS both ends show certificates of one CA, and `--worker-cn` restricts their common names.

The other end is `pipeline.remote.elsewhere`. The service keeps no state between two calls.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar, assert_never

import grpc
import pyarrow as pa

from tidegate import __version__
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError
from tidegate.grpc_tls import server_credentials
from tidegate.model.block import ENTRY_SCHEMA
from tidegate.model.reports import Failed
from tidegate.mounter import bases
from tidegate.pipeline.exchange import questions
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.lines import StreamLine
from tidegate.pipeline.exchange.questions import (
    QUESTIONS,
    Answer,
    BaseFound,
    BoundsContent,
    DurableRows,
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
from tidegate.pipeline.exchange.work import ElsewhereHello, parse
from tidegate.pipeline.host.host import Host
from tidegate.pipeline.host.incarnation import Incarnation
from tidegate.pipeline.worker.worker import failed
from tidegate.tls import Tls

NAME: Final = "tidegate.Capture"
SECRET: Final = "tidegate-secret"
"""The metadata that names the caller's incarnation."""
READ_BYTES: Final = 16 << 20
"""An answer ends when it has this many bytes of events, and the caller asks for the next one."""
CHUNK_BYTES: Final = 8 << 20
"""Bytes of a base file in one answer."""
MESSAGE_BYTES: Final = 512 << 20
"""The longest message: an answer with two images of the largest row that TiDB takes (120 MiB each)."""
WORKERS_MAX: Final = 512
CALLS_MAX: Final = 128
"""Calls answered at the same time, in addition to the streams of `WORKERS_MAX` workers. Further calls
wait."""
READS_MAX: Final = 8
"""`Read` calls answered at the same time: each has several copies of its events in memory. Others wait."""
UNIDENTIFIED_MAX: Final = 64
"""Streams that have not sent their hello yet. A further one is ended."""
HELLO_S: Final = 30.0
END, MORE, ERROR = b"\0", b"\1", b"\2"
"""The first byte of an answer with bytes: the end of the data, more data to ask for, or an error as JSON."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""gRPC options of both ends: keepalive detects within 20 s that the other end is gone."""
_SPAN: Final = re.compile(r"[0-9a-f]{16}")
Kind = TypeVar("Kind")


class Service:
    """The server. Call `start` once, and `expect` for each job whose worker may connect."""

    def __init__(self, host: Host, address: str, tls: Tls | None, names: Sequence[str] = ()) -> None:
        """`address`: host:port to listen at; port 0 takes a free one. `names`: the common names that a
        worker's certificate may have; empty: any certificate of the CA is accepted.
        """
        self._host, self._names = host, frozenset(names)
        self._lock = threading.Lock()
        self._expected: dict[str, Callable[[], None]] = {}
        """Jobs whose workers have not connected yet, by nonce, each with the function that cancels it."""
        self._refused = ""
        self._reads = threading.Semaphore(READS_MAX)
        self._unidentified = threading.Semaphore(UNIDENTIFIED_MAX)
        handlers = {
            "Work": grpc.stream_stream_rpc_method_handler(self._work),
            "Ask": grpc.unary_unary_rpc_method_handler(self._ask),
            "Read": grpc.unary_unary_rpc_method_handler(self._read),
            "Catalogue": grpc.unary_unary_rpc_method_handler(self._catalogue),
        }
        self._server = grpc.server(
            # Each open stream keeps one of these threads, so calls need others.
            ThreadPoolExecutor(WORKERS_MAX + CALLS_MAX, thread_name_prefix="service"),
            handlers=[grpc.method_handlers_generic_handler(NAME, handlers)],
            options=(
                *OPTIONS,
                # Otherwise a second application could listen at the same address, and take some of our
                # workers.
                ("grpc.so_reuseport", 0),
                # Workers ping every 10 s, also without calls. By default a gRPC server ends connections that
                # do so.
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
                ("grpc.http2.max_ping_strikes", 0),
            ),
        )
        listens_at = address.rpartition(":")[0]
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, server_credentials(tls))
        except RuntimeError as error:
            raise InvalidInput(
                "the address for workers cannot be used", where=address, why=str(error), fix="give another"
            ) from error
        self.address = f"{listens_at}:{port}"
        """host:port where it listens, with the actual port."""
        self._is_secure = tls is not None

    def start(self) -> None:
        """Begin to answer calls."""
        self._server.start()

    def stop(self) -> None:
        """End all calls."""
        self._server.stop(None).wait()

    @property
    def refused(self) -> str:
        """Why the last worker that connected was refused; empty if it was not."""
        return self._refused

    def expect(self, end_job: Callable[[], None]) -> str:
        """A new nonce, which the worker of one job must show. `end_job`: cancels that Spark job."""
        nonce = os.urandom(32).hex()
        with self._lock:
            self._expected[nonce] = end_job
        return nonce

    def forget(self, nonce: str) -> None:
        """Stop waiting for the worker of a job that has ended."""
        with self._lock:
            self._expected.pop(nonce, None)

    # --- calls --------------------------------------------------------------------------------------------

    def _work(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self._admit(context)
        line = StreamLine(context.cancel)
        # The call has ended already, so nothing would end the line.
        if not context.add_callback(line.end):
            return
        threading.Thread(target=line.feed, args=(requests,), name="worker-in", daemon=True).start()
        threading.Thread(target=self._serve_worker, args=(line,), name="worker", daemon=True).start()
        yield from line.outgoing()

    def _serve_worker(self, line: StreamLine) -> None:
        hello = self._hello(line)
        if hello is None:
            line.close()
            return
        with self._lock:
            # Taken before the checks, so that a nonce admits one worker at most.
            end_job = self._expected.pop(hello.nonce, None)
        if end_job is None:
            self._refused = "a worker came twice, or not from a job of this application"
        elif hello.version != __version__:
            self._refused = f"{hello.machine:.80} has Tidegate {hello.version:.20}, this is {__version__}"
        else:
            self._refused = ""
            self._host.serve_elsewhere(line, hello, end_job)
            return
        line.close()

    def _hello(self, line: StreamLine) -> ElsewhereHello | None:
        """The worker's hello. None if it does not come in time, or if too many other streams wait for one."""
        if not self._unidentified.acquire(blocking=False):
            return None
        try:
            return parse(line.receive() or {}, [ElsewhereHello]) if line.waits(HELLO_S) else None
        except ValueError:
            return None
        finally:
            self._unidentified.release()

    def _ask(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._admit(context)
        answer: Answer | Failed
        try:
            answer = self._answer(self._incarnation(context), _asked("Ask", request, QUESTIONS))
        except Exception as error:
            # An error is an answer too. The worker could not tell from a failed call whether to stop or to
            # retry.
            answer = _reported(error)
        return _encoded(answer)

    def _read(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._admit(context)
        try:
            one, asked = self._incarnation(context), _asked("Read", request, [ReadEvents])
            # Before the wait for a turn, so that a refused call holds none.
            self._check_spans(one, [each.span for each in asked.spans])
            spans = [(each.span, each.after, each.upto) for each in asked.spans]
            with self._reads:
                return _some(one.access.read(spans, asked.past, asked.tables))
        except Exception as error:
            return ERROR + _encoded(_reported(error))

    def _catalogue(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._admit(context)
        try:
            folder = bases.folder_of(self._incarnation(context).spec.store_dir)
            asked = _asked("Catalogue", request, [ReadBase])
            # A base is two numbers, so its name cannot lead out of the folder.
            with (folder / asked.base.name).open("rb") as file:
                file.seek(asked.offset)
                data = file.read(CHUNK_BYTES)
                return (MORE if file.read(1) else END) + data
        # The capture has replaced the base. The worker asks again which one there is.
        except FileNotFoundError as error:
            reported = Retryable("a base of the catalogue is gone", where=str(error.filename))
            return ERROR + _encoded(_reported(reported))
        except Exception as error:
            return ERROR + _encoded(_reported(error))

    # --- who may ask --------------------------------------------------------------------------------------

    def _admit(self, context: grpc.ServicerContext) -> None:
        """Abort the call if the caller's certificate has none of the allowed common names."""
        if not self._names or not self._is_secure:
            return
        shown = [name.decode(errors="replace") for name in context.auth_context().get("x509_common_name", ())]
        if not self._names.intersection(shown):
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate's common name {shown} is not among those that are allowed",
            )

    def _incarnation(self, context: grpc.ServicerContext) -> Incarnation:
        shown = [value for key, value in context.invocation_metadata() if key == SECRET]
        return self._host.incarnation(shown[0] if shown else "")

    def _check_spans(self, one: Incarnation, spans: Sequence[str]) -> None:
        """Raise Fenced if a span is neither in the incarnation's ranges nor the span of DDL."""
        for span in spans:
            # First, because the name becomes a part of a path.
            if _SPAN.fullmatch(span) is None:
                raise Fenced("this is not a span", where=f"{span!r:.80}")
            keys = one.access.span(span).span
            granted = any(held.covers(keys) for held in one.spec.ranges)
            if not granted and span != one.access.bounds().ddl_span:
                raise Fenced("this span is not the changefeed's", where=span)

    # --- what is asked ------------------------------------------------------------------------------------

    def _answer(self, one: Incarnation, question: Question) -> Answer:
        """The answer to a worker of an incarnation. Raises what the worker gets as its error."""
        access = one.access
        match question:
            case GetSpec():
                return SpecContent(FeedSpec.load(one.spec.path))
            case GetDurable():
                return DurableRows(access.durable())
            case GetBounds():
                return BoundsContent(access.bounds())
            case GetSpan(span):
                self._check_spans(one, [span])
                return SpanKeys(*access.span(span))
            case GetBase(ts):
                found = bases.found(bases.folder_of(one.spec.store_dir))
                return BaseFound((bases.serving(found, ts) or found[0]) if found else None)
            case SetAside(entries):
                access.set_aside(entries)
                return Kept()
            case GetGranted(lease):
                # The worker is on another machine and may have been given up without its knowledge. It must
                # not write under the new holder's id.
                if lease.slot >= 0 and not self._host.holds(one, lease):
                    raise Fenced("the slot was given to another worker", where=f"slot {lease.slot}")
                return Granted(one.spec.granted())
            case GetBegun(records):
                return access.begun(records)
            case _:
                assert_never(question)


def _asked(method: str, request: bytes, kinds: Sequence[type[Kind]]) -> Kind:
    """A worker's question. Raises Fenced if it is none: a worker that does not speak as we do must stop."""
    try:
        return questions.parse(json.loads(request), kinds)
    except ValueError as error:
        raise Fenced(
            "the worker asked a question that the capture does not know",
            where=f"{NAME}/{method}",
            why=str(error)[:500],
            fix="install the same version of Tidegate on this machine and on the capture's",
        ) from error


def _encoded(answer: Answer | Failed) -> bytes:
    return json.dumps(questions.to_json(answer)).encode()


def _some(blocks: Iterator[pa.RecordBatch]) -> bytes:
    """An answer with as many blocks as fit, as an Arrow stream behind one byte (`END` or `MORE`)."""
    out, size, more = pa.BufferOutputStream(), 0, END
    # A placeholder. Only after the last block it is known whether there are more.
    out.write(END)
    with pa.ipc.new_stream(out, ENTRY_SCHEMA) as stream:
        for block in blocks:
            stream.write_batch(block)
            size += block.nbytes
            if size >= READ_BYTES:
                more = MORE
                break
    data: bytes = out.getvalue().to_pybytes()
    return data if more == END else more + data[1:]


def _reported(error: Exception) -> Failed:
    """The error as a worker gets it. Unless it is our own, it shows no paths or traces of the capture."""
    if isinstance(error, TidegateError):
        return failed(error)
    return replace(failed(Retryable("the capture cannot answer a worker")), why=repr(error)[:500])
