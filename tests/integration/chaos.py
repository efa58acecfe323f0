"""A bank on a small cluster with a capture, where everything that may happen to regions and stores does.

`run(seed)` drives it for some seconds and compares: what the event store showed at each resolved ts it ever
published is exactly the upstream's commit history up to there, in order, each change once. Two threads make
trouble, each from the seed: *regions* (splits, merges, leaders, peers) without pause, *faults* one after the
other for some tenths of a second each. The seed decides what they do, not when. Meanwhile upstream
removes every version that the capture does not need any more, and nothing may register below that.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.integration.chaos_writers import Contrary, SelfTimed
from tests.integration.garbage import POLL_S, Garbage, registrations_checked
from tidegate.errors import InvalidInput, TidegateError
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.order import Entry, entries_of, order_key
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.span import Span, span_id
from tidegate.proto import metapb_pb2
from tidegate.puller.puller import Puller
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv import keys, mvcc
from tidegate.tikv.engine import Engine
from tidegate.tikv.faults import CAPTURE_ERRORS, KV_ERRORS
from tidegate.tikv.raft.region import Region
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

SPANS: Final = (Span(b"m", b"n"), Span(b"t", b"u"), Span(b"t\x80\x00\x00\x00\x00\x00\x00\x78", b"t\xff"))
"""Everything, and once more a part of it."""
FORGOTTEN: Final = Span(b"t\x80\x00\x00\x00\x00\x00\x00\x70", b"t\x80\x00\x00\x00\x00\x00\x00\x78")
"""Asked for from the run's start again and again, without anything being held for it."""
STORES: Final = 4
NOBODY: Final = "127.0.0.1:1"
PD_MEMBERS: Final = 3
REGIONS_MAX: Final = 40
TIFLASH: Final = 99
"""The number of a store that has a learner of every region and answers nobody."""
LOOK_S: Final = 0.002
"""How often the event store is read: a mark that comes before its rows must be seen before they come."""
SETTLE_S: Final = 240.0
"""For the capture to reach the present when all is calm again; locks of the dead take some seconds."""

EVENTFUL_S: Final = 120.0
"""For a run to come to what is counted, on the slowest machine."""


@dataclass
class Outcome:
    """The result of a run."""

    changes: int = 0
    marks: int = 0
    moves: int = 0
    refused: int = 0
    collected: bool = False
    deeds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        deeds = ", ".join(f"{name} {count}" for name, count in sorted(self.deeds.items()))
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        collected = f"safepoint moved {self.moves} times, {self.refused} refused"
        return f"{self.changes} changes at {self.marks} resolved ts; {collected}; {deeds}; survived: {errors}"


class Trouble:
    """Makes it."""

    def __init__(self, upstream: EmbeddedUpstream, pd: PdClient, seed: int, stop: threading.Event) -> None:
        self.upstream, self.pd, self.stop = upstream, pd, stop
        self.deeds: Counter[str] = Counter()
        self.unexpected: list[BaseException] = []
        self._stale = upstream.pd_regions
        self._threads = [
            threading.Thread(target=self._loop, args=(Random(2 * seed), self._change_regions), daemon=True),
            threading.Thread(target=self._loop, args=(Random(2 * seed + 1), self._make_fault), daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for both; then everything is well again, but for the regions."""
        for thread in self._threads:
            thread.join(60)
        self.upstream.faults.clear()
        self.upstream.tso.thaw()
        self._stale.release()
        for store in self.upstream.stores.all():
            self.upstream.start_store(store.id)

    def _loop(self, random: Random, deed: Callable[[Random], None]) -> None:
        while not self.stop.is_set():
            try:
                deed(random)
            except InvalidInput:
                continue  # the regions are others than when the deed was chosen
            except BaseException as error:
                self.unexpected.append(error)
                return

    # --- regions ---

    def _change_regions(self, random: Random) -> None:
        self.stop.wait(random.uniform(0.0, 0.04))
        operators, regions = self.upstream.operators, self.upstream.regions.all
        region: Region = random.choice(regions)
        kind = random.choice(("split", "split", "merge", "transfer", "transfer", "move", "give up a merge"))
        if kind == "split" and len(regions) >= REGIONS_MAX:
            kind = "merge"
        if kind == "split":
            where = self._keys(random, region)
            operators.split(region.id, where)
        elif kind == "merge":
            wait = random.choice((0.0, 0.0, 0.05))
            operators.merge(
                region.id, self.upstream.neighbour(region.id), lambda: self.stop.wait(wait) and None
            )
        elif kind == "transfer":
            operators.transfer(region.id, random.choice(region.stores))
        elif kind == "move":
            spare = [store.id for store in self.upstream.stores.all() if region.peer_on(store.id) is None]
            operators.move(region.id, random.choice(region.stores), random.choice(spare or [1]))
        else:
            operators.prepare_merge(region.id, self.upstream.neighbour(region.id))
            self.stop.wait(random.uniform(0, 0.03))
            operators.rollback_merge(region.id)
        self.deeds[kind] += 1

    def _keys(self, random: Random, region: Region) -> list[bytes]:
        if random.random() < 0.5:
            return [self.upstream.split_key(region.id)]
        number = (random.randint(100, 164) + (1 << 63)).to_bytes(8, "big")
        row = b"_r" + (random.randint(0, 300) + (1 << 63)).to_bytes(8, "big")
        cut = encode_bytes(b"t" + number + random.choice((b"", row)))
        return [cut, *([self.upstream.split_key(region.id)] if random.random() < 0.3 else [])]

    # --- faults ---

    def _make_fault(self, random: Random) -> None:
        upstream, faults = self.upstream, self.upstream.faults
        kind = random.choice(
            (
                "store restart",
                "cut streams",
                "congest",
                "frozen tso",
                "frozen resolved ts",
                "slow apply",
                "slow scan",
                "kv errors",
                "capture errors",
                "stale pd",
                "pd leader",
                "older pd",
                "no leader",
                "removed store",
                "calm",
            )
        )
        last = random.uniform(0.02, 0.35)
        match kind:
            case "store restart":
                store = random.randint(1, STORES)
                upstream.stop_store(store)
                self.stop.wait(last)
                upstream.start_store(store)
            case "cut streams":
                upstream.cut_streams(random.randint(0, STORES))
                self.stop.wait(last / 4)
            case "congest":
                upstream.congest(random.choice((0, random.choice(upstream.regions.all).id)))
                self.stop.wait(last / 4)
            case "frozen tso":
                upstream.tso.freeze()
                self.stop.wait(last)
                upstream.tso.thaw()
            case "frozen resolved ts":
                faults.resolved_frozen = True
                self.stop.wait(last)
            case "slow apply":
                faults.apply_delay_s = random.uniform(0.001, 0.02)
                self.stop.wait(last)
            case "slow scan":
                faults.scan_delay_s = random.uniform(0.001, 0.02)
                upstream.cut_streams()
                self.stop.wait(last)
            case "kv errors":
                faults.kv_errors = (random.choice(sorted(KV_ERRORS)), random.uniform(0.02, 0.3))
                self.stop.wait(last)
            case "capture errors":
                faults.capture_errors = (random.choice(CAPTURE_ERRORS), random.uniform(0.1, 0.6))
                upstream.cut_streams()
                self.stop.wait(last)
            case "pd leader":
                upstream.pd_members.transfer(random.randint(1, PD_MEMBERS))
                self.stop.wait(last)
            case "stale pd":
                self._stale.hold()
                self.stop.wait(last)
                self._stale.release()
            case "older pd":
                faults.unknown_calls = frozenset({"BatchScanRegions"})
                upstream.cut_streams()
                self.stop.wait(last)
            case "no leader":
                self._hide_leaders(random)
                upstream.cut_streams()
                self.stop.wait(last)
            case "removed store":
                self._remove(random.randint(1, STORES), last)
            case _:
                self.stop.wait(last)
        faults.clear()
        self.deeds[kind] += 1

    def _hide_leaders(self, random: Random) -> None:
        """PD does not know who leads some regions, and names a learner at TiFlash first."""
        faults, regions = self.upstream.faults, self.upstream.regions.all
        reported = metapb_pb2.Store(id=TIFLASH, address=NOBODY, version="v8.5.0")
        reported.labels.add(key="engine", value="tiflash")
        faults.stores, faults.first_learner = {TIFLASH: reported}, TIFLASH
        faults.leaderless = frozenset(each.id for each in random.sample(regions, 1 + len(regions) // 3))

    def _remove(self, store: int, last: float) -> None:
        """A store goes for good, as far as PD says, which still names it where it led; then it is back."""
        upstream = self.upstream
        self._stale.hold()
        upstream.stop_store(store)
        upstream.faults.stores = {
            store: metapb_pb2.Store(id=store, address=NOBODY, state=metapb_pb2.Tombstone)
        }
        self.stop.wait(last)
        self._stale.release()
        upstream.faults.clear()
        upstream.start_store(store)


class Witness:
    """Reads the event store as far as it is published, again and again, and keeps what it saw when."""

    def __init__(self, folder: Path, after: int) -> None:
        self._folder = folder
        self.seen: dict[Span, list[Entry]] = {span: [] for span in SPANS}
        self.upto: dict[Span, int] = dict.fromkeys(SPANS, after)
        self.marks = 0
        self.findings: list[str] = []

    def look(self) -> None:
        if not self._folder.exists():
            return
        frontier = store_view.read_frontier(self._folder)
        for span in SPANS:
            upto, after = frontier.get(span_id(span), 0), self.upto[span]
            if upto < after:
                if upto and self.seen[span]:
                    self.findings.append(f"{span_id(span)}: the frontier fell from {after} to {upto}")
                continue
            if upto == after:
                continue
            for block in reader.read(self._folder, span_id(span), after, upto):
                self.seen[span] += entries_of(block)
            self.upto[span] = upto
            self.marks += 1


def history(engine: Engine, span: Span, after: int) -> list[Entry]:
    """Every committed change of the span above a ts, from the store's own records, in order."""
    found = []
    values = MvccReader(engine)
    cursor = engine.cursor(mvcc.WRITE, upper=encode_bytes(span.end))
    cursor.seek(encode_bytes(span.start))
    key, newer = b"", None
    while cursor.valid():
        stored = cursor.key()
        user, commit_ts = stored[: -keys.TS_BYTES], keys.version_of(stored)
        write = mvcc.decode_write(cursor.value())
        if user != key:
            key, newer = user, None
        if write.is_data():
            value = values.value_of(user, write) or b""
            if newer is not None:
                found[newer] = found[newer]._replace(old_value=value)
                newer = None
            if commit_ts > after:
                op = OP_PUT if write.kind == mvcc.KIND_PUT else OP_DELETE
                found.append(Entry(commit_ts, write.start_ts, op, keys.decode(user), value, b""))
                newer = len(found) - 1
        cursor.next()
    return sorted(found, key=order_key)


class Past:
    """The commits up to the safepoint, noted before upstream may forget them; holds the rest."""

    def __init__(self, engine: Engine, folder: Path, puller: Puller, start: int) -> None:
        self._engine, self._folder, self._puller = engine, folder, puller
        self._start = self._upto = start
        self._known: dict[Span, list[Entry]] = {span: [] for span in SPANS}

    def step(self) -> int:
        """The safepoint moves to what the event store has published: the capture reads from there on."""
        frontier = store_view.read_frontier(self._folder) if self._folder.exists() else {}
        upto = min(frontier.get(span_id(span), 0) for span in SPANS)
        if upto > self._upto:
            for span in SPANS:
                fresh = history(self._engine, span, self._upto)
                self._known[span] += [entry for entry in fresh if entry.commit_ts <= upto]
            self._upto = upto
            self._puller.keep_above(upto)
            self._puller.watch(FORGOTTEN, self._start)
        return self._upto

    def of(self, span: Span) -> list[Entry]:
        """All that was committed since the start."""
        return self._known[span] + history(self._engine, span, self._upto)


def compare(span: Span, wanted: list[Entry], seen: list[Entry]) -> list[str]:
    """The first differences between history and what the event store showed."""
    if wanted == seen:
        return []
    missing = [entry for entry in wanted if entry not in set(seen)]
    surplus = [entry for entry in seen if entry not in set(wanted)]
    doubled = [entry for entry, count in Counter(seen).items() if count > 1]
    name = span_id(span)
    found = [f"{name}: {len(wanted)} changes wanted, {len(seen)} seen"]
    found += [f"{name}: lost {entry}" for entry in missing[:3]]
    found += [f"{name}: invented {entry}" for entry in surplus[:3]]
    found += [f"{name}: twice {entry}" for entry in doubled[:3]]
    return found if missing or surplus or doubled else [*found, f"{name}: out of order"]


def run(seed: int, folder: Path, seconds: float) -> Outcome:
    """One run; what it found wrong is in the outcome."""
    upstream = EmbeddedUpstream(folder / "upstream", regions=6, stores=STORES, pd_members=PD_MEMBERS)
    upstream._collector._poll_s = POLL_S
    outcome = Outcome()
    with upstream, PdClient(upstream.pd_addr) as pd, registrations_checked(upstream, outcome.findings):
        _run(upstream, pd, seed, folder, seconds, outcome)
    return outcome


def _run(
    upstream: EmbeddedUpstream, pd: PdClient, seed: int, folder: Path, seconds: float, outcome: Outcome
) -> None:
    stop = threading.Event()
    bank = BankWorkload(upstream.pd_addr, seed, accounts=120, threads=4, ddl_every_rows=400)
    bank.setup()
    start = pd.tso()
    store = EventStore(folder / "events")
    failures: list[TidegateError] = []
    refused: list[Span] = []
    puller = Puller(
        pd,
        store,
        seed=seed,
        on_failure=failures.append,
        on_refused=lambda span, start_ts, safe_point: refused.append(span),
    )
    for span in SPANS:
        puller.watch(span, start)
    witness = Witness(folder / "events", start)
    past = Past(upstream._engine, folder / "events", puller, start)
    trouble = Trouble(upstream, pd, seed, stop)
    trouble.start()
    self_timed = SelfTimed(pd, seed, stop)
    contrary = Contrary(pd, seed, stop)
    garbage = Garbage(upstream, past.step)

    def eventful() -> bool:
        """Whether the run has had what `test_chaos` counts, its share of it."""
        deeds = trouble.deeds + contrary.done
        return bank.stats.rows > 20 and witness.marks > 1 and deeds.total() >= 3 and len(refused) >= 2

    def end() -> None:
        """After `seconds`, on a slow machine later: the run has to be worth something."""
        latest = time.monotonic() + seconds + EVENTFUL_S
        stop.wait(seconds)
        while not eventful() and time.monotonic() < latest:
            stop.wait(LOOK_S)
        stop.set()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    seeing = threading.Thread(target=_watch, args=(witness, stop), daemon=True)
    seeing.start()
    try:
        bank.run(None, stop)
    finally:
        stop.set()
        for each in (trouble, self_timed, contrary, seeing, ending):
            each.join()
    _settle(pd, puller, witness, outcome)
    garbage.join()
    for line in puller.status():
        outcome.errors.update(line.errors)
    puller.close()
    store.close()
    bank.close()
    outcome.deeds, outcome.marks = trouble.deeds + contrary.done, witness.marks
    outcome.moves, outcome.refused = garbage.moves, len(refused)
    outcome.collected = garbage.collected > start
    unexpected = trouble.unexpected + garbage.unexpected
    outcome.findings += witness.findings + [repr(error) for error in unexpected]
    outcome.findings += contrary.findings
    outcome.findings += [error.render() for error in failures]
    outcome.findings += [f"{span_id(span)} was refused" for span in set(refused) - {FORGOTTEN}]
    for span in SPANS:
        wanted = [e for e in past.of(span) if e.commit_ts <= witness.upto[span]]
        outcome.findings += [
            f"abandoned, and committed: {e}" for e in wanted if e.start_ts in contrary.abandoned
        ]
        outcome.findings += compare(span, wanted, witness.seen[span])
        outcome.changes += len(wanted)


def _watch(witness: Witness, stop: threading.Event) -> None:
    while not stop.wait(LOOK_S):
        witness.look()


def _settle(pd: PdClient, puller: Any, witness: Witness, outcome: Outcome) -> None:
    """Until the capture has everything that was committed so far."""
    now, deadline = pd.tso(), time.monotonic() + SETTLE_S
    while min(witness.upto.values()) < now:
        if time.monotonic() > deadline or puller.failure is not None:
            lines = [f"{line.span}: {line.resolved}, {line.waiting_for}" for line in puller.status()]
            outcome.findings.append(f"the capture does not reach {now}: {lines}")
            return
        time.sleep(0.02)
        witness.look()
