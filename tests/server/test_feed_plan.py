import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.barrier import SpanTask
from tidegate.control.grants import Grant, GrantedRange, raised
from tidegate.control.metadata import FeedId, Put, grant_key
from tidegate.control.open_spans import OpenSpans
from tidegate.disk import DiskFull
from tidegate.errors import Fenced
from tidegate.model.span import Span
from tidegate.pipeline.exchange import feed
from tidegate.pipeline.exchange.feed import Bounds, BoundsReader, FeedSpec
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID
from tidegate.server.catalogue.stripes import Stripes, span_front, spans_json, spans_text, table_task
from tidegate.server.delivery.plan import BoundsFile, FeedPlan, Paths, write_spec
from tidegate.server.metadata.sqlite import SqliteMetadata

FEED = FeedId("default", "one")


def write(bounds: BoundsFile, bound: int, spans: dict[str, SpanTask], **how: bool) -> None:
    """As a tick does."""
    if change := bounds.due(bound, opened(spans), **how):
        bounds.put(change)


def opened(tasks: dict[str, SpanTask]) -> OpenSpans:
    spans = OpenSpans()
    spans.open(0, tasks.values())
    return spans


def test_a_feed_recreated_in_a_new_metadata_store_is_another_feed(tmp_path: Path) -> None:
    """The data folder is deleted and the capture starts again: tokens and incarnations are the same."""
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    plan = FeedPlan(7, FEED, uri, merge_config({}, uri), "old", Paths(tmp_path, tmp_path / "events"), "c")
    plan.folder.mkdir(parents=True)
    spec = FeedSpec.load(write_spec(plan, Grant("old", (1, 1), 1, 4)))
    store = SqliteMetadata(plan.paths.metadata)
    key, ranges = grant_key(7, FEED, "c"), (GrantedRange(Span(b"", b""), (1, 1)),)
    store.transact([], [Put(key, Grant("old", (1, 1), 1, 4, ranges).to_bytes())])
    spec.prove()
    store.transact([], [Put(key, Grant("new", (1, 1), 1, 4, ranges).to_bytes())])
    with pytest.raises(Fenced, match="another incarnation") as caught:
        spec.prove()
    assert "'new'" in caught.value.why
    assert "'old'" in caught.value.why
    write_spec(plan, Grant("new", (1, 1), 1, 4))
    with pytest.raises(Fenced, match="has been replaced"):
        FeedSpec.load(plan.folder / Grant("old", (1, 1), 1, 4).spec_file)
    store.close()


def test_who_was_taken_over_has_no_proof_any_more(tmp_path: Path) -> None:
    """Only the ranges are taken from its grant. With a proof it could fence the one that took them."""
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    plan = FeedPlan(7, FEED, uri, merge_config({}, uri), "i", Paths(tmp_path, tmp_path / "events"), "a")
    plan.folder.mkdir(parents=True)
    stored = raised({}, "a", "i", (1, 1), [Span(b"", b"")], 4)
    spec = FeedSpec.load(write_spec(plan, stored["a"]))
    store = SqliteMetadata(plan.paths.metadata)
    store.transact([], [Put(grant_key(7, FEED, "a"), stored["a"].to_bytes())])
    spec.prove()
    taken = raised(stored, "b", "i", (2, 1), [Span(b"", b"")], 4)
    store.transact([], [Put(grant_key(7, FEED, name), one.to_bytes()) for name, one in taken.items()])
    with pytest.raises(Fenced, match="another incarnation"):
        spec.prove()
    store.close()


def test_messages_to_an_incarnation_are_removed_when_the_next_one_gets_any(tmp_path: Path) -> None:
    uri = parse_sink_uri("kafka://127.0.0.1:1/topic?protocol=canal-json")
    paths = Paths(tmp_path, tmp_path / "events")
    plan = FeedPlan(7, FEED, uri, merge_config({}, uri), "abc", paths, "c")
    plan.folder.mkdir(parents=True)
    (plan.folder / "spec.json").write_text("as earlier versions named it")
    first = write_spec(plan, Grant("abc", (3, 1), 9, 4))
    spec = FeedSpec.load(first)
    assert (spec.instance, spec.incarnation, spec.token, spec.slots) == ("abc", 9, (3, 1), 4)
    assert first.stat().st_mode & 0o777 == 0o600, "it holds the sink's secrets"
    assert spec == plan.spec(Grant("abc", (3, 1), 9, 4))
    spec.durable_file.write_text("{}")
    (spec.work_dir / "checkpoint").mkdir(parents=True)
    second = write_spec(plan, Grant("abc", (3, 1), 10, 4))
    assert FeedSpec.load(second).incarnation == 10
    assert list(plan.folder.iterdir()) == [second]
    with pytest.raises(Fenced, match="has been replaced") as caught:
        FeedSpec.load(first)
    assert caught.value.where == str(first)


def test_an_announced_span_keeps_its_start_and_lists_its_wanted_tables(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bounds.json"
    bounds = BoundsFile(path, (1, 1))
    (task,) = Stripes(64).begin([table_task(70, 100)])

    def status(bound: int, start_ts: int, wanted: int, *, raise_starts: bool = False) -> Bounds:
        write(
            bounds,
            bound,
            {task.id: replace(task, start_ts=start_ts, wanted=wanted)},
            raise_starts=raise_starts,
        )
        return Bounds.load(path)

    assert status(200, 100, 1 << 6) == Bounds(200, DDL_SPAN_ID, {task.id: 100}, {task.id: (64, 1 << 6)})
    assert status(300, 250, 1 << 6) == Bounds(300, DDL_SPAN_ID, {task.id: 100}, {task.id: (64, 1 << 6)})
    assert status(300, 280, 3 << 6) == Bounds(300, DDL_SPAN_ID, {task.id: 100}, {task.id: (64, 3 << 6)})
    raised = status(300, 290, 3 << 6, raise_starts=True)
    assert raised == Bounds(300, DDL_SPAN_ID, {task.id: 290}, {task.id: (64, 3 << 6)})


def test_each_span_has_its_own_start_in_whatever_order_spans_come(tmp_path: Path) -> None:
    """A start above its own would leave rows out. Spans are written in the order of their opening."""
    bounds = BoundsFile(tmp_path / "bounds.json", (1, 1))
    tasks = [table_task(table, 100) for table in (73, 70, 72, 71)]

    def starts(tasks: list[SpanTask], **how: bool) -> dict[str, int]:
        write(bounds, 900, {task.id: task for task in tasks}, **how)
        return dict(Bounds.load(tmp_path / "bounds.json").spans)

    assert starts(tasks) == dict.fromkeys((task.id for task in tasks), 100)
    for order in (tasks, tasks[::-1], tasks[2:] + tasks[:2]):
        later = [replace(task, start_ts=200 + task.physical_id) for task in order]
        assert starts(later, raise_starts=True) == {task.id: task.start_ts for task in later}


def test_the_text_of_spans_is_their_json() -> None:
    tasks = [*Stripes(64).begin([table_task(70, 100), table_task(200, 300)]), table_task(5, 7)]
    text = spans_text(map(span_front, tasks), [task.start_ts for task in tasks])
    assert json.loads(text) == spans_json(tasks)
    assert spans_text([], []) == "{}"


def test_bounds_of_an_ended_incarnation_replace_none_of_the_next(tmp_path: Path) -> None:
    """The thread that writes them may be late."""
    path = tmp_path / "bounds.json"
    earlier, later = BoundsFile(path, (1, 1)), BoundsFile(path, (1, 2))
    late = earlier.due(50, opened({}))
    assert late is not None
    earlier.close()
    write(later, 40, {})
    earlier.put(late)
    assert Bounds.load(path).bound == 40


def test_a_bound_is_sent_when_rows_wait_for_it_or_spans_change(tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    bounds = BoundsFile(path, (1, 1))
    one, two = (table_task(table, 100) for table in (70, 71))

    def status(bound: int, *tasks: SpanTask, **how: bool) -> tuple[int, int]:
        write(bounds, bound, {task.id: task for task in tasks}, **how)
        found = Bounds.load(path)
        return found.bound, len(found.spans)

    assert status(200, one, idle=True) == (200, 1), "there was none"
    assert status(300, one, idle=True) == (200, 1)
    assert status(300, one) == (300, 1)
    assert status(400, one, two, idle=True) == (400, 2)
    assert status(500, one, two, idle=True) == (400, 2)
    assert status(500, one, replace(two, start_ts=450), idle=True, raise_starts=True) == (500, 2)


def test_a_later_bound_counts_only_for_the_spans_that_it_was_written_for(tmp_path: Path) -> None:
    """Up to a later bound other tables may be wanted. Without their spans their rows would be left out."""
    path = tmp_path / "bounds.json"
    bounds, reader = BoundsFile(path, (1, 1)), BoundsReader(path)
    one, two = (table_task(table, 100) for table in (70, 71))
    write(bounds, 200, {one.id: one})
    spans = path.read_text()
    marks = [reader.mark]
    write(bounds, 300, {one.id: one})
    marks.append(reader.mark)
    assert path.read_text() == spans, "it costs the same for any number of tables"
    assert reader.read() == Bounds.load(path) == Bounds(300, DDL_SPAN_ID, {one.id: 100})
    write(bounds, 400, {one.id: one, two.id: two})
    marks.append(reader.mark)
    assert reader.read() == Bounds(400, DDL_SPAN_ID, {one.id: 100, two.id: 100})
    write(bounds, 500, {one.id: one, two.id: two})
    marks.append(reader.mark)
    assert reader.read().bound == Bounds.load(path).bound == 500
    assert len(set(marks)) == 4, "each change is noticed"
    (tmp_path / "bound.json").write_text('{"number":')
    assert reader.read().bound == Bounds.load(path).bound == 400, "a loss of power has truncated it"
    write(bounds, 600, {one.id: one, two.id: two})
    path.write_text(spans)
    assert reader.read() == Bounds(200, DDL_SPAN_ID, {one.id: 100}), "the bound of 600 is for other spans"
    write(BoundsFile(path, (1, 1)), 250, {one.id: one})
    assert reader.read().bound == 250, "nor does it count for the next incarnation"


def test_spans_are_read_again_if_their_file_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes within the resolution of a file's times may have the first inode again."""
    monkeypatch.setattr(feed, "_mark", lambda name: 1)
    path = tmp_path / "bounds.json"
    bounds, reader = BoundsFile(path, (1, 1)), BoundsReader(path)
    one, two = (table_task(table, 100) for table in (70, 71))
    write(bounds, 200, {one.id: one})
    assert reader.read().spans.keys() == {one.id}
    write(bounds, 300, {one.id: one, two.id: two})
    write(bounds, 400, {one.id: one, two.id: two})
    assert reader.read() == Bounds(400, DDL_SPAN_ID, {one.id: 100, two.id: 100})


@pytest.mark.parametrize("age_s", [-3600, 60])
def test_spans_are_not_read_again_for_the_same_earlier_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int
) -> None:
    """Without rows `bound.json` may keep an earlier number for hours. A file that was just replaced might be
    another one with the same mark, so that one is read again.
    """
    path = tmp_path / "bounds.json"
    bounds, reader, reads = BoundsFile(path, (1, 1)), BoundsReader(path), list[int]()
    one, two = (table_task(table, 100) for table in (70, 71))
    write(bounds, 200, {one.id: one})
    write(bounds, 300, {one.id: one})
    write(bounds, 400, {one.id: one, two.id: two})
    os.utime(path, (time.time() - age_s,) * 2)
    reader.read()
    read = reader._read_spans
    monkeypatch.setattr(reader, "_read_spans", lambda: (reads.append(1), read())[1])
    for _ in range(3):
        assert reader.read().bound == 400
    assert len(reads) == (1 if age_s > 0 else 3)
    write(bounds, 500, {one.id: one, two.id: two})
    assert reader.read().bound == 500


@pytest.mark.parametrize("is_other_mark", [True, False])
def test_what_was_found_for_one_file_or_number_counts_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_other_mark: bool
) -> None:
    """A file is known to be the one that was read, for the earlier number in `bound.json`. Then another file
    comes, which is replaced within the resolution of its times; or the number becomes another one.
    """
    path, mark = tmp_path / "bounds.json", (1, 1, 1)
    monkeypatch.setattr(feed, "_mark", lambda name: mark)
    bounds, reader = BoundsFile(path, (1, 1)), BoundsReader(path)
    one, two, three = (table_task(table, 100) for table in (70, 71, 72))
    write(bounds, 200, {one.id: one})
    write(bounds, 300, {one.id: one})
    write(bounds, 400, {two.id: two})
    for _ in range(3):
        assert reader.read().spans.keys() == {two.id}
    if is_other_mark:
        mark = (2, 2, 2)
        assert reader.read().spans.keys() == {two.id}
        write(bounds, 500, {three.id: three})
    else:
        write(bounds, 500, {three.id: three})
        write(bounds, 600, {three.id: three})
    assert reader.read().spans.keys() == {three.id}


def test_a_slow_reader_takes_no_file_for_settled_that_was_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held for a minute after it has looked at the file's times. A file that replaces this one at once
    may have the same mark.
    """
    path = tmp_path / "bounds.json"
    bounds, reader = BoundsFile(path, (1, 1)), BoundsReader(path)
    one, two = (table_task(table, 100) for table in (70, 71))
    write(bounds, 200, {one.id: one})
    write(bounds, 300, {one.id: one})
    write(bounds, 400, {one.id: one, two.id: two})
    os.utime(path, (time.time() + 30,) * 2)  # new, also on a machine that stops for a while
    reader.read()
    mark, read, held_ns = reader.mark, reader._read_spans, 0
    monkeypatch.setattr(feed, "_mark", lambda name: mark[name.endswith(feed.BOUND_FILE)])  # type: ignore[index]
    monkeypatch.setattr(feed, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + held_ns))

    def slowly() -> tuple[str, Bounds]:
        nonlocal held_ns
        held_ns += 60_000_000_000
        return read()

    monkeypatch.setattr(reader, "_read_spans", slowly)
    assert reader.read().spans.keys() == {one.id, two.id}
    write(bounds, 500, {two.id: two})
    assert reader.read().spans.keys() == {two.id}


def test_what_could_not_be_written_on_a_full_disk_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bounds.json"
    bounds = BoundsFile(path, (1, 1))
    one, two = (table_task(table, 100) for table in (70, 71))
    write(bounds, 200, {one.id: one})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(DiskFull):
            write(bounds, 300, {one.id: one, two.id: two}, idle=True)
    write(bounds, 400, {one.id: one, two.id: two}, idle=True)
    assert Bounds.load(path) == Bounds(400, DDL_SPAN_ID, {one.id: 100, two.id: 100})
