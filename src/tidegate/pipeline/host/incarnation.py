"""One incarnation of a changefeed in the application: its spec, its waiting work, its state.

    waits --> begins --> loads --> delivers --> over: it has failed, or the control process has ended it

Fields change only under the host's lock, or in the one thread that gives out work.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidegate.config.values import Secret
from tidegate.errors import Fenced, TidegateError
from tidegate.log import redact
from tidegate.model.reports import Report
from tidegate.pipeline.exchange.beats import Beats
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.host.leases import Leases
from tidegate.pipeline.worker.access import LocalAccess

Key: TypeAlias = tuple[str, int]
"""Changefeed and incarnation."""
PIECE_S: Final = 1.0
"""How long a piece should take while there are other changefeeds, estimated from the last pieces."""
PIECE_BYTES_MIN: Final = 1 << 20
"""A piece may have this many bytes in any case, also while the pace of its changefeed is not known."""
LOG_MAX: Final = 4 << 20
"""At this size in bytes a changefeed's log is rotated; one old file is kept."""


@dataclass(slots=True, eq=False)
class Incarnation:
    """One incarnation in the application."""

    spec: FeedSpec
    path: str
    """The path of the spec."""
    send: Callable[[Report], None]
    """Sends a report to the control process."""
    close: Callable[[], None]
    """Ends the connection to the control process, after the last report."""
    failures: int = 0
    """The number of consecutive failures of its changefeed before this incarnation."""
    backlog: Backlog | None = None
    """None until it delivers."""
    at_once: int = 1
    """How many workers may write to its sink at the same time."""
    over: bool = False
    """Whether it is over: no more work is given out for it, and later reports of its workers are ignored."""
    error: TidegateError | None = None
    """The error that ended it. None if the control process ended it."""
    secret: Secret = field(default_factory=lambda: Secret(os.urandom(32).hex()))
    """Workers elsewhere send it with each call for this incarnation (`pipeline.remote.service`)."""
    access: LocalAccess = field(init=False)
    """The access that serves their calls."""
    given_up: bool = False
    """Whether a worker elsewhere was given up with a piece of it, and may still be writing."""
    leases: Leases[Any] = field(init=False)
    """Which worker has which of its slots."""
    may_be_due: bool = False
    """Whether rows of it may be due."""
    looks_at: float = 0.0
    """When it is looked at in any case (monotonic)."""
    rests_until: float = 0.0
    """When its next piece of the stream may begin (monotonic, `exchange.pace`)."""
    bytes_per_s: float = 0.0
    """Its pace, in bytes of entries, by its last piece; 0: not known."""
    loading: threading.Thread | None = None
    """The thread that runs its initial load."""
    store: str = field(init=False)
    """The folder of its event store."""
    bounds_mark: object = None
    """The mark of the bounds file at the last look at it (`due_scan`)."""
    eager_until: float = float("inf")
    """Until when each scan looks at that file (monotonic)."""
    beats: Beats = field(init=False)

    def __post_init__(self) -> None:
        self.beats = Beats(self.spec.beats_dir)
        self.leases = Leases(self.spec.slots)
        self.store = str(self.spec.store_dir)
        self.access = LocalAccess(self.spec, self.beats.beat)

    def limit_writers(self, workers: int) -> None:
        """Set `at_once` to as many of `workers` as the sink and the number of slots allow."""
        # A writer needs a slot of its own, and slots beyond the grant's number are not fenced by the next
        # incarnation.
        self.at_once = min(self.spec.sink.describe().at_once(workers), self.spec.slots)

    def record_pace(self, size: int, seconds: float) -> None:
        """Note how long a piece with `size` bytes of entries took. A small piece says nothing
        about the pace.
        """
        if size >= PIECE_BYTES_MIN:
            self.bytes_per_s = size / seconds

    def waits_at(self, now: float) -> bool:
        """Whether rows of it may be due and may be given out now (monotonic)."""
        return self.may_be_due and now >= self.rests_until

    @property
    def piece_bytes(self) -> int:
        """How large its next piece may be, so that other changefeeds do not wait long for the worker."""
        return max(PIECE_BYTES_MIN, round(self.bytes_per_s * PIECE_S))

    def fenced(self) -> Fenced:
        """The error for work of this incarnation once it is over."""
        return Fenced("this incarnation of the changefeed is over", where=self.spec.changefeed)

    @property
    def key(self) -> Key:
        return self.spec.changefeed, self.spec.incarnation

    @property
    def address(self) -> str:
        """The address of its sink. When it does not answer, all changefeeds with this address wait."""
        uri = self.spec.sink_uri
        return f"{uri.scheme}://{uri.bootstrap or uri.topic}"

    def log(self, text: str) -> None:
        """Write to the changefeed's own log."""
        # Redacted here, for all callers: texts of libraries may quote the sink's URI with its password.
        append(self.spec.feed_dir / "log", redact(text))


def append(path: Path, text: str) -> None:
    """Append a line with the time to a log. If the disk is full, the line is lost."""
    try:
        if path.exists() and path.stat().st_size > LOG_MAX:
            path.replace(path.with_name(f"{path.name}.1"))
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
    # The log is for people, and a full disk must not end a pipeline that can still deliver.
    except OSError:
        return
