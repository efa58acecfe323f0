"""A refused DDL that a changefeed passes over, by `ignore-txn-start-ts`: views on both of its sides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_catalogues import History, refused
from tests.server.test_schema_tracker import URI

from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.control.barrier import DdlBatch
from tidegate.control.ddl_log import DdlLog
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.metadata import FeedId, FeedInfo
from tidegate.filter.feed import FeedFilter
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.catalogue.schema_tracker import SchemaTracker
from tidegate.server.delivery.plan import Paths
from tidegate.server.owner.replication import Replication
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.pulling.pulse import Pulse
from tidegate.tidb.ddl_job import DdlJob

__all__ = ["refused"]


def log_of(tracker: SchemaTracker, checkpoint: int, batches: list[DdlBatch], known: int) -> DdlLog:
    """The digest of a view, which owner and processors compare."""
    log = DdlLog(checkpoint, tracker.initial)
    log.learn(batches, known)
    return log


def test_views_agree_once_the_one_that_passed_over_is_opened_again(refused: tuple[History, DdlJob]) -> None:
    """Until then one lacks the table that the job has created, and the checkpoint would be held."""
    history, job = refused
    catalogues, ts, start_ts = history.catalogues(), job.finished_ts, job.job_start_ts
    rules = {"filter": {"rules": ["*.*"], "ignore-txn-start-ts": [start_ts]}}
    past = FeedFilter.of(merge_config(rules, URI))
    before = SchemaTracker.open(catalogues, past, 1)
    passed = log_of(before, 1, *before.begin(1, history.end))
    assert before.resolved_ts == history.end, "it does not stop there"
    behind = SchemaTracker.open(catalogues, past, ts)
    other = log_of(behind, ts, *behind.begin(ts, history.end))
    assert not passed.agrees(other.said)
    assert not before.has_passed_over(ts - 1), "all views of this checkpoint pass over it"
    assert before.has_passed_over(ts)
    assert not behind.has_passed_over(ts)
    again = SchemaTracker.open(catalogues, past, ts)
    assert log_of(again, ts, *again.begin(ts, history.end)).agrees(other.said)


class PassingDdl:
    """A catalogue without tables that has passed over a job at `JOB`, if it was opened below."""

    JOB = 150
    is_open, initial, span_id = True, (), "ddl"

    def __init__(self, *given: Any) -> None:
        self._opened_at = 0

    def base_ts(self, checkpoint: int) -> int:
        return checkpoint

    def has_passed_over(self, checkpoint: int) -> bool:
        return self._opened_at < self.JOB <= checkpoint

    async def open(self, checkpoint: int, *given: Any) -> tuple[list[DdlBatch], int]:
        self._opened_at = checkpoint
        return [], 1000


def test_a_processor_opens_a_view_again_that_has_passed_over_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.processor.opening.FeedDdl", PassingDdl)

    def nothing(*given: Any, **more: Any) -> None:
        return None

    spans = SimpleNamespace(release=nothing, needed=nothing, try_again=nothing)
    spans.within, spans.behind = (lambda feed, ranges: frozenset()), lambda feed, floors: MAX
    clock = SimpleNamespace(monotonic=lambda: 10.0)
    node: Any = SimpleNamespace(cluster=1, capture="a", shared="", epoch=1, pulse=Pulse(), clock=clock)
    node.receive_history, node.manifest = (lambda scope, order, said: False), nothing
    node.paths = Paths(tmp_path, tmp_path)
    node.captured = lambda mode: SimpleNamespace(store=tmp_path, spans=spans)
    info = FeedInfo(URI.render(redact=False), ReplicaConfig().to_json(), 1, 0, 0, "normal", "i")

    async def stored(key: str) -> bytes:
        return info.to_bytes()

    node.read = stored
    processor = FeedProcessor(node, FeedId("default", "one"))

    def opened(sequence: int, checkpoint: int) -> object:
        """The opening for a Dispatch at this checkpoint."""
        header = Header(1, "default/one", "i", 1, "a", 1, sequence)
        ranges = [GrantedRange(Span(b"", b""), (1, sequence))]
        dispatch = Dispatch(header, Wish.RUN, sequence, ranges, 1000, checkpoint, load=False)
        assert processor.machine.receive(dispatch)
        asyncio.run(processor.openings.open(dispatch))
        return processor.openings.opened

    first = opened(1, 100)
    assert opened(2, PassingDdl.JOB - 1) is first
    second = opened(3, PassingDdl.JOB)
    assert second is not first, "a view that another capture opens there has not passed over the job"
    assert opened(4, PassingDdl.JOB + 50) is second


@pytest.mark.parametrize(("stored", "opens"), [(150, True), (149, False)])
def test_an_owner_opens_its_view_again_once_the_checkpoint_passed_the_job(stored: int, opens: bool) -> None:
    """If it cannot be stored, processors begin below the job, and pass over it with the owner."""
    asked: list[str] = []
    record = SimpleNamespace(persisted=100)

    async def store_last(checkpoint: int) -> None:
        asked.append(f"store {checkpoint}")
        record.persisted = stored

    async def open_view() -> None:
        asked.append("open")

    record.store_last = store_last
    feed: Any = SimpleNamespace(_record=record, _open=open_view, owner=SimpleNamespace(checkpoint=120))
    feed.ddl = SimpleNamespace(has_passed_over=lambda ts: ts >= PassingDdl.JOB)
    asyncio.run(Replication._renew_view(feed))
    assert asked == []
    feed.owner.checkpoint = 160
    asyncio.run(Replication._renew_view(feed))
    assert asked == ["store 160", *["open"] * opens]
