"""The work of a worker process for each kind of piece, and the state that it keeps between pieces.

Opening a sink's writer and the schemas takes longer than most pieces, so the process keeps them, within
bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tidegate.pipeline.exchange.work import NO_LEASE, Begin, Begun, Deliver, Load, OnDurable, Report
from tidegate.pipeline.worker.access import Access, local
from tidegate.pipeline.worker.buffers import BUFFERS, CELLS
from tidegate.pipeline.worker.compiling import compiling_counts
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.pipeline.worker.notice import check_of_thread

WORKERS_MAX: Final = 64
"""The number of incarnations of which a process keeps writer and schemas, at most."""
IDLE_S: Final = 300.0
"""After this time without work of an incarnation a process closes them."""
PROCESS_BYTES_MAX: Final = 1 << 30
"""A worker with more resident memory is replaced when it has no work."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")


OPENED: Final[list[Callable[[str], Access]]] = [local]
"""Opens the access for the `spec` of a piece of work. One function for the whole process."""


class _KeptWorker(NamedTuple):
    """The state that a process keeps of an incarnation, and when it was last used (monotonic)."""

    worker: Worker
    used: float


WORKERS: Final[dict[str, _KeptWorker]] = {}
"""The workers of this process, by the `spec` of their pieces, in the order of their last use."""


def begin(piece: Begin) -> Begun:
    """Fence all earlier writers, then find where to resume: what is durable after the fence is final."""
    access = OPENED[0](piece.spec)
    spec = access.spec
    _prove(access)  # a zombie that wakes up here must not fence the writers of its successor
    check = check_of_thread()
    return access.begun(spec.sink.fence(spec.writers, lambda: _prove(access), check=check))


def _prove(access: Access) -> None:
    access.granted(NO_LEASE)


def deliver(piece: Deliver, on_durable: OnDurable) -> list[Report]:
    """Deliver ranges. They are durable on return."""
    return with_worker(piece, lambda worker: worker.deliver(list(piece.ranges), on_durable))


def with_worker(
    piece: Deliver | Load, work: Callable[[Worker], T], opened: Callable[[Access], Worker] = open_worker
) -> T:
    """Call `work` with this process's worker for the incarnation, which is opened if there is none.

    If `work` fails, the worker is closed and forgotten: its writer may be broken, and its incarnation ends.
    """
    # Taken out and put back at the end: so the order is that of use, and a failure leaves nothing behind.
    kept = WORKERS.pop(piece.spec, None)
    forget_some()
    if kept is not None and kept.worker.access.is_over:
        kept.worker.slot.close()
        kept = None  # opening it again raises the error that says why
    worker = kept.worker if kept is not None else opened(OPENED[0](piece.spec))
    worker.slot.lease = piece.lease
    try:
        with compiling_counts(worker.access.beat):
            done = work(worker)
    except BaseException:
        worker.slot.close()
        raise
    WORKERS[piece.spec] = _KeptWorker(worker, time.monotonic())
    return done


def rest() -> bool:
    """Called without work: close what was not used for long, and return whether the process is too large.

    A process that is too large is replaced, because it never gives back the memory of its largest piece.
    """
    forget_some()
    BUFFERS.forget()
    CELLS.forget()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * PAGE_BYTES > PROCESS_BYTES_MAX


def forget_some() -> None:
    """Close workers that ended or were not used for `IDLE_S`, and the oldest ones beyond `WORKERS_MAX`."""
    since = time.monotonic() - IDLE_S
    for number, (key, kept) in enumerate(list(WORKERS.items())):
        many = len(WORKERS) - number >= WORKERS_MAX
        if many or kept.used < since or kept.worker.access.is_over:
            WORKERS.pop(key).worker.slot.close()
