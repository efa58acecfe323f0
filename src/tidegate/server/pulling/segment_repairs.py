"""Repairs damaged segments of the event store: it pulls from TiKV again what readers could not read.

This is a thread of the puller process. For each report (`eventstore.damage`) it finds the bad batches, holds
a GC safepoint below them, pulls the range into a separate store, puts the whole segment in the place of the
damaged one, and removes the report. Until then readers raise Retryable, so their changefeed waits and tries
again. If TiKV's GC has passed the range, they raise Fatal from then on.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from pathlib import Path
from typing import Final

from tidegate.errors import TidegateError
from tidegate.eventstore import damage
from tidegate.eventstore.damage import Damage, Report
from tidegate.eventstore.manifest import MANIFEST
from tidegate.eventstore.segment import Segment
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.key_range import scope_of
from tidegate.model.timestamp import Timestamp, readable
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.segment_repair import repair_segment

LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""How often reports are looked for."""
HELD_S: Final = 3600
"""The lifetime in seconds of a safepoint that could not be released, because PD did not answer."""
FOLDER: Final = "repair"
"""The folder in the event store into which a damaged range is pulled again."""
MEMORY_BYTES: Final = 64 << 20


class SegmentRepairs:
    """Looks for reports in its own thread until `close`."""

    def __init__(self, pd: PdClient, store: EventStore, memory: StreamMemory | None = None) -> None:
        """`memory`: the memory that all streams of the process share."""
        self._pd, self._store, self._memory = pd, store, memory
        self._word = uuid.uuid4().hex[:12]  # distinguishes the holds of captures that repair the same span
        self._closing = threading.Event()
        self.repaired = 0
        self._thread = threading.Thread(target=self._run, name="segment-repairs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; unfinished repairs are done after the next start."""
        self._closing.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            for report in damage.reports(self._store.folder):
                try:
                    self._look_at(report)
                except (TidegateError, OSError) as error:
                    event(
                        LOG, logging.WARNING, "segment not repaired yet", file=report.file, error=str(error)
                    )

    def _look_at(self, report: Report) -> None:
        span = next((s for s in self._store.open_spans() if s.id == report.span_id), None)
        if span is None:
            return  # nobody follows the span, so nobody reads it
        if report.file == MANIFEST:
            span.rewrite()
            damage.remove_report(self._store.folder, report)
            event(LOG, logging.INFO, "manifest written again", span=span.id)
            return
        found = span.assess(report.file)
        if found is None:
            damage.remove_report(self._store.folder, report)
        elif not found.batches:
            span.repair(found, [])
            damage.remove_report(self._store.folder, report)
            event(LOG, logging.INFO, "directory of a segment written again", span=span.id, file=found.file)
        # A range beyond the resolved ts still gets rows from the puller, so what is missing is not known yet.
        elif not report.lost and found.upto <= span.resolved:
            self._repair(span, report, found)

    def _repair(self, span: SpanStore, report: Report, found: Damage) -> None:
        service = f"tidegate-{self._pd.cluster_id}-repair-{span.id}-{self._word}"
        scope = scope_of(span.span, self._store.kv_mode)
        # Held before anything is pulled: a scan over history that GC has begun to remove would miss deletes.
        least = self._pd.hold_history(service, HELD_S, found.after, scope)
        try:
            if least > found.after:
                self._give_up(
                    report, found, f"TiKV's GC safepoint {least} ({readable(least)}) has passed them"
                )
                return
            missing = self._pull(span, found)
        finally:
            # In any case, because PD would keep upstream's garbage for HELD_S otherwise.
            self._pd.hold_history(service, 0, 0, scope)
        if missing:
            self._give_up(report, found, f"TiKV no longer has {missing} of the changes")
            return
        damage.remove_report(self._store.folder, report)
        self.repaired += 1
        event(
            LOG, logging.INFO, "segment repaired", span=span.id, file=found.file, batches=len(found.batches)
        )

    def _pull(self, span: SpanStore, found: Damage) -> int:
        """Pull the range into a separate store and build the segment from it; the number of missing rows."""
        folder = self._store.folder / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        aside = EventStore(folder, memory_bytes=MEMORY_BYTES, kv_mode=self._store.kv_mode)
        try:
            pulled = aside.open_span(found.span)
            pulled.begin(found.after)
            kv_mode, memory = self._store.kv_mode, self._memory
            repair_segment(self._pd, found.span, found.upto, aside, self._closing, kv_mode, memory)
            return span.repair(found, _segments(folder / span.id, pulled, found.after, found.upto))
        finally:
            aside.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _give_up(self, report: Report, found: Damage, why: str) -> None:
        event(LOG, logging.ERROR, "segment cannot be repaired", file=found.file, why=why)
        damage.give_up(
            self._store.folder,
            report,
            why=f"the changes from {found.after + 1} to {found.upto} are damaged, and {why}",
            fix="restore the file from a copy; or remove the changefeed, create it again from now on, and "
            "bring its target up to date from a snapshot of the source",
        )


def _segments(folder: Path, span: SpanStore, after: Timestamp, upto: Timestamp) -> list[Segment]:
    return [Segment(folder, s) for s in span.manifest.segments if s.overlaps(after, upto)]
