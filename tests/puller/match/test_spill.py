"""Open transactions beyond the memory bound go to disk and come back whole: against plain matchers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.puller.match.spill_script import SpillScript
from tests.puller.match.test_matcher import BOUNDS, CHECKPOINT, REGIONS, SPANS, changes_of, rows
from tests.puller.wire import resolved_message, rows_message
from tests.scripts import run_script, scripts
from tidegate.model.span import Span
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Happening
from tidegate.puller.match.matcher import BrokenContractError, Change, LogType, Matcher, Row


@pytest.mark.parametrize("path", scripts(Path(__file__).parents[1] / "testdata" / "spill"))
def test_a_matcher_with_little_memory_does_what_the_script_says(
    path: Path, tmp_path: Path, *, rewrite: bool
) -> None:
    run_script(path, SpillScript(tmp_path).run, rewrite=rewrite)


class Spilling:
    """A matcher with a small bound, fed as a stream feeds it."""

    def __init__(self, folder: Path, bound: int) -> None:
        self.folder = folder
        self.matcher = BlockMatcher(StreamMemory(bound), folder)
        self.changes: list[list[Change]] = [[], []]
        self.resolved: dict[int, int] = {}
        self.violated: set[int] = set()
        self.largest_open = 0
        self.spilled = 0

    def feed(self, wire: list[bytes]) -> None:
        every = [self.matcher.feed(wire)]
        self.matcher.relieve()
        self.largest_open = max(self.largest_open, self.matcher.open_bytes)
        self.spilled = max(self.spilled, len(list(self.folder.iterdir())))
        for matched in [*every, *self.matcher.join()]:
            for before, fresh in zip(self.changes, changes_of(matched), strict=True):
                before += fresh
            marks = zip(matched.marks.tolist(), matched.resolved.tolist(), strict=True)
            for mark, ts in marks:
                assert ts >= self.resolved.get(mark, 0)
                self.resolved[mark] = ts
            self.violated |= {n.registration.mark for n in matched.notes if n.happening is Happening.VIOLATED}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.lists(rows, min_size=1, max_size=8)), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 300, 1500]),
    st.sets(st.integers(0, 5), max_size=3),
)
def test_any_rows_spilled_at_any_time_match_as_in_plain_matchers(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[int, list[Row]]]],
    bound: int,
    initialized: set[int],
) -> None:
    plain = [Matcher(bounds, CHECKPOINT) for bounds in BOUNDS]
    expected: list[list[Change]] = [[], [], []]
    broken: set[int] = set()
    spilling = Spilling(tmp_path_factory.mktemp("spill"), bound)
    for i, (region, request) in enumerate(REGIONS):
        spilling.matcher.register(request, region, SPANS[i], i, BOUNDS[i], CHECKPOINT)
    ends = [[(at, [Row(LogType.INITIALIZED)]) for at in range(3)]]
    for number, batch in enumerate(batches + ends):
        if number in initialized:
            batch = [*batch, (number % 3, [Row(LogType.INITIALIZED)])]
        for at, content in batch:
            for row in content if at not in broken else []:
                try:
                    expected[at] += plain[at].push(row)
                except BrokenContractError as error:
                    expected[at] += error.changes
                    broken.add(at)
                    break
        spilling.feed([rows_message(*REGIONS[at], content) for at, content in batch])
    spilling.feed([resolved_message([region], request, 1000) for region, request in REGIONS])
    assert spilling.violated == broken
    assert set(spilling.resolved) == {0, 1, 2} - broken
    for span in (0, 1):
        wanted = Counter(c for at in range(3) if SPANS[at] == span and at not in broken for c in expected[at])
        found = Counter(spilling.changes[span])
        if not any(SPANS[at] == span for at in broken):
            assert found == wanted
        assert not wanted - found
    spilling.matcher.close()
    assert not spilling.folder.exists()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([1, 2000, 20_000]))
def test_transactions_come_out_before_the_resolved_ts_that_covers_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int, bound: int
) -> None:
    """A store that keeps its contract: a resolved ts stays below every open transaction's start."""
    random = Random(seed)
    spilling = Spilling(tmp_path_factory.mktemp("spill"), bound)
    spilling.matcher.register(7, 1, 0, 0, Span(b"", b""), CHECKPOINT)
    spilling.feed([rows_message(1, 7, [Row(LogType.INITIALIZED)])])
    clock, number = 100, 0
    open_ones: dict[int, list[bytes]] = {}
    waiting: dict[int, list[tuple[int, bytes]]] = {}  # prewritten and committed, the commits on their way
    expected: list[Change] = []
    for _ in range(random.randint(5, 30)):
        wire: list[bytes] = []
        for _ in range(random.randint(1, 5)):
            clock += random.randint(1, 5)
            choice = random.random()
            if choice < 0.45:
                keys = [b"k%06d" % (number + i) for i in range(random.choice([1, 2, 3, 40]))]
                number += len(keys)
                open_ones[clock] = keys
                wire.append(rows_message(1, 7, [Row(1, clock, 0, 1, key, key * 9, b"old") for key in keys]))
            elif choice < 0.75 and open_ones:
                start = random.choice(sorted(open_ones))
                waiting[start] = [(clock, key) for key in open_ones.pop(start)]
                random.shuffle(waiting[start])
            elif choice < 0.85 and open_ones:
                start = random.choice(sorted(open_ones))
                wire.append(rows_message(1, 7, [Row(3, start, 0, 0, key) for key in open_ones.pop(start)]))
            elif waiting:
                start = random.choice(sorted(waiting))
                some = [waiting[start].pop() for _ in range(random.randint(1, len(waiting[start])))]
                if not waiting[start]:
                    del waiting[start]
                wire.append(rows_message(1, 7, [Row(2, start, ts, 1, key) for ts, key in some]))
                expected += [Change(ts, start, 1, key, key * 9, b"old") for ts, key in some]
            else:
                bar = min([*open_ones, *waiting, clock]) - 1
                wire.append(resolved_message([1], 7, bar))
        if wire:
            spilling.feed(wire)
        reported = spilling.resolved.get(0, 0)
        found = Counter(spilling.changes[0])
        assert all(count == 1 for count in found.values())
        assert not Counter(c for c in expected if c.commit_ts <= reported) - found
        assert spilling.largest_open <= bound
    clock += 1
    rest = [Row(2, s, ts, 1, key) for s, keys in waiting.items() for ts, key in keys]
    rest += [Row(3, s, 0, 0, key) for s, keys in open_ones.items() for key in keys]
    expected += [Change(r.commit_ts, r.start_ts, 1, r.key, r.key * 9, b"old") for r in rest if r.kind == 2]
    spilling.feed([rows_message(1, 7, rest), resolved_message([1], 7, clock + 10)])
    assert Counter(spilling.changes[0]) == Counter(expected)
    assert not spilling.violated
    assert spilling.resolved[0] == clock + 10
    assert list(spilling.folder.iterdir()) == []
    assert spilling.matcher.open_bytes == 0


FULL = """
import resource, sys
from pathlib import Path
from tests.puller.match.test_spill import Spilling, rows_message, resolved_message, Row, LogType, Span
from tidegate.disk import DiskFull
spilling = Spilling(Path(sys.argv[1]), 100_000)
spilling.matcher.register(7, 1, 0, 0, Span(b"a", b"z"), 10)
spilling.feed([rows_message(1, 7, [Row(LogType.INITIALIZED)])])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for limit in (0, 150_000, 400_000, 1_200_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    first = {0: 0, 150_000: 100, 400_000: 200, 1_200_000: 300}[limit]
    try:
        rows = [Row(1, 30, 0, 1, b"k%05d" % i, b"v" * 5000) for i in range(first, first + 100)]
        spilling.matcher.feed([rows_message(1, 7, rows)])
        spilling.matcher.relieve()
    except DiskFull as error:
        print("full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    spilling.feed([])
commits = [Row(2, 30, 40, 1, b"k%05d" % i) for i in range(400)]
spilling.feed([rows_message(1, 7, commits), resolved_message([1], 7, 50)])
assert len({c.key for c in spilling.changes[0]}) == len(spilling.changes[0]) == 400
assert spilling.resolved == {0: 50} and not spilling.violated
"""


def test_a_full_disk_at_a_spill_leaves_everything_as_it_was(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "spill")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("full") >= 2
