"""The division of a key space among captures: its time, how even the loads are, and how much moves.

    python -m benchmarks.share [--json FILE]

A second table is for the owner of the changefeed (`control/owner.py`): the time of a tick if nothing has
changed, if one range was reported since, and if all were. It is in milliseconds of one core, the least of
some ticks.

Each case has a division among captures, an event, and the division after it. Weights are bytes per second,
from a lognormal distribution (sigma 1.5: 1 % of the pieces have about 20 % of the bytes). The events:

- first: no capture has pieces yet;
- same: nothing happens;
- gone, joined: one capture leaves or joins;
- drift: each weight is multiplied by a lognormal factor (sigma 0.5);
- skew: weights were equal; then 1 % of the pieces, all neighbours, have 90 % of the bytes;
- skew first: the same weights, and no capture has pieces yet.

The baseline, `count`, gives the same number of pieces to each capture, in order, and divides everything again
at each event. A load is the greatest load as a multiple of the mean. It cannot be below 1, nor below the
heaviest piece. Moved bytes are a share of all bytes. Milliseconds are the least of some calls, by the
wall clock.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.show import machine, table

from tidegate.control.barrier import Barrier
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.owner import Owner, Persist, SendResolved
from tidegate.control.share import Piece, Shares, load_of, moved, share
from tidegate.model.span import Span

ALL: Final = Span(b"", b"")
SIZES: Final = ((1_000, 3), (1_000, 10), (10_000, 10), (10_000, 100), (100_000, 100))
EVENTS: Final = ("first", "same", "gone", "joined", "drift", "skew", "skew first")
CALLS: Final = 5
HEADINGS: Final = (
    "event", "pieces", "captures", "ms", "load before", "load after", "least possible", "count: load",
    "moved", "count: moved", "ranges",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the table."""

    event: str
    pieces: int
    captures: int
    ms: float
    load_before: float
    """The load of the division before the event, with the weights and the number of captures after it."""
    load_after: float
    load_least: float
    load_of_count: float
    moved: float
    moved_of_count: float
    ranges: int

    def cells(self) -> list[str]:
        loads = self.load_before, self.load_after, self.load_least, self.load_of_count
        moves = self.moved, self.moved_of_count
        return [
            self.event, f"{self.pieces:,}", f"{self.captures:,}", f"{self.ms:.1f}",
            *(f"{load:.2f}" if load else "-" for load in loads),
            *(f"{100 * share:.2f} %" for share in moves), f"{self.ranges:,}",
        ]  # fmt: skip


def by_count(pieces: Sequence[Piece], captures: Sequence[str]) -> Shares:
    """The baseline: the same number of pieces for each capture."""
    count = len(pieces)
    firsts = [count * number // len(captures) for number in range(1, len(captures))]
    spans = ALL.cut_at([pieces[first].span.start for first in firsts])
    return {name: (span,) for name, span in zip(captures, spans, strict=True)}


def _pieces(weights: Sequence[float]) -> list[Piece]:
    keys = [b"t" + number.to_bytes(8, "big") for number in range(len(weights) + 1)]
    return [Piece(Span(keys[i], keys[i + 1]), weight) for i, weight in enumerate(weights)]


def _skewed(count: int) -> list[float]:
    heavy = max(1, count // 100)
    first = count // 3
    return [90 / heavy if first <= i < first + heavy else 10 / (count - heavy) for i in range(count)]


def _greatest(shares: Shares, pieces: Sequence[Piece], captures: int) -> float:
    """The greatest load as a multiple of the mean over `captures` captures. 0: there are no shares."""
    total = sum(piece.weight for piece in pieces)
    return max(load_of(shares, pieces).values(), default=0.0) / (total / captures)


def _timed(call: Callable[[], Shares]) -> tuple[Shares, float]:
    spent = []
    for _ in range(CALLS):
        began = time.perf_counter()
        found = call()
        spent.append(1e3 * (time.perf_counter() - began))
    return found, min(spent)


def measure(event: str, count: int, captures: int) -> Figures:
    """Measure one event. The arguments determine the weights, so two runs measure the same."""
    rng = random.Random(count + captures)
    weights = [1.0 if event == "skew" else rng.lognormvariate(0, 1.5) for _ in range(count)]
    names = [f"capture-{number:03}" for number in range(captures)]
    old, later = _pieces(weights), names
    if event == "gone":
        later = [name for name in names if name != names[captures // 2]]
    elif event == "joined":
        later = [*names, "joined"]
    elif event == "drift":
        weights = [weight * rng.lognormvariate(0, 0.5) for weight in weights]
    elif event in ("skew", "skew first"):
        weights = _skewed(count)
    pieces, total = _pieces(weights), sum(weights)
    first = event in ("first", "skew first")
    before = {} if first else share(ALL, old, names, {})
    count_before = {} if first else by_count(old, names)
    after, ms = _timed(lambda: share(ALL, pieces, later, before))
    count_after = by_count(pieces, later)
    return Figures(
        event,
        count,
        captures,
        ms,
        _greatest(before, pieces, len(later)),
        _greatest(after, pieces, len(later)),
        max(1.0, max(weights) * len(later) / total),
        _greatest(count_after, pieces, len(later)),
        sum(move.weight for move in moved(before, after, pieces)) / total,
        sum(move.weight for move in moved(count_before, count_after, pieces)) / total,
        sum(map(len, after.values())),
    )


@dataclass(frozen=True, slots=True)
class Ticks:
    """One line of the owner's table."""

    ranges: int
    idle_ms: float
    one_ms: float
    all_ms: float


def measure_ticks(count: int) -> Ticks:
    """Measure an owner of `count` ranges on ten captures, all running."""
    edges = [b"t" + number.to_bytes(8, "big") for number in range(1, count)]
    granted = [GrantedRange(span, (1, 1)) for span in ALL.cut_at(edges)]
    owner = Owner(100, Barrier(100), ALL)
    by_capture = {f"capture-{number}": granted[number::10] for number in range(10)}
    for name, ranges in by_capture.items():
        owner.grant(name, 1, ranges)
    owner.sink_open(0)
    for name, ranges in by_capture.items():
        owner.running(name, 1, ranges)
    owner.barrier.learn([], 1 << 60)
    now = 0.0

    def tick(moved: Mapping[str, Sequence[GrantedRange]], ts: int) -> float:
        nonlocal now
        now += 1.0
        reports = {
            name: [RangeProgress(one.id, one.token, ts, ts) for one in ranges]
            for name, ranges in moved.items()
        }
        began = time.process_time()
        for name, ranges in reports.items():
            owner.report(name, 1, ranges)
        for effect in owner.tick(now):
            if isinstance(effect, SendResolved):
                owner.resolved_done(effect.ts)
            elif isinstance(effect, Persist):
                owner.persisted(effect.ts)
        return 1e3 * (time.process_time() - began)

    tick(by_capture, 200)
    one = {"capture-0": by_capture["capture-0"][:1]}
    return Ticks(
        count,
        min(tick({}, 0) for _ in range(CALLS)),
        min(tick(one, 300 + ts) for ts in range(CALLS)),
        min(tick(by_capture, 400 + ts) for ts in range(CALLS)),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = [measure(event, *size) for size in SIZES for event in EVENTS]
    print(table([HEADINGS, *(one.cells() for one in found)]))
    ticks = [measure_ticks(count) for count in (10, 1_000, 10_000)]
    rows = [(f"{t.ranges:,}", f"{t.idle_ms:.3f}", f"{t.one_ms:.2f}", f"{t.all_ms:.2f}") for t in ticks]
    print("\nowner: a tick in ms")
    print(table([("ranges", "nothing changed", "one reported", "all reported"), *rows]))
    if options.json:
        body = {
            "machine": machine(),
            "share": [asdict(one) for one in found],
            "ticks": [asdict(t) for t in ticks],
        }
        options.json.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
