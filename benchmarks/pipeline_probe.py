"""A feed's pipeline process with one thing changed: its task, or a setting of Spark.

    python -m benchmarks.pipeline_probe SPEC_JSON [--task count|deliver|timed] [--set KEY=VALUE]...

`count` leaves the broker out; `timed` is `deliver` with a clock around its stages. Everything else is
`tidegate.pipeline.job`.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from benchmarks.counting import deliver_timed, encode_and_count

from tidegate.ipc import ControlClient
from tidegate.model.reports import PipelineHello, Started
from tidegate.pipeline import job
from tidegate.pipeline.deliver import deliver
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.spark.session import open_session

TASKS = {"count": encode_and_count, "deliver": deliver, "timed": deliver_timed}


def run(path: Path, task: str, settings: dict[str, str]) -> None:
    """Run until SIGTERM."""
    spec = FeedSpec.load(path)
    control = ControlClient(spec.socket_path, PipelineHello(spec.changefeed, spec.incarnation, os.getpid()))
    try:
        spark = open_session(
            f"bench {spec.changefeed}",
            "local[*]",
            spec.work_dir,
            job.DAEMON,
            trial=settings,
        )
        if task == "count":
            starts = Barrier.load(spec.feed_dir / "barrier.json").spans
        else:
            starts = job.begin(spec).starts
        control.send(Started(starts))
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
        job.stream(spark, spec, path, starts, control, TASKS[task])
    except Exception as error:
        control.send(job.failure(error))
        raise


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--task", choices=list(TASKS), default="deliver")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    run(options.spec, options.task, dict(pair.split("=", 1) for pair in options.settings))


if __name__ == "__main__":
    main()
