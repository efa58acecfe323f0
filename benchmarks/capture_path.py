"""(a) From the capture to encoded records without a broker, and (b) the same into a real broker.

    feed server -> puller process -> event store -> the feed's Spark query -> encoded messages [-> Kafka]

The clock runs from the moment when the table is watched, with a warm query, to the report of its last row.
The feed server is a separate process: it uses the same two cores, but its CPU is not counted.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.accounting import spent
from benchmarks.rig import Rig
from benchmarks.show import Progress
from benchmarks.stage_clock import read_stages

from tidegate.codec import registry

SLOWEST_ROWS_S = 10_000
"""A slower run is aborted."""


@dataclass(frozen=True, slots=True)
class Case:
    """The rows and the protocol of a run."""

    log: str
    rows: int
    protocol: str

    @property
    def uri_options(self) -> str:
        """Options of the sink URI after the topic."""
        unmarked = registry.codec(self.protocol).unmarked
        return f"?protocol={self.protocol}" + (f"&{unmarked.option}" if unmarked is not None else "")


def measure(case: Case, sink: str, task: str, progress: Progress) -> dict[str, Any]:
    """One run into `sink` (`kafka://host:port/topic`). Returns figures by name. `task`: see
    `pipeline_probe`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        Rig(Path(folder), case.log, case.rows, sink + case.uri_options) as rig,
    ):
        progress(f"{case.log}, {case.protocol}: starting")
        rig.start(["-m", "benchmarks.pipeline_probe", "--task", task])
        return _run(rig, case, progress)


def _run(rig: Rig, case: Case, progress: Progress) -> dict[str, Any]:
    assert rig.ledger is not None
    before, began = rig.ledger.cpu(), time.monotonic()
    stages_before = _stage_seconds(rig)
    rig.flow()
    patience = 300 + case.rows / SLOWEST_ROWS_S
    done = rig.wait_rows(
        case.rows, patience, lambda n: progress(f"{case.log}, {case.protocol}: {n:,} of {case.rows:,} rows")
    )
    wall = time.monotonic() - began
    roles = spent(before, rig.ledger.cpu())
    time.sleep(0.5)  # the probes write their seconds five times a second
    cpu = sum(roles.values())
    stages = _stages(stages_before, _stage_seconds(rig), roles)
    return {
        "log": case.log,
        "protocol": case.protocol,
        "rows_asked": case.rows,
        "rows": done["rows"],
        "messages": done["messages"],
        "bytes": done["bytes"],
        "quarantined": done["quarantined"],
        "batches": done["batches"],
        "wall_s": round(wall, 2),
        "rows_per_s": round(done["rows"] / wall),
        "cpu_s": round(cpu, 2),
        "rows_per_cpu_s": round(done["rows"] / max(cpu, 0.01)),
        "cpu_s_by_process": roles,
        "cpu_s_by_stage": stages,
        "bottleneck": max(stages, key=lambda name: stages[name]),
        "peak_mb": rig.ledger.peaks(),
    }


PULLER: Final = ("receive", "scan", "match", "gather", "sort", "write")


def _stage_seconds(rig: Rig) -> dict[str, float]:
    """The seconds that the probes have written so far."""
    return read_stages([*rig.feed_dir.glob("stages-*.json"), *rig.folder.glob("stages-puller.json")])


def _stages(before: dict[str, float], after: dict[str, float], roles: dict[str, float]) -> dict[str, float]:
    """CPU seconds by stage. The rest of a process's CPU is a separate line."""
    reported = {stage: after[stage] - before.get(stage, 0.0) for stage in after}
    puller = sum(reported.get(stage, 0.0) for stage in PULLER)
    found = reported | {
        "tasks, rest": reported.pop("tasks", 0.0),
        "puller, rest": roles.get("puller", 0.0) - puller,
        "workers, rest": roles.get("workers", 0.0) - sum(reported.values()) + puller,
    }
    found.pop("tasks", None)
    found["workers, rest"] -= found["tasks, rest"]
    found |= {role: roles[role] for role in ("JVM", "driver", "source", "planners", "other") if role in roles}
    return {name: round(max(0.0, seconds), 2) for name, seconds in found.items()}
