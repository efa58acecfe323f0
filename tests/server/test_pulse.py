"""Followers of a store are woken by what its page of floors says of their rows, at times by the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.control.metadata import FeedId
from tidegate.eventstore.floors import FLOORS, FloorPage
from tidegate.eventstore.manifest import Manifest, load_manifest
from tidegate.eventstore.order import Entry, block_of
from tidegate.eventstore.records import Torn
from tidegate.eventstore.span_files import FOLLOW_MS
from tidegate.eventstore.store import EventStore
from tidegate.model.block import OP_PUT
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.pipeline.exchange import pace
from tidegate.pipeline.exchange.pace import PAUSE_MAX_S, pause_s
from tidegate.server.pulling import pulse
from tidegate.server.pulling.pulse import (
    CALM_S,
    CALM_WAKES_A_S,
    CALMER_S,
    CALMEST_S,
    EAGER_S,
    EAGER_WAKES_A_S,
    LONG_S,
    LOOK_S,
    RESTS,
    SPREAD,
    ManifestOf,
    Pulse,
)

FEED, OTHER = FeedId("default", "one"), FeedId("default", "two")


def name(number: int) -> str:
    return f"{number:016x}"


class Follower:
    """Notes when it is woken, in one list with others."""

    def __init__(self, woken: list[str], who: str) -> None:
        self._woken, self._who = woken, who

    def wake(self) -> None:
        self._woken.append(self._who)


class Set:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def now_ms(self) -> int:
        raise AssertionError("a pulse needs no date")

    def monotonic(self) -> float:
        return self.now


def test_each_page_change_wakes_followers_once_and_owners_first(
    tmp_path: Path,
) -> None:
    """A look without a change wakes nobody."""
    stores = [tmp_path / "one", tmp_path / "two"]
    for store in stores:
        store.mkdir()
    woken: list[str] = []
    processor, owner, other = (Follower(woken, who) for who in ("processor", "owner", "other"))
    beats = Pulse()
    beats.follow(stores[0], FEED, processor.wake)
    beats.follow(stores[0], FEED, owner.wake, first=True)
    beats.follow(stores[1], OTHER, other.wake)
    beats.look()
    assert woken == [], "there is no page yet"
    page = FloorPage(stores[0], "process")
    page.put([(name(1), 5, 1)])
    beats.look()
    assert woken == ["owner", "processor"]
    beats.look()
    assert woken == ["owner", "processor"]
    for change in (
        lambda: page.put([(name(1), 6, 1)]),
        lambda: page.put([(name(1), 6, 2)]),
        lambda: page.put([(name(1), 0, 0)]),
        lambda: page.put((name(number), 9, 1) for number in range(2, 500)),  # another file
        lambda: page.forget(name(3)),
        lambda: (stores[0] / FLOORS).unlink(),
        lambda: page.put([(name(4), 10, 1)]),
    ):
        woken.clear()
        change()
        beats.look()
        assert woken == ["owner", "processor"]
    page.close()


def test_a_follower_that_comes_back_is_woken_by_what_it_has_not_read(tmp_path: Path) -> None:
    page = FloorPage(tmp_path, "process")
    page.put([(name(1), 5, 1)])
    woken: list[str] = []
    one, stays = Follower(woken, "one"), Follower(woken, "stays")
    beats = Pulse()
    beats.follow(tmp_path, OTHER, stays.wake)
    beats.follow(tmp_path, FEED, one.wake)
    beats.look()
    beats.leave(tmp_path, FEED, one.wake)
    beats.leave(tmp_path / "never", FEED, one.wake)
    woken.clear()
    page.put([(name(1), 6, 1)])
    beats.look()
    assert woken == ["stays"]
    beats.follow(tmp_path, FEED, one.wake)  # and reads 6
    page.put([(name(1), 7, 1)])
    beats.look()
    assert woken == ["stays", "stays", "one"]
    page.close()


class Calm:
    """A feed of one span that is calm, and a page with that span and another."""

    def __init__(self, store: Path) -> None:
        self.store, self.clock, self.page = store, Set(), FloorPage(store, "process")
        self.woken: list[str] = []
        self.beats = Pulse(self.clock)
        self.put((1, 5, 1), (2, 5, 1))
        self.beats.follow(store, FEED, Follower(self.woken, "one").wake)
        self.beats.concern(store, FEED, {name(1)})
        self.beats.look()
        self.clock.now += EAGER_S
        self.woken.clear()

    def put(self, *floors: tuple[int, int, int]) -> None:
        self.page.put([(name(number), floor, version) for number, floor, version in floors])

    def looks(self, after_s: float) -> int:
        """How often it is woken by a look, so much later."""
        self.clock.now += after_s
        self.woken.clear()
        self.beats.look()
        return len(self.woken)


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Calm]:
    made = Calm(tmp_path)
    yield made
    made.page.close()


def test_foreign_rows_and_floors_wake_a_feed_rarely_but_none_is_forgotten(calm: Calm) -> None:
    calm.put((1, 6, 1), (2, 6, 2))
    assert calm.looks(0.0) == 1
    calm.put((1, 7, 1))
    assert calm.looks(CALM_S / 2) == 0, "it was woken a moment ago"
    assert calm.looks(CALM_S / 2) == 1, "the change that it was not woken by"
    assert calm.looks(CALM_S) == 0, "nothing has changed since"


def test_a_feed_without_rows_for_long_is_woken_once_a_second(calm: Calm) -> None:
    calm.clock.now += LONG_S
    calm.put((1, 6, 1))
    assert calm.looks(0.0) == 1
    calm.put((1, 7, 1))
    assert calm.looks(CALM_S) == 0
    assert calm.looks(CALMER_S - CALM_S) == 1
    calm.put((1, 8, 2))
    assert calm.looks(0.0) == 1, "rows of its own"
    calm.put((1, 9, 2))
    assert calm.looks(EAGER_S) == 1
    calm.put((1, 10, 2))
    assert calm.looks(CALM_S) == 1


def test_own_rows_wake_a_feed_at_once_and_so_do_all_changes_for_a_while(calm: Calm) -> None:
    calm.put((1, 6, 1))
    assert calm.looks(0.0) == 1
    calm.put((1, 7, 2))
    assert calm.looks(0.0) == 1, "another manifest of its span"
    calm.put((2, 7, 1))
    assert calm.looks(0.0) == 1, "the floor that its rows may wait for"
    calm.put((2, 8, 1))
    assert calm.looks(EAGER_S) == 1
    calm.put((2, 9, 1))
    assert calm.looks(0.0) == 0, "it is calm again"


class Stored:
    """A feed of one span of a real event store, which has had no rows for long."""

    def __init__(self, folder: Path, manifest_of: ManifestOf) -> None:
        self.store, self.clock, self.woken = EventStore(folder), Set(), list[str]()
        self.span = self.store.open_span(Span(b"a", b"b"))
        self.span.begin(compose(1))
        self.beats = Pulse(self.clock, manifest_of)
        self.beats.follow(folder, FEED, Follower(self.woken, "one").wake)
        self.beats.concern(folder, FEED, {self.span.id})
        self.ms = 1
        self.floor_rises()

    def floor_rises(self, ms: int = 1000) -> bool:
        """Return whether its manifest was written as well. A look follows."""
        self.ms += ms
        _, before = self.span.claim
        self.span.seal(compose(self.ms))
        self.store.publish()
        self.beats.look()
        return self.span.claim[1] != before

    def is_eager_after(self, ms: int) -> bool:
        """Whether a floor that rises so much, with another manifest, lets the next one wake it at once."""
        self.clock.now += EAGER_S + LONG_S
        self.woken.clear()
        assert self.floor_rises(ms)
        assert self.woken == ["one"]
        assert not self.floor_rises()
        return self.woken == ["one", "one"]


def test_a_manifest_that_only_follows_the_floor_makes_nobody_eager(tmp_path: Path) -> None:
    feed = Stored(tmp_path, lambda store, span: load_manifest(store / span))
    assert not feed.is_eager_after(2 * FOLLOW_MS)
    feed.span.append(block_of([Entry(compose(feed.ms + 1), 1, OP_PUT, b"a", b"v", b"")]))
    assert feed.is_eager_after(1000)
    assert not feed.is_eager_after(2 * FOLLOW_MS)
    feed.store.close()


def test_a_manifest_that_cannot_be_read_makes_its_feed_eager(tmp_path: Path) -> None:
    def torn(store: Path, span: str) -> Manifest:
        raise Torn("a manifest is torn", where=span, why="it was cut off")

    feed = Stored(tmp_path, torn)
    assert feed.is_eager_after(2 * FOLLOW_MS)
    assert feed.is_eager_after(2 * FOLLOW_MS)
    feed.store.close()


def test_a_feed_that_comes_to_deliver_other_spans_is_eager_for_a_while(calm: Calm) -> None:
    calm.put((2, 6, 2))
    assert calm.looks(0.0) == 1
    calm.beats.concern(calm.store, FEED, {name(1), name(2)})
    calm.put((2, 7, 2))
    assert calm.looks(0.0) == 1
    calm.beats.concern(calm.store, FEED, None)
    calm.put((2, 8, 2))
    assert calm.looks(2 * EAGER_S) == 1
    calm.put((2, 9, 2))
    assert calm.looks(0.0) == 1, "for as long as nobody knows what concerns it"


def test_a_look_wakes_a_few_followers_of_time_and_all_have_their_turn(tmp_path: Path) -> None:
    clock, page, woken = Set(), FloorPage(tmp_path, "process"), list[str]()
    beats, feeds = Pulse(clock), [FeedId("default", f"f{number}") for number in range(100)]
    for feed in feeds:
        beats.follow(tmp_path, feed, Follower(woken, feed.name).wake)
        beats.concern(tmp_path, feed, {name(1)})
    page.put([(name(1), 0, 1)])
    beats.look()
    clock.now += EAGER_S + LONG_S
    last, most = dict.fromkeys((feed.name for feed in feeds), clock.now), 0
    for floor in range(1, 201):
        clock.now += LOOK_S
        page.put([(name(1), floor, 1)])
        woken.clear()
        beats.look()
        if floor > 50:  # by then each has its own place in the turn
            most = max(most, len(woken))
            assert all(clock.now - last[feed] >= CALMER_S - 0.001 for feed in woken)
        last |= dict.fromkeys(woken, clock.now)
    assert most <= 5, "two at each look would be enough"
    assert clock.now - min(last.values()) <= 2 * CALMER_S
    page.close()


class Crowd:
    """Changefeeds that follow one store, each of a span of its own; looks at every change of it."""

    def __init__(self, store: Path, count: int) -> None:
        self.clock, self.page, self.store = Set(), FloorPage(store, "process"), store
        self.beats, self.count, self.woken = Pulse(self.clock), count, list[str]()
        self.version = 1
        for number in range(count):
            feed = FeedId("default", f"f{number}")
            self.beats.follow(store, feed, Follower(self.woken, feed.name).wake)
            self.beats.concern(store, feed, {name(1 + number)})
        self.page.put((name(1 + number), 0, 1) for number in range(count))
        self.beats.look()

    def rows_come(self, seconds: float, *others: int) -> None:
        """Rows of all feeds, and of some other spans, come in each look."""
        for _ in range(max(1, round(seconds / LOOK_S))):
            self.clock.now += LOOK_S
            self.version += 1
            spans = (*range(1, 1 + self.count), *others)
            self.page.put((name(span), self.version, self.version) for span in spans)
            self.beats.look()

    def gaps_s(self, seconds: float) -> tuple[list[float], int]:
        """The times between two wake-ups of each feed while rows of all come, and the most in one look."""
        last, gaps, most = dict[str, float](), list[float](), 0
        for _ in range(round(seconds / LOOK_S)):
            self.woken.clear()
            self.rows_come(LOOK_S)
            most = max(most, len(self.woken))
            for one in self.woken:
                gaps.append(self.clock.now - last.get(one, self.clock.now))
                last[one] = self.clock.now
        return gaps, most

    def wakes_a_second(self, seconds: float, *, rows: bool = False) -> float:
        """Return wakes a second of all feeds, while floors rise with the time, or while rows of all come."""
        self.woken.clear()
        for floor in range(round(seconds / LOOK_S)):
            self.clock.now += LOOK_S
            self.version += rows
            self.page.put((name(1 + number), floor, self.version) for number in range(self.count))
            self.beats.look()
        assert len(set(self.woken)) == self.count, "each has its turn"
        return len(self.woken) / seconds


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses follow the cores."""
    monkeypatch.setattr(pace, "CORES", 2)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("count", [2, 4, 8, 20, 100])
def test_feeds_with_rows_are_woken_a_bounded_number_of_times_a_second(tmp_path: Path, count: int) -> None:
    crowd = Crowd(tmp_path, count)
    found = crowd.wakes_a_second(EAGER_S - LOOK_S, rows=True)
    assert found <= 1.25 * EAGER_WAKES_A_S
    assert found >= min(count / LOOK_S, 0.6 * EAGER_WAKES_A_S), "and none waits for nothing"
    crowd.wakes_a_second(2 * PAUSE_MAX_S, rows=True)
    a_second = count / max(LOOK_S, pause_s(count))
    assert crowd.wakes_a_second(10.0, rows=True) == pytest.approx(a_second, rel=0.15)
    gaps, most = crowd.gaps_s(10.0)
    assert max(gaps) <= pause_s(count) + 3 * LOOK_S, "each has its turn"
    assert most <= 2 + SPREAD * a_second * LOOK_S, "they are spread over the pause"
    crowd.page.close()


@pytest.mark.usefixtures("two_cores")
def test_a_feed_whose_rows_begin_need_not_wait_for_those_with_a_pause(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 40)
    crowd.wakes_a_second(2 * EAGER_S, rows=True)
    new = FeedId("default", "new")
    crowd.beats.follow(tmp_path, new, Follower(crowd.woken, "new").wake)
    crowd.beats.concern(tmp_path, new, {name(1000)})
    for after_s in (0.0, EAGER_S + LONG_S):
        crowd.rows_come(after_s)
        crowd.woken.clear()
        for _ in range(10):
            crowd.rows_come(LOOK_S, 1000)
        assert crowd.woken.count("new") == 10
        assert crowd.woken.count("f0") <= 1
    crowd.page.close()


def test_feeds_without_rows_are_woken_a_bounded_number_of_times_a_second(tmp_path: Path) -> None:
    count = 4 * CALM_WAKES_A_S
    crowd = Crowd(tmp_path, count)
    crowd.clock.now += EAGER_S
    crowd.wakes_a_second(count / CALM_WAKES_A_S)
    assert crowd.wakes_a_second(5.0) == pytest.approx(2 * CALM_WAKES_A_S, rel=0.15), "rows came lately"
    crowd.clock.now += LONG_S
    crowd.wakes_a_second(2 * count / CALM_WAKES_A_S)  # by then each has its own place in the turn
    assert crowd.wakes_a_second(20.0) == pytest.approx(CALM_WAKES_A_S, rel=0.1)
    assert crowd.beats.calmer_s(tmp_path) == count / CALM_WAKES_A_S
    assert crowd.beats.rest_s(tmp_path) == RESTS * count / CALM_WAKES_A_S
    crowd.page.close()


def test_a_look_that_fails_does_not_end_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "RETRY_S", 0.0)
    beats, looks = Pulse(), iter([OSError(5, "Input/output error"), None])
    seen = asyncio.Event()

    def look() -> None:
        found = next(looks)
        if found is not None:
            raise found
        seen.set()

    async def scenario() -> None:
        monkeypatch.setattr(beats, "look", look)
        running = asyncio.create_task(beats.run())
        async with asyncio.timeout(120):
            await seen.wait()
        running.cancel()

    asyncio.run(scenario())


def test_three_hundred_feeds_without_rows_are_woken_each_five_seconds(tmp_path: Path) -> None:
    count = 300
    crowd = Crowd(tmp_path, count)
    crowd.clock.now += EAGER_S + LONG_S
    crowd.wakes_a_second(2 * CALMEST_S)  # by then each has its own place in the turn
    assert crowd.wakes_a_second(2 * CALMEST_S) == pytest.approx(count / CALMEST_S, rel=0.1)
    assert count / CALMEST_S > CALM_WAKES_A_S
    crowd.page.close()
