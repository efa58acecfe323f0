"""The capture's puller process, unchanged except for a clock around its stages.

    python -m benchmarks.puller_probe DATA_DIR PD STAGES_FILE

Stages: `receive` (gRPC, and the streams' loop), `scan`, `match`, `gather`, `sort`, `write`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from benchmarks.stage_clock import WRITE_S, StageClock

from tidegate import log
from tidegate.eventstore import kernels, segment
from tidegate.eventstore.floors import FloorPage
from tidegate.eventstore.manifest import ManifestFile
from tidegate.puller.match import block_matcher
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.outcome import MatchOutcome
from tidegate.puller.match.portion import Portion
from tidegate.server.pulling.puller_process import run

TICK = os.sysconf("SC_CLK_TCK")


def install(clock: StageClock) -> None:
    """Wrap the stages of the puller and the event store's writing side."""
    clock.wrap(Portion, "scan", "scan")
    clock.wrap(BlockMatcher, "feed", "match")
    clock.wrap(MatchOutcome, "blocks", "gather")
    clock.wrap(kernels, "order_rows", "sort")
    clock.wrap(kernels, "take", "sort")
    clock.wrap(segment, "write", "write")
    clock.wrap(ManifestFile, "write", "write")
    clock.wrap(FloorPage, "put", "write")


def receive_seconds() -> float:
    """CPU seconds of gRPC's threads and of the streams' loop."""
    names = {str(t.native_id): t.name for t in threading.enumerate()}
    total = 0
    for task in Path("/proc/self/task").iterdir():
        name = names.get(task.name, "grpc")
        if name in {"grpc", "streams"}:
            try:
                fields = (task / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def _write_clock(clock: StageClock, path: Path, done: threading.Event) -> None:
    while not done.wait(WRITE_S):
        clock.seconds["receive"] = receive_seconds()
        clock.write(path)


def main() -> int:
    """Run the puller process."""
    block_matcher.warm()
    kernels.warm()
    clock, done = StageClock(), threading.Event()
    install(clock)
    threading.Thread(
        target=_write_clock, args=(clock, Path(sys.argv[3]), done), name="clock", daemon=True
    ).start()
    log.setup()
    try:
        return run(Path(sys.argv[1]), sys.argv[2])
    finally:
        done.set()


if __name__ == "__main__":
    sys.exit(main())
