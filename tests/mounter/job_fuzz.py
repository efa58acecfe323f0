"""Damaged DDL jobs: refused where they enter, or taken like any other; never a defect, whatever follows them.

    python -m tests.mounter.job_fuzz [--inputs 200000] [--seed 1]

Recorded jobs are applied one after the other, about half of them with a few places of their JSON changed, so
that whole jobs meet the catalogue that damaged ones have left. Statements for targets are written out, and
now and then the catalogue is stored and read again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from typing import Any

from tests.mounter.jobs import OURS, written
from tests.tidb.definition_fuzz import redefined
from tidegate.errors import TidegateError, Undecodable
from tidegate.mounter.ddl_admission import admit
from tidegate.mounter.schema_store import SchemaStore
from tidegate.server.catalogue import target_text
from tidegate.tidb import ddl_job
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.table_filter import TableFilter

KEEP_EVERY = 50


def damaged(job: DdlJob, rng: random.Random) -> DdlJob | None:
    """The job with its JSON changed, as it would be read; None: refused."""
    meta = json.dumps(redefined(job.meta, rng)).encode()
    try:
        return ddl_job.parse(meta, job.start_ts, job.finished_ts)
    except Undecodable:
        return None


def follow(store: SchemaStore, job: DdlJob, kinds: Counter[str]) -> None:
    """Take a job in and tell targets of it."""
    applied = store.apply(job)
    if applied.refusal is not None:
        kinds["stops who it concerns"] += 1
        applied.refusal.error().render()
        return
    for emitted in applied.emitted:
        try:
            if admit(emitted, TableFilter(), force_replicate=False):
                target_text.for_targets(emitted.event, applied.charset, applied.sql_mode)
        except TidegateError:
            kinds["cannot be sent"] += 1
            return
    kinds["taken"] += 1


def fuzz(seed: int, number: int) -> Counter[str]:
    """Apply jobs until so many were damaged; how often what came of them. Defects are raised."""
    rng, kinds = random.Random(seed), Counter[str]()
    recorded: dict[str, list[DdlJob]] = {}
    done = 0
    while done < number:
        case = rng.choice(OURS)
        jobs = recorded.setdefault(case, written(case))
        store = SchemaStore()
        for job in jobs:
            one: DdlJob | None = job
            if rng.random() < 0.5:
                done, one = done + 1, damaged(job, rng)
            if one is None:
                kinds["refused"] += 1
                continue
            follow(store, one, kinds)
            if rng.randrange(KEEP_EVERY) == 0:
                kept: Any = SchemaStore.load(store.dump())
                assert len(kept.entries(store.resolved_ts)) == len(store.entries(store.resolved_ts))
            if done >= number:
                break
    return kinds


def main() -> int:
    """Fuzz for as many inputs as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = Counter[str]()
    for at in range(0, options.inputs, 20_000):
        total += fuzz(options.seed + at, min(20_000, options.inputs - at))
        print(
            f"{total.total():,} jobs: " + ", ".join(f"{k} {n:,}" for k, n in total.most_common()), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
