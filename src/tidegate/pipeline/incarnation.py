"""One incarnation of a changefeed in the application: what it is, what waits of it, how it is doing.

    waits --> begins --> loads --> delivers --> over: it has failed, or the control process has ended it

What changes here changes under the host's lock, or in the one thread that hands out work.
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
from tidegate.pipeline.access import LocalAccess
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.beats import Beats
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.leases import Leases

Key: TypeAlias = tuple[str, int]
"""Changefeed and incarnation."""
PIECE_S: Final = 1.0
"""What a piece may take, by what the last ones took, while there are other changefeeds."""
PIECE_BYTES_MIN: Final = 1 << 20
"""But a piece may have so many bytes in any case, also while the pace of its changefeed is not known."""
LOG_MAX: Final = 4 << 20
"""Bytes of a changefeed's log; then it is begun anew, and the one before is kept."""


@dataclass(slots=True, eq=False)
class Incarnation:
    """One of those that the application has."""

    spec: FeedSpec
    path: str
    """Of the spec."""
    send: Callable[[Report], None]
    """Tells the control process."""
    close: Callable[[], None]
    """Ends the connection to it: all that the incarnation had to say was said."""
    failures: int = 0
    """How often in a row its changefeed has failed here before."""
    backlog: Backlog | None = None
    """Once it delivers."""
    at_once: int = 1
    """Workers that its sink takes at once."""
    over: bool = False
    """Nothing more of it is handed out, and nothing that is said of it counts."""
    error: TidegateError | None = None
    """What ended it, if it was no wish."""
    secret: Secret = field(default_factory=lambda: Secret(os.urandom(32).hex()))
    """Workers elsewhere show it for all that they ask of this incarnation (`pipeline.service`)."""
    access: LocalAccess = field(init=False)
    """For them."""
    given_up: bool = False
    """Whether a worker elsewhere had a piece of it of which nobody knows the end."""
    leases: Leases[Any] = field(init=False)
    """Which worker has which of its slots."""
    stirred: bool = False
    """Whether something of it may be due."""
    looks_at: float = 0.0
    """When it is looked at in any case (monotonic)."""
    bytes_per_s: float = 0.0
    """Of entries, by the last pieces; 0: not known."""
    loading: threading.Thread | None = None
    """Sees to its initial load."""
    store: str = field(init=False)
    """The folder of its store of events."""
    bounds_mark: object = None
    """Mark of the bounds file at the last glance."""
    beats: Beats = field(init=False)

    def __post_init__(self) -> None:
        self.beats = Beats(self.spec.beats_dir)
        self.leases = Leases(self.spec.slots)
        self.store = str(self.spec.store_dir)
        self.access = LocalAccess(self.spec, self.beats.beat)

    def limit_writers(self, workers: int) -> None:
        """Of so many workers no more write at once than its sink and its slots allow."""
        self.at_once = min(self.spec.sink.describe().at_once(workers), self.spec.slots)

    def note_pace(self, size: int, seconds: float) -> None:
        """A piece with so many bytes of entries took this long. A small one says nothing about the pace."""
        if size >= PIECE_BYTES_MIN:
            self.bytes_per_s = size / seconds

    @property
    def piece_bytes(self) -> int:
        """How large its next piece may be, so that nobody waits long for the worker."""
        return max(PIECE_BYTES_MIN, round(self.bytes_per_s * PIECE_S))

    def fenced(self) -> Fenced:
        """The error of work for it once it is over."""
        return Fenced("This incarnation of the changefeed is over.", where=self.spec.changefeed)

    @property
    def key(self) -> Key:
        return self.spec.changefeed, self.spec.incarnation

    @property
    def address(self) -> str:
        """Of its sink: those at one wait for the same one."""
        uri = self.spec.sink_uri
        return f"{uri.scheme}://{uri.bootstrap or uri.topic}"

    def log(self, text: str) -> None:
        """Write to the changefeed's own log."""
        append(self.spec.feed_dir / "log", redact(text))


def append(path: Path, text: str) -> None:
    """A line of a log, with the time. A disk that is full costs the line."""
    try:
        if path.exists() and path.stat().st_size > LOG_MAX:
            path.replace(path.with_name(f"{path.name}.1"))
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
    except OSError:
        return
