"""The backlog of a feed, and the scan that says when to look: no report is missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.recorded import RecordedFeed

from tidegate.eventstore.floors import FloorPage
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.host.backlog import KEPT, Backlog
from tidegate.pipeline.host.due_scan import CALM_AT_ONCE, EAGER_S, DueScan
from tidegate.pipeline.host.incarnation import Incarnation

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
MIDDLE = 470612974530461697
"""Half of the transactions lie below."""
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
NEVER = float("inf")


class Waiting:
    """A feed's incarnation over the recorded log, held at the start by the bounds file."""

    def __init__(self, folder: Path) -> None:
        path = RecordedFeed(folder, BANK, URI, UPTO).write()
        self.bounds = path.parent / "bounds.json"
        self.reported = json.loads(self.bounds.read_text())
        self.bound(1)
        self.spec = FeedSpec.load(path)
        none: Any = None
        self.one = Incarnation(self.spec, str(path), none, none)
        self.backlog = self.one.backlog = Backlog(self.spec, Bounds.load(self.bounds).spans)
        self.one.looks_at = NEVER
        self.due_scan = DueScan()

    def bound(self, ts: int | None = None) -> None:
        """Let spans go so far; None: to the end."""
        partial = self.bounds.with_suffix(".tmp")
        partial.write_text(json.dumps(self.reported | ({} if ts is None else {"bound": ts})))
        partial.replace(self.bounds)

    def take(self) -> list[Range]:
        return [one for share in self.backlog.take(2) for one in share.ranges]

    def may_be_due(self, now: float = 0.0) -> bool:
        return bool(self.due_scan.may_be_due([self.one], now))

    def rests(self) -> None:
        """It was looked at, and nothing was reported since."""
        while self.may_be_due():
            assert self.take() == []


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    found = Waiting(tmp_path)
    found.rests()
    return found


def test_an_incarnation_is_looked_at_first_of_all(tmp_path: Path) -> None:
    assert Waiting(tmp_path).may_be_due()


def test_a_bound_that_is_raised_is_seen(waiting: Waiting) -> None:
    waiting.bound()
    assert waiting.may_be_due()
    assert waiting.take()
    assert not waiting.may_be_due()


def test_rows_that_come_are_seen_and_floors_that_rise_alone_are_not(waiting: Waiting) -> None:
    page = FloorPage(waiting.spec.store_dir, "process")
    held = {name: page.get(name) for name in waiting.reported["spans"]}
    page.put((name, floor + 1, version) for name, (floor, version) in held.items())
    assert not waiting.may_be_due()
    page.put((name, floor + 1, version ^ 1) for name, (floor, version) in held.items())
    assert waiting.may_be_due()
    page.close()


def test_rows_of_spans_that_others_follow_stir_nobody_else(waiting: Waiting) -> None:
    page = FloorPage(waiting.spec.store_dir, "process")
    other = "00000000000000ff"
    page.put([(other, 1, 1)])
    waiting.may_be_due()  # a new slot, of which nobody knows whose it is
    page.put([(other, 1, 2)])
    assert not waiting.may_be_due()
    page.close()


@pytest.mark.parametrize("calls", [1, 2])
def test_what_is_reported_while_it_looks_is_seen_next(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    look: Callable[[int], tuple[list[Range], dict[str, int], int]] = waiting.backlog.look
    left = [calls]

    def reported_meanwhile(at_most: int) -> tuple[list[Range], dict[str, int], int]:
        found = look(at_most)
        left[0] -= 1
        waiting.bound(None if left[0] == 0 else 1)
        return found

    monkeypatch.setattr(waiting.backlog, "look", reported_meanwhile)
    waiting.bound(1)
    for _ in range(calls):
        assert waiting.may_be_due()
        assert waiting.take() == []
    assert waiting.may_be_due()
    assert waiting.take()


class Crowd:
    """Incarnations over the same files, all of them without rows for long."""

    def __init__(self, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
        none: Any = None
        spec, self.now, self.stats = waiting.spec, 0.0, 0
        self.all = [Incarnation(spec, "", none, none) for _ in range(2 * CALM_AT_ONCE + 10)]
        for one in self.all:
            one.backlog, one.looks_at = Backlog(spec, {}), NEVER
            one.backlog.spans = frozenset(waiting.reported["spans"])
        mark, own = Backlog.bounds_mark, {id(one.backlog) for one in self.all}

        def counted(backlog: Backlog) -> object:
            # Not of a host that an earlier test has left running.
            self.stats += id(backlog) in own
            return mark(backlog)

        monkeypatch.setattr(Backlog, "bounds_mark", counted)
        self.due_scan = DueScan()
        self.scan()
        self.now += EAGER_S

    def scan(self) -> tuple[int, int]:
        """How many may be due, and at how many bounds files it has looked."""
        before = self.stats
        return len(self.due_scan.may_be_due(self.all, self.now)), self.stats - before


def test_a_scan_looks_at_some_bounds_files_and_all_have_their_turn(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(waiting, monkeypatch)
    assert sorted(crowd.scan() for _ in range(3)) == [(0, 10), (0, CALM_AT_ONCE), (0, CALM_AT_ONCE)]
    waiting.bound()
    assert sum(crowd.scan()[0] for _ in range(3)) == len(crowd.all)


def test_each_scan_looks_at_the_bounds_files_of_feeds_with_rows(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, page = Crowd(waiting, monkeypatch), FloorPage(waiting.spec.store_dir, "process")
    count = len(crowd.all)
    held = {name: page.get(name) for name in waiting.reported["spans"]}
    page.put((name, floor, version ^ 1) for name, (floor, version) in held.items())
    assert crowd.scan() == (count, count)
    crowd.now += EAGER_S / 2
    assert crowd.scan() == (0, count)
    waiting.bound()
    assert crowd.scan() == (count, count), "the bound that the rows wait for"
    crowd.now += EAGER_S
    assert crowd.scan()[1] <= CALM_AT_ONCE
    page.close()


def test_it_is_looked_at_now_and_then_although_nothing_was_reported(waiting: Waiting) -> None:
    """If something was reported that the marks do not show, it is seen then."""
    waiting.one.looks_at = 100.0
    assert not waiting.may_be_due(99.0)
    assert waiting.may_be_due(100.0)


def test_what_was_taken_is_not_taken_again(waiting: Waiting) -> None:
    waiting.bound()
    first = waiting.take()
    assert first
    assert waiting.take() == []
    waiting.backlog.done(first)
    assert waiting.take() == []


def test_what_nobody_could_be_given_is_due_again(waiting: Waiting) -> None:
    waiting.bound(MIDDLE)
    first = waiting.take()
    waiting.backlog.give_back(first)
    assert waiting.take() == first


def test_it_knows_whether_a_piece_left_rows(waiting: Waiting) -> None:
    """Then the changefeed is behind, and its next piece has no gap (`exchange.pace`)."""
    waiting.bound()
    _, _, due_bytes = waiting.backlog.look()
    assert waiting.backlog.take(1, due_bytes // 2)
    assert waiting.backlog.is_cut
    waiting.backlog.done(waiting.backlog.look()[0])
    waiting.backlog.take(1)
    assert not waiting.backlog.is_cut


def test_of_a_span_that_a_worker_has_nothing_more_is_due_until_it_is_done(waiting: Waiting) -> None:
    """Else two workers would write the rows of one span side by side, in no order."""
    waiting.bound(MIDDLE)
    first = waiting.take()
    assert first
    waiting.bound()
    others = waiting.take()
    assert not {one.span for one in first} & {one.span for one in others}
    waiting.backlog.done(first)
    behind = {one.span: one for one in waiting.take()}
    assert behind.keys() >= {one.span for one in first}
    assert all(behind[one.span].after == one.upto for one in first)


def test_spans_that_are_gone_are_forgotten(waiting: Waiting) -> None:
    """Otherwise memory would grow with all tables that there ever were."""
    backlog = waiting.backlog
    waiting.bound()
    backlog.done(waiting.take())
    assert len(backlog._begun) > KEPT
    assert len(backlog._manifests) > KEPT
    kept = min(waiting.reported["spans"])
    waiting.reported["spans"] = {kept: waiting.reported["spans"][kept]}
    waiting.bound()
    waiting.take()
    assert backlog._begun.keys() == {kept}
    assert backlog._manifests.keys() <= {kept}
