"""The puller's process: follows key spans upstream and writes the event store.

    python -m tidegate.program tidegate.server.pulling.puller_process DATA_DIR PD
        [DISK_BYTES [KV_MODE [KEEP_FREE]]]

There is one for each kv mode that feeds use, each with an event store of its own.

The control process sends it over a socket which spans to follow (`model.reports`). It reports its status
every 200 ms, spans that it refuses to register below the safepoint, and errors; while the disk is full, an
error every 10 s. An order that needs more disk space than there is waits until there is enough. The process
ends when the socket closes, and leaves no partly written file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, assert_never

from tidegate import log
from tidegate.config.values import TABLE_MODE
from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore.store import EventStore
from tidegate.heap import keep_freed
from tidegate.ipc import ControlClient
from tidegate.kvclient.pd import PdClient
from tidegate.model.reports import (
    TO_PULLER,
    DropBelow,
    Failed,
    PullerHello,
    Refused,
    Remove,
    SafePoint,
    SpanStatus,
    Status,
    Unwatch,
    Watch,
)
from tidegate.model.span import Span
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.puller import Puller
from tidegate.server.pulling.backfill import Backfill
from tidegate.server.pulling.segment_repairs import SegmentRepairs

STATUS_S: Final = 0.2
STATUS_LINES: Final = 4096
"""Spans in one message. Each takes about 100 bytes, 1 KiB at most, so a message fits into `ipc.MAX_FRAME`."""
Order = Watch | Unwatch | DropBelow | Remove
"""An order about one span."""
KEPT_BYTES: Final = 32 << 20
MAPPED_FROM: Final = 8 << 20
"""How much freed memory of messages is kept (`heap.keep_freed`): those that are whole in one read of the
socket. Larger ones have memory of their own (`kvclient.stream_loop`)."""
TROUBLE_S: Final = 10.0
"""How often a lasting lack of disk space is reported."""


def store_dir(data_dir: Path, cluster_id: int, kv_mode: str = TABLE_MODE) -> Path:
    """The folder of a cluster's event store."""
    return data_dir / "events" / str(cluster_id) / kv_mode


def run(
    data_dir: Path, pd_address: str, disk_bytes: int = 0, kv_mode: str = TABLE_MODE, keep_free: int = 0
) -> int:
    """Serve until the socket closes; returns the exit code.

    `disk_bytes`: the event store's quota, 0 for none; `keep_free`: how many bytes of the disk it leaves free.
    """
    # Before the first message: otherwise its memory goes back to the kernel each time a batch was matched.
    keep_freed(KEPT_BYTES, MAPPED_FROM)
    control = ControlClient(data_dir / "control.sock", PullerHello(kv_mode, os.getpid()))
    # The signal only closes the socket. Then `_serve` returns, and the store is closed as at any other end.
    signal.signal(signal.SIGTERM, lambda number, frame: _end(control, number, frame))
    try:
        with PdClient(pd_address) as pd:
            folder = store_dir(data_dir, pd.cluster_id, kv_mode)
            notices = _Notices()
            store = EventStore(
                folder,
                disk_bytes=disk_bytes,
                kv_mode=kv_mode,
                keep_free=keep_free,
                on_pulled_again=notices.add,
            )
            memory = StreamMemory()
            backfill = Backfill(pd, store, notices.add)
            puller = Puller(
                pd,
                store,
                memory=memory,
                spill=folder / "spill",
                kv_mode=kv_mode,
                on_failure=lambda error: _stop(control, error),
                on_refused=partial(_refused, control),
                on_watch=backfill.want,
            )
            repairs = SegmentRepairs(pd, store, memory)
            try:
                _serve(control, store, puller, notices)
            finally:
                # The store is closed last, because all the others write to it.
                repairs.close()
                backfill.close()
                puller.close()
                store.close()
    except TidegateError as error:
        _report(control, error)
        return error.exit_code
    return 0


def _end(control: ControlClient, number: int, frame: FrameType | None) -> None:
    control.close()


def _stop(control: ControlClient, error: TidegateError) -> None:
    """Report a failure after which the puller cannot continue, and end the process."""
    _report(control, error)
    control.close()


def _serve(control: ControlClient, store: EventStore, puller: Puller, notices: _Notices) -> None:
    done = threading.Event()
    orders = _Orders(control, store, puller)
    status = threading.Thread(
        target=_send_status, args=(control, store, puller, orders, notices, done), name="status", daemon=True
    )
    status.start()
    try:
        while (report := control.receive(TO_PULLER)) is not None:
            if isinstance(report, SafePoint):
                puller.keep_above(report.ts, report.keyspace)
            else:
                orders.take(report)
    finally:
        done.set()
        status.join()


class _Orders:
    """The orders of the control process, in order for each span. Orders that fail are tried again."""

    def __init__(self, control: ControlClient, store: EventStore, puller: Puller) -> None:
        self._control, self._store, self._puller = control, store, puller
        self._lock = threading.Lock()
        self._waiting: list[Order] = []

    def take(self, order: Order) -> None:
        """Carry out an order, after those that wait for the same span."""
        # Two orders of a span must not change places. An unwatch that overtook a waiting watch would be
        # undone by it.
        with self._lock:
            if any(each.span == order.span for each in self._waiting) or not self._do(order):
                self._waiting.append(order)

    def again(self) -> None:
        """Try the waiting orders again."""
        with self._lock:
            stuck: set[Span] = set()
            rest = []
            for order in self._waiting:
                # Orders of one span are carried out in their order, so those after one that waits have to
                # wait too.
                if order.span in stuck or not self._do(order):
                    stuck.add(order.span)
                    rest.append(order)
            self._waiting = rest

    def _do(self, order: Order) -> bool:
        try:
            _perform(order, self._store, self._puller)
        except Retryable as error:
            _report(self._control, error)
            return False
        return True


def _perform(order: Order, store: EventStore, puller: Puller) -> None:
    match order:
        case Watch(span, start_ts, guarded):
            puller.watch(span, start_ts, guarded=guarded)
        case Unwatch(span):
            puller.unwatch(span)
        case DropBelow(span, ts):
            store.open_span(span).drop_below(ts)
        case Remove(span):
            puller.unwatch(span)
            store.remove_span(span)
        case _:
            assert_never(order)


class _Notices:
    """Notices of the event store about spans that are pulled again; several are combined into one report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: Retryable | None = None
        self._count = 0

    def add(self, notice: Retryable) -> None:
        """Add a notice; may be called in any thread."""
        with self._lock:
            self._first = self._first or notice
            self._count += 1

    def take(self) -> Retryable | None:
        """The combined notice since the last call; None: there was none."""
        with self._lock:
            first, count = self._first, self._count
            self._first, self._count = None, 0
        if first is None or count == 1:
            return first
        where = f"{first.where}; and {count - 1} more, which the puller's log names"
        return Retryable(first.what, where=where, why=first.why, fix=first.fix)


def _send_status(
    control: ControlClient,
    store: EventStore,
    puller: Puller,
    orders: _Orders,
    notices: _Notices,
    done: threading.Event,
) -> None:
    reported_at = float("-inf")
    while not done.wait(STATUS_S):
        try:
            for report in status_reports(puller.status(), store.filling):
                control.send(report)
        except Retryable:
            return
        if (notice := notices.take()) is not None:
            _report(control, notice)
        # Each order that fails is reported. While the trouble lasts, orders are tried only as often as the
        # trouble is reported.
        if puller.trouble and time.monotonic() - reported_at > TROUBLE_S:
            reported_at = time.monotonic()
            _report(control, _no_room(puller.trouble))
            orders.again()
        elif not puller.trouble:
            reported_at = float("-inf")
            orders.again()


def status_reports(lines: list[SpanStatus], filling: str = "") -> list[Status]:
    """The status of all spans, in several messages if needed, because the size of a frame is bounded."""
    cuts = range(0, max(1, len(lines)), STATUS_LINES)
    return [
        Status(lines[at : at + STATUS_LINES], at == 0, at + STATUS_LINES >= len(lines), filling)
        for at in cuts
    ]


def _no_room(why: str) -> Retryable:
    return Retryable(
        "the puller waits: the event store is full",
        why=why,
        fix="free disk space, raise --event-store-quota, or let the slowest changefeed catch up",
    )


def _refused(control: ControlClient, span: Span, start_ts: int, safe_point: int) -> None:
    with suppress(Retryable):  # the control process is gone, so this process ends as well
        control.send(Refused(span, start_ts, safe_point))


def _report(control: ControlClient, error: TidegateError) -> None:
    try:
        control.send(Failed.of(error))
    except Retryable:
        with suppress(OSError):
            print(error, file=sys.stderr)


def _exit(code: int) -> NoReturn:
    """End with this code. On a full disk the interpreter's own final flush would change it to 120."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def main() -> NoReturn:
    """Run the puller with the arguments of the command line."""
    log.setup()
    given = sys.argv[3:]
    keep_free = int(given[2]) if len(given) > 2 else 0
    _exit(
        run(
            Path(sys.argv[1]),
            sys.argv[2],
            int(given[0]) if given else 0,
            given[1] if len(given) > 1 else TABLE_MODE,
            keep_free,
        )
    )
