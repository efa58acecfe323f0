"""The pipelines of all changefeeds of a capture in one process, without Spark and without a broker.

    python -m benchmarks.player DATA_DIR

It begins with a changefeed as soon as its spec exists. In each round, every LOOK_S, it looks at the new rows
of each changefeed (`pipeline.host.backlog`) and delivers them through the worker up to encoded messages,
which a writer drops. For `benchmarks.many`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.counting import PARTITIONS, NoBroker

from tidegate.errors import Fenced
from tidegate.eventstore import store_view
from tidegate.ipc import ControlClient
from tidegate.model.reports import Durable, PipelineHello, Started
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker

LOOK_S: Final = 0.05
FIND_S: Final = 0.5


class Played:
    """One incarnation of a changefeed's pipeline."""

    def __init__(self, path: Path) -> None:
        self.spec = spec = FeedSpec.load(path)
        starts = Bounds.load(spec.feed_dir / "bounds.json").spans
        self._backlog = Backlog(spec, starts)
        self._worker = Worker(LocalAccess(spec), lambda _: PARTITIONS, NoBroker())
        hello = PipelineHello(spec.changefeed, spec.incarnation, os.getpid())
        self._control = ControlClient(spec.socket_path, hello)
        self._control.send(Started(starts))

    def round(self) -> None:
        """Deliver the rows that have arrived since the last round."""
        shares = [share.ranges for share in self._backlog.take(1)]
        reports = [one for share in shares for one in self._worker.deliver(share)]
        for share in shares:
            self._backlog.done(share)
        if not reports:
            return
        stats: dict[str, Any] = {"rows": sum(one.rows for one in reports), "batch_ms": 0, "lag_ms": 0}
        stats |= dict.fromkeys(("messages", "bytes", "quarantined"), 0)
        self._control.send(Durable(self.spec.token, {one.span: one.ts for one in reports}, stats))


def play(data_dir: Path) -> None:
    """Run until the process is ended."""
    played: dict[Path, Played] = {}
    found_at = float("-inf")
    while True:
        began = time.monotonic()
        if began - found_at >= FIND_S:
            found_at = began
            for path in data_dir.glob("feeds/*/*/spec-*.json"):
                if path not in played:
                    played[path] = Played(path)
        for path, one in list(played.items()):
            try:
                one.round()
            except (Fenced, store_view.NoManifest):
                if not path.exists():  # another incarnation has replaced it
                    del played[path]
        time.sleep(max(0.0, began + LOOK_S - time.monotonic()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    play(Path(sys.argv[1]))
