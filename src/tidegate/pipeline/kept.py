"""What a worker process does with each kind of piece, and what it keeps of incarnations in between.

To open a sink's writer and the schemas takes longer than most pieces, so they are kept, within bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tidegate.pipeline.access import Access, local
from tidegate.pipeline.deliver import Worker, open_worker
from tidegate.pipeline.work import NO_LEASE, Begin, Begun, Deliver, Load, Report, Tell

WORKERS_MAX: Final = 64
"""Incarnations of which a process keeps writer and schemas."""
IDLE_S: Final = 300.0
"""Without work of an incarnation for so long a process lets go of them."""
PROCESS_BYTES_MAX: Final = 1 << 30
"""Resident; a worker that is larger is replaced when it has no work."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")


OPENED: Final[list[Callable[[str], Access]]] = [local]
"""How this process finds what a piece of work is for, by its `spec`; one for the whole process."""


class _Kept(NamedTuple):
    """What a process keeps of an incarnation, and when it last used it (monotonic)."""

    worker: Worker
    used: float


WORKERS: Final[dict[str, _Kept]] = {}
"""This process's workers, by the path of the spec; the one that was used last is the last."""


def begin(piece: Begin) -> Begun:
    """Fence every older writer, then ask where to go on: what is durable then cannot grow any more."""
    access = OPENED[0](piece.spec)
    spec = access.spec
    _prove(access)  # a process that wakes up long after must not disturb those that write now
    return access.begun(spec.sink.fence(spec.writers, lambda: _prove(access)))


def _prove(access: Access) -> None:
    access.granted(NO_LEASE)


def deliver(piece: Deliver, tell: Tell) -> list[Report]:
    """Deliver ranges, all durable on return."""
    return with_worker(piece, lambda worker: worker.deliver(list(piece.ranges), tell))


def with_worker(
    piece: Deliver | Load, work: Callable[[Worker], T], opened: Callable[[Access], Worker] = open_worker
) -> T:
    """Work with this process's worker for an incarnation, made if need be. It is forgotten if that fails:
    what it holds of the sink may be broken, and its incarnation is over.
    """
    kept = WORKERS.pop(piece.spec, None)
    forget_some()
    if kept is not None and kept.worker.access.is_over:
        kept.worker.slot.close()
        kept = None  # what is opened now says why it cannot be
    worker = kept.worker if kept is not None else opened(OPENED[0](piece.spec))
    worker.slot.lease = piece.lease
    try:
        done = work(worker)
    except BaseException:
        worker.slot.close()
        raise
    WORKERS[piece.spec] = _Kept(worker, time.monotonic())
    return done


def rest() -> bool:
    """What a worker process does without work: forget, and say whether it is too large to be kept. A process
    stays as large as the largest piece that it had.
    """
    forget_some()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * PAGE_BYTES > PROCESS_BYTES_MAX


def forget_some() -> None:
    """Let go of what was not used for long or has been replaced, and of the oldest beyond `WORKERS_MAX`."""
    since = time.monotonic() - IDLE_S
    for number, (key, kept) in enumerate(list(WORKERS.items())):
        many = len(WORKERS) - number >= WORKERS_MAX
        if many or kept.used < since or kept.worker.access.is_over:
            WORKERS.pop(key).worker.slot.close()
