"""A feed's pipeline in its own application with one thing changed: its task, or a setting of Spark.

    python -m benchmarks.pipeline_probe SPEC_JSON [--task count|deliver|timed] [--set KEY=VALUE]...

`count` runs without a broker; `timed` is `deliver` with a clock around its stages. Everything else is
`tidegate.pipeline.application`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.counting import begin_without_broker, deliver_timed, encode_and_count

from tidegate.pipeline import job
from tidegate.pipeline.application import TASKS

OTHERS = {
    "count": replace(TASKS, begin=begin_without_broker, deliver=encode_and_count),
    "deliver": TASKS,
    "timed": replace(TASKS, deliver=deliver_timed),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--task", choices=list(OTHERS), default="deliver")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    trial = dict(pair.split("=", 1) for pair in options.settings)
    job.run(options.spec, tasks=OTHERS[options.task], trial=trial)


if __name__ == "__main__":
    main()
