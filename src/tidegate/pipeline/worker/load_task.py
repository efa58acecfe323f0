"""A worker's part of an initial load: reads ranges of the snapshot, and makes their rows durable downstream.

Pages of keys and values at the load's ts become entries: inserts with the load's ts as commit ts, or puts in
a feed without tables. They use the same stages and the same slot as the stream. Each transaction also
records, for each of its ranges, the key where the rest begins. A piece of work ends after `TASK_S`, when its
CPU time (`Load.cpu_s`) or its share of the pace is used up; the application gives out what is left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.control.load import LoadRemainder
from tidegate.errors import Fenced
from tidegate.kvclient.pages import FIRST_ROWS, ROWS_MAX, pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.progress import LoadProgress, load_key
from tidegate.model.span import Span
from tidegate.pipeline.exchange.work import Load, LoadReport, Report
from tidegate.pipeline.worker.damage import keep_damaged, keep_misencoded
from tidegate.pipeline.worker.deliver import Worker
from tidegate.pipeline.worker.kept import with_worker
from tidegate.pipeline.worker.pieces import weight
from tidegate.pipeline.worker.transaction import SinkTransaction
from tidegate.sink.base import SlotTaken

TASK_S: Final = 4.0
"""After this time a piece of work reads no more pages and reports to the application. Seconds."""
PAGE_ROWS_A_S: Final = 4096
"""The most rows of a page, for each second of CPU that a piece of work has. Up to two pages have been read in
vain when its time is over. If a short piece had the pages of a long one, it would read hardly anything else.
"""
CLIENTS: Final[dict[str, PdClient]] = {}
"""The PD clients of this process, by address. They keep their regions and channels."""


def load(task: Load) -> list[LoadReport]:
    """Load a share, or a part of it; durable on return. Ranges that were not begun are not reported.

    If the worker loses its slot meanwhile, because a zombie took it or the sink's timeout passed, the piece
    ends with the last commit.
    """
    return with_worker(task, partial(_load, task))


def _load(task: Load, worker: Worker) -> list[LoadReport]:
    # Kept for the whole process: a new client would locate every region again.
    client = CLIENTS.get(task.pd) or CLIENTS.setdefault(task.pd, PdClient(task.pd))
    loader = None
    try:
        with worker.slot.writer() as writer:
            _check_granted(task.share, worker.slot.granted)
            loader = Loader(worker, worker.transaction(writer), client, task)
            loader.run(task.share)
    except SlotTaken:
        if loader is None:
            raise
    return loader.durable


def _check_granted(share: Sequence[LoadRemainder], granted: Sequence[Span]) -> None:
    for one in share:
        if not any(held.covers(one.span) for held in granted):
            raise Fenced(
                "a range of an initial load was given to another capture",
                where=f"keys from {one.span.start.hex()} to {one.span.end.hex()}",
                why=f"granted now: {len(granted)} ranges",
            )


class Loader:
    """One task's work."""

    def __init__(self, worker: Worker, batch: SinkTransaction, pd: PdClient, task: Load) -> None:
        self._worker, self._batch, self._pd, self._task = worker, batch, pd, task
        self._schemas = None if worker.schemas is None else worker.schemas.upto(task.ts)
        self._until, self._cpu_until = time.monotonic() + TASK_S, time.process_time() + task.cpu_s
        self._reports: list[LoadReport] = []
        self.durable: list[LoadReport] = []
        """The reports as of the last commit."""

    def run(self, share: Sequence[LoadRemainder]) -> None:
        """Load one range after another, until all are done or a limit is reached."""
        for one in share:
            if self._is_over():
                break
            report = LoadReport(Report(one.id, self._task.ts), one.rows, one.span.start.hex())
            self._reports.append(report)
            self._load(one, report)
        self._commit()

    def _commit(self) -> None:
        self._batch.commit()
        # Copies, because the reports continue counting.
        self.durable = [replace(reported, report=replace(reported.report)) for reported in self._reports]

    def _load(self, one: LoadRemainder, reported: LoadReport) -> None:
        keyspace = self._worker.spec.config.tidegate.keyspace_id
        snapshot = Snapshot(self._pd, self._task.ts, keyspace_id=keyspace)
        rows_max, bytes_max = self._left()
        page_rows = min(ROWS_MAX, max(FIRST_ROWS, round(PAGE_ROWS_A_S * self._task.cpu_s)))
        for page in pages(
            self._pd,
            snapshot,
            one.span,
            rows_max=rows_max,
            bytes_max=bytes_max,
            page_rows=page_rows,
            weigh=self._weight,
        ):
            for some in self._worker.slices(entries(page, self._task.ts), self._batch):
                encoded = self._worker.encode(some, self._schemas, at=self._task.ts)
                keep_misencoded(self._worker.access, one.id, encoded)
                keep_damaged(self._worker.access, one.id, encoded)
                self._batch.add(encoded, reported.report)
                reported.rows += some.num_rows
                reported.read_rows += some.num_rows
                reported.read_bytes += weight(some)
                # The least key behind the last one, so the rest begins there and no row comes twice.
                self._store_progress(one.id, reported, some.column("key")[-1].as_py() + b"\0")
                # After at least one slice, so each piece of work makes progress. `run` commits it.
                if self._is_over():
                    return
                if self._batch.is_due:
                    self._commit()
        self._store_progress(one.id, reported, None)

    def _store_progress(self, name: str, reported: LoadReport, left_from: bytes | None) -> None:
        reported.left_from = None if left_from is None else left_from.hex()
        spec = self._worker.spec
        record = LoadProgress(
            spec.instance, spec.token, spec.incarnation, self._task.ts, reported.rows, reported.left_from
        )
        # docs/guarantees.md#an-initial-load-is-joined-exactly: committed together with the rows up to there.
        self._batch.note(load_key(name), record.to_bytes())

    def _weight(self, page: pa.RecordBatch) -> int:
        return weight(entries(page, self._task.ts))

    def _is_over(self) -> bool:
        # Not by the clock alone: on a full machine a short time would be over after the first rows.
        if time.monotonic() >= self._until or time.process_time() >= self._cpu_until:
            return True
        return any(left < 0 for left in self._left())

    def _left(self) -> tuple[int, int]:
        """The rows and bytes left of the piece's share of the pace. 0: there is no limit; -1: none left."""
        read_rows = sum(one.read_rows for one in self._reports)
        read_bytes = sum(one.read_bytes for one in self._reports)
        shares = (self._task.rows_max, read_rows), (self._task.bytes_max, read_bytes)
        rows, size = (share and (share - read if share > read else -1) for share, read in shares)
        return rows, size


def entries(page: pa.RecordBatch, ts: int) -> pa.RecordBatch:
    """Pairs of a snapshot at `ts` as a block of puts without old values, that is, inserts committed at `ts`.

    Their start ts is 0, which no transaction has.
    """
    n = page.num_rows
    none = pa.array([b""], pa.binary()).take(pa.array(np.zeros(n, np.int8)))
    columns = [
        pa.array(np.full(n, ts, np.uint64)),
        pa.array(np.zeros(n, np.uint64)),
        pa.array(np.full(n, OP_PUT, np.uint8)),
        page.column(0),
        page.column(1),
        none,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)
