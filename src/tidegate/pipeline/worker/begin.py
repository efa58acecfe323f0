"""How an incarnation begins: it fences all earlier incarnations, and then reads what is durable.

After the fence no write of an earlier incarnation can become durable any more. So the progress that is read
then is final, and delivery resumes exactly there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.control.load import LoadPlan
from tidegate.disk import replace_file
from tidegate.model.progress import load_progress, outlived, span_key, span_progress, topics
from tidegate.pipeline.exchange.ahead import Ahead
from tidegate.pipeline.exchange.feed import LOAD_FILE, Bounds, DurableBefore, FeedSpec
from tidegate.pipeline.exchange.work import Begun, LoadedRange


@dataclass(frozen=True, slots=True)
class Found:
    """The durable progress that an incarnation found after it had fenced the earlier ones."""

    starts: dict[str, int]
    """The ts up to which each span is durable."""
    records: Mapping[str, bytes]
    """All that the sink keeps, by key (`model.progress`)."""


def begun(spec: FeedSpec, records: Mapping[str, bytes]) -> Begun:
    """The report to the host, computed from all the records that the sink keeps."""
    found = resume(spec, records)
    loaded: tuple[LoadedRange, ...] = ()
    if spec.loads:
        plan = LoadPlan.from_bytes((spec.feed_dir / LOAD_FILE).read_bytes())
        before = load_progress(found.records, spec.instance, plan.ts)
        loaded = tuple(LoadedRange(name, one.rows, one.left_from) for name, one in before.items())
    return Begun(found.starts, outlived(found.records, spec.instance, spec.rules), loaded)


def resume(spec: FeedSpec, records: Mapping[str, bytes]) -> Found:
    """Where to resume, from what is durable. Rows that are durable beyond these starts are noted in a file
    for the workers (`FeedSpec.durable_file`).
    """
    starts = dict(Bounds.load(spec.feed_dir / "bounds.json").spans)
    own = {span_key(span, spec.rules) for span in starts}
    ahead = Ahead.of(records, spec.instance, own, min(starts.values(), default=0))
    ours = span_progress(records, spec.instance, spec.rules)
    for span, progress in ours.items():
        # The start in the bounds may be above the record, because a span without rows advances without one.
        starts[span] = max(starts.get(span, 0), progress.ts)
    # A position belongs to the commit ts after its record's ts, and means nothing above another start.
    begun = {span: p.position for span, p in ours.items() if p.position and p.ts == starts[span]}
    before = DurableBefore(begun, ahead, topics(records, spec.instance))
    # Before the report: as soon as the host knows the starts it gives out work, and workers read this file.
    replace_file(spec.durable_file, json.dumps(before.to_json()).encode())
    return Found(starts, records)
