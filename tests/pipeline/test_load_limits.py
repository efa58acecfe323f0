"""A load with a limit reads from TiKV about what it delivers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.control.load import LoadRemainder
from tidegate.kvclient import pages as page_module
from tidegate.kvclient.pages import ROWS_MAX
from tidegate.model.span import Span
from tidegate.pipeline.exchange.work import Lease, Load
from tidegate.pipeline.worker import load_task
from tidegate.pipeline.worker.load_task import PAGE_ROWS_A_S, Loader
from tidegate.pipeline.worker.pieces import ROW_BYTES, slices

VALUE = b"12345"


class Store:
    """Pages without end."""

    def __init__(self) -> None:
        self.fetched = self.largest = 0

    def page(self, pd: object, snapshot: object, span: Span, rows: int) -> tuple[pa.RecordBatch, Span]:
        self.fetched += rows
        self.largest = max(self.largest, rows)
        columns = [pa.array([VALUE] * rows, pa.binary())] * 2
        return pa.RecordBatch.from_arrays(columns, schema=page_module.PAGE_SCHEMA), span


class Batch:
    """A transaction that is never due."""

    is_due = False

    def add(self, *_: object) -> None:
        """Nothing is kept."""

    note = add

    def commit(self) -> None:
        """Nothing is kept."""


def ran(
    store: Store, monkeypatch: pytest.MonkeyPatch, rows_max: int, bytes_max: int = 0, cpu_s: float = 600
) -> Loader:
    """A piece of work that has ended."""
    monkeypatch.setattr(page_module, "_page", store.page)
    monkeypatch.setattr(load_task, "TASK_S", 600)
    for name in ("keep_misencoded", "keep_damaged"):
        monkeypatch.setattr(load_task, name, lambda *_: None)
    spec = SimpleNamespace(
        config=SimpleNamespace(tidegate=SimpleNamespace(keyspace_id=None)),
        instance="one",
        token=(1, 1),
        incarnation=1,
    )
    worker: Any = SimpleNamespace(
        spec=spec,
        schemas=None,
        access=None,
        slices=lambda block, _: slices(block, lambda: 1 << 20),
        encode=lambda *_, **__: None,
    )
    none: Any = None
    batch: Any = Batch()
    one = LoadRemainder("span", Span(b"", b""), 0)
    task = Load("spec", "pd", 7, (one,), rows_max, bytes_max, Lease(0, 1), cpu_s)
    loader = Loader(worker, batch, none, task)
    loader.run([one])
    return loader


@pytest.mark.parametrize(("rows_max", "bytes_max"), [(2000, 0), (0, 2000 * (2 * len(VALUE) + ROW_BYTES))])
def test_a_limited_load_reads_no_more_rows_than_it_delivers(
    rows_max: int, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted as the load does, which adds some for each row."""
    store = Store()
    loader = ran(store, monkeypatch, rows_max, bytes_max)
    assert [report.read_rows for report in loader.durable] == [2000]
    assert store.fetched == 2000


def test_a_short_piece_has_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last pages are read in vain when its time is over."""
    short, long = Store(), Store()
    ran(short, monkeypatch, 0, cpu_s=0.1)
    assert short.largest == round(0.1 * PAGE_ROWS_A_S)
    ran(long, monkeypatch, 5 * ROWS_MAX)
    assert long.largest == ROWS_MAX
