"""`tidegate consumer` with a clock around its stages. Each process writes a file, with a JSON line for each
call.

    TIDEGATE_CONSUMER_PROBE=DIR python -m benchmarks.consumer_probe run --source ... --target ...

Only functions that handle whole batches are wrapped, so the cost of the clocks cannot be measured. Spark also
starts this module as the daemon of its workers, and there it wraps the workers' functions. A stage's seconds
do not include those of a stage inside it. `cpu` is the CPU of the thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tidegate.spark.daemon import serve

FOLDER: Final = "TIDEGATE_CONSUMER_PROBE"
"""The environment variable with the folder for the files."""


class Clock:
    """Writes {stage, at, wall, cpu, rows} for each call. `at`: its end by the wall clock."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._file: Any = None
        self._pid = 0

    def wrap(self, owner: Any, name: str, stage: str, rows: Callable[[Any], int] = lambda result: 0) -> None:
        """Replace `owner.name` by a timed version. `rows`: counts the rows in its result."""
        inner = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            return self._run(stage, rows, inner, *arguments, **named)

        setattr(owner, name, timed)

    def wrap_iterator(self, owner: Any, name: str, stage: str) -> None:
        """The same for a function that returns an iterator: only the time inside its steps counts."""
        inner = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Iterator[Any]:
            steps, end = inner(*arguments, **named), object()
            while (item := self._run(stage, lambda result: 0, next, steps, end)) is not end:
                yield item

        setattr(owner, name, timed)

    def _run(
        self, stage: str, rows: Callable[[Any], int], function: Callable[..., Any], *given: Any, **named: Any
    ) -> Any:
        inside: list[list[float]] = self._local.__dict__.setdefault("inside", [])
        inside.append([0.0, 0.0])
        wall, cpu = time.perf_counter(), time.thread_time()
        result = None
        try:
            result = function(*given, **named)
            return result
        finally:
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            inner_wall, inner_cpu = inside.pop()
            if inside:
                inside[-1][0] += wall
                inside[-1][1] += cpu
            count = rows(result) if result is not None else 0
            line = {"stage": stage, "at": time.time(), "wall": wall - inner_wall, "cpu": cpu - inner_cpu}
            self._write(line | {"rows": count})

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._pid != os.getpid():  # a forked worker writes its own file
                self._pid = os.getpid()
                self._file = (Path(os.environ[FOLDER]) / f"{self._pid}.jsonl").open("a", buffering=1)
            self._file.write(json.dumps(line) + "\n")


def wrap_worker(clock: Clock) -> None:
    """Wrap the work of a Spark task."""
    from tidegate.consumer.reading import arena, fetch, topic_decoder

    clock.wrap(fetch, "_take", "read")
    clock.wrap_iterator(topic_decoder.TopicDecoder, "pieces", "decode")
    clock.wrap(fetch, "stage", "stage")
    clock.wrap(arena.Arena, "batch", "unpack")


def wrap_driver(clock: Clock) -> None:
    """Wrap the driver's work. It fetches in one thread, settles in two, renders in its own,
    writes in lanes.
    """
    from tidegate.consumer import job
    from tidegate.consumer.applying import apply
    from tidegate.consumer.mysql import batch, digest, lanes, rendering, row_writer
    from tidegate.consumer.running import rounds

    clock.wrap(rounds.FetchRounds, "fetch", "fetch")
    clock.wrap(job.Consumer, "_arrived", "wait for rows")
    clock.wrap(apply, "staged_rows", "map")
    clock.wrap(apply, "staged_changes", "convert", len)
    clock.wrap(apply, "net_effect", "settle")
    clock.wrap(row_writer, "wait", "wait for threads")
    clock.wrap(rendering, "add_deletes", "render")
    clock.wrap(rendering, "add_inserts", "render")
    clock.wrap(digest.Digest, "add", "digest")
    clock.wrap(batch.Batch, "begin", "note")
    clock.wrap(batch.Batch, "end", "note")
    clock.wrap(lanes.Lanes, "run", "write")
    clock.wrap(lanes.Lanes, "write", "lanes")


def main() -> None:
    """The command line of `tidegate consumer`."""
    from tidegate.cli import consumer
    from tidegate.consumer.reading import fetch_spark

    fetch_spark.DAEMON = "benchmarks.consumer_probe"  # type: ignore[misc]
    wrap_driver(Clock())
    consumer.app()


def daemon() -> None:
    """Spark's worker daemon: `tidegate.consumer.reading.daemon` with clocks."""
    wrap_worker(Clock())
    serve(("tidegate.consumer.reading.fetch",))


if __name__ == "__main__":
    if any(word.startswith("pyspark.") for word in sys.argv[1:]):
        daemon()
    else:
        main()
