"""Writes the tables of docs/internals/*.md, between markers, from the machines themselves.

python -m tools.machines            writes the tables into the pages; a test fails if they are out of date
python -m tools.machines --check    names the pages that are out of date; exit code 1 if there are any

If a machine has a transition table in its code, its page has exactly that table. If a transition table would make a
machine's code worse, the machine is run over all pairs of state and event, and its page has a `ran` table with the
results. Everything outside of the markers is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.control import sharing, takeover
from tools.reference import ROOT, table

from tidegate.control import changefeed, gc, owner, watchdog
from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.grants import (
    Grant,
    GrantedRange,
    raised,
    settled,
    shared_out,
)
from tidegate.control.messages import Dispatch, Header, RangeProgress, Wish
from tidegate.control.metadata import FeedId
from tidegate.control.outlet import OUTLET
from tidegate.control.owner import Owner
from tidegate.control.processor import Processor
from tidegate.control.received import RECEIVED, Sender, Word
from tidegate.control.synced import synced
from tidegate.control.transitions import Transitions
from tidegate.control.watchdog import Watchdog
from tidegate.etcd import session
from tidegate.etcd.session import LocalLease
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.owner import delivered_spans, peers, processor_link
from tidegate.server.owner import sharing as division
from tidegate.server.owner.peers import Peer
from tidegate.server.supervision import jobs

FOLDER: Final = ROOT / "docs" / "internals"
BLOCK: Final = re.compile(
    r"(<!-- table: ([\w-]+), by tools/machines\.py -->\n)(?:(?!<!-- ).)*?(<!-- end -->)", re.DOTALL
)
"""A marked place. It contains no other marker, so that a page with a broken marker loses no text."""
NONE: Final = "-"
ALL: Final = Span(b"", b"")
LOW, HIGH = Span(b"", b"m"), Span(b"m", b"")


# Tables in the code.


def transitions(found: Transitions[Any, Any]) -> str:
    """The rows of a transition table."""
    rows = (
        [", ".join(row.states), row.on, row.to, row.guard or NONE, row.effect or NONE] for row in found.rows
    )
    return table(["from", "on", "to", "if", "effect"], rows)


def matrix(found: Transitions[Any, Any], states: type[StrEnum], events: type[StrEnum]) -> str:
    """The same as a matrix: the next state for each state and event."""
    rows = ([state, *(found.after(state, on) or NONE for on in events)] for state in states)
    return table(["", *events], rows)


def received() -> str:
    """How a processor handles each message of an owner."""
    rows = ([word, *(RECEIVED.get((sender, word), "cannot be") for sender in Sender)] for word in Word)
    return table(["", *(f"from {sender}" for sender in Sender)], rows)


def constants(module: ModuleType, names: Sequence[str]) -> str:
    """Named numbers of a module, with the docstrings below them."""
    body = ast.parse(inspect.getsource(module)).body
    notes = {
        ast.unparse(node.target): " ".join(str(note.value.value).split())
        for node, note in pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
    }
    rows = ([f"`{name}`", f"{getattr(module, name):,.10g}", notes[name]] for name in names)
    return table([f"`{module.__name__.removeprefix('tidegate.')}`", "value", "meaning"], rows)


# Tables from runs of a machine.


def _header(epoch: int = 1, sequence: int = 1, owner_rev: int = 7) -> Header:
    return Header(1, "default/orders", "i", owner_rev, "a", epoch, sequence)


def _dispatch(wish: Wish, incarnation: int, sequence: int) -> Dispatch:
    ranges = () if wish is Wish.REST else (GrantedRange(ALL, (7, incarnation)),)
    return Dispatch(_header(sequence=sequence), wish, incarnation, ranges, 100, 50, False)


def _opened(machine: Processor) -> None:
    machine.open(50, (), (), 100)


FAILED: Final = Failed("It failed.", "", "", "", retry=True)
TO_STATES: Final[Mapping[str, Sequence[Callable[[Processor], Any]]]] = {
    "no owner yet": (),
    "prepares": (lambda p: p.receive(_dispatch(Wish.PREPARE, 0, 1)), _opened),
    "is to run 1": (lambda p: p.receive(_dispatch(Wish.RUN, 1, 1)), _opened),
    "runs 1": (lambda p: p.receive(_dispatch(Wish.RUN, 1, 1)), _opened, lambda p: p.started(1, {})),
    "is to run 2, runs 1": (
        lambda p: p.receive(_dispatch(Wish.RUN, 1, 1)),
        _opened,
        lambda p: p.started(1, {}),
        lambda p: p.receive(_dispatch(Wish.RUN, 2, 2)),
    ),
    "rests": (lambda p: p.receive(_dispatch(Wish.REST, 0, 1)), lambda p: p.close()),
}
PROCESSOR_EVENTS: Final[Mapping[str, Callable[[Processor], Any]]] = {
    "Dispatch: prepare": lambda p: p.receive(_dispatch(Wish.PREPARE, 0, 9)),
    "Dispatch: run 2": lambda p: p.receive(_dispatch(Wish.RUN, 2, 9)),
    "Dispatch: rest": lambda p: p.receive(_dispatch(Wish.REST, 0, 9)),
    "its pipeline of 1 has started": lambda p: p.started(1, {}),
    "its pipeline has failed": lambda p: p.failed(FAILED) if p.dispatch is not None else None,
    "it has given up": lambda p: p.given_up() if p.dispatch is not None else None,
    "it is closed": lambda p: p.close(),
}


def _processor_state(machine: Processor) -> str:
    dispatch = machine.dispatch
    if dispatch is None:
        return "no owner yet"
    wish = {Wish.RUN: f"is to run {dispatch.incarnation}", Wish.PREPARE: "prepares"}.get(
        dispatch.wish, "rests"
    )
    runs = machine._running
    if runs == dispatch.incarnation and dispatch.wish is Wish.RUN:
        wish = f"runs {runs}"
    elif runs:
        wish += f", runs {runs}"
    return wish + ("" if machine.spans.is_open or dispatch.wish is Wish.REST else ", closed")


def processor_life() -> str:
    """The state of a processor after each event, from each of its states."""
    rows = []
    for name, steps in TO_STATES.items():
        cells = [name]
        for act in PROCESSOR_EVENTS.values():
            machine = Processor(_header())
            for step in steps:
                step(machine)
            assert _processor_state(machine) == name, (_processor_state(machine), name)
            act(machine)
            after = _processor_state(machine)
            cells.append(NONE if after == name else after)
        rows.append(cells)
    return table(["", *PROCESSOR_EVENTS], rows)


def bounds() -> str:
    """The bounds of spans and of the checkpoint, by the reason that holds them."""
    ddl = DdlBatch(60, ())
    situations: dict[str, Callable[[], Barrier]] = {
        "nothing but what is known": lambda: Barrier(100),
        "a DDL at 60 waits": lambda: Barrier(100, waiting=_queue(ddl)),
        "the target ts is 70": lambda: Barrier(100, target_ts=70),
        "the initial load at 50 is not durable": lambda: Barrier(100, held_at=50),
        "the number of partitions changes at 80": lambda: Barrier(100, switch_ts=80),
        "a DDL at 60, and the target ts is 55": lambda: Barrier(100, target_ts=55, waiting=_queue(ddl)),
        "a DDL at 60, and the load at 50": lambda: Barrier(100, held_at=50, waiting=_queue(ddl)),
    }
    rows = []
    for words, make in situations.items():
        barrier = make()
        rows.append([words, str(barrier.bound), str(barrier.cap), "yes" if barrier.switch() else "no"])
    head = [
        "DDL is known up to 100, and",
        "spans may go to",
        "the checkpoint to",
        "a change of partitions may be set",
    ]
    return table(head, rows)


def _queue(batch: DdlBatch) -> Any:
    barrier = Barrier(0)
    barrier.waiting.append(batch)
    return barrier.waiting


def _owner(
    durable: int,
    *,
    span: Span = ALL,
    ddl_at: int = 0,
    opened: bool = True,
    target_ts: int = 0,
    held_at: int = 0,
) -> Owner:
    """An owner of all keys that has granted one range, which runs and is durable up to a ts."""
    machine = Owner(10, Barrier(10, target_ts, held_at), ALL, resolved_interval_s=0.0)
    machine.learn([DdlBatch(ddl_at, ())] if ddl_at else [], 100)
    granted = GrantedRange(span, (7, 1))
    machine.grant("a", 1, [granted])
    if opened:
        machine.sink_open(0)
    machine.running("a", 1, [granted])
    machine.report("a", 1, [RangeProgress(span, (7, 1), durable, durable)])
    return machine


def _asked_to_repartition() -> Owner:
    machine = _owner(100)
    machine.ask_repartition(6)
    return machine


def _at_its_target() -> Owner:
    machine = _owner(60, target_ts=60)
    machine.tick(0.0)
    machine.resolved_done(60)
    machine.persisted(60)
    return machine


def _disagreeing() -> Owner:
    machine = _owner(10)
    machine.receive_ddl("a", KnownDdl(10, 100, 12345))
    machine.report("a", 1, [RangeProgress(ALL, (7, 1), 60, 60)])
    return machine


OWNERS: Final[Mapping[str, Callable[[], Owner]]] = {
    "all is durable up to 60": lambda: _owner(60),
    "all is durable up to 60, a DDL at 60 waits": lambda: _owner(60, ddl_at=60),
    "all is durable up to 59, a DDL at 60 waits": lambda: _owner(59, ddl_at=60),
    "all is durable up to 60, the target ts is 60": lambda: _owner(60, target_ts=60),
    "the same, and both effects are durable": _at_its_target,
    "all is durable up to 100, another number of partitions is wanted": _asked_to_repartition,
    "the sink is not open": lambda: _owner(60, opened=False),
    "an initial load at 10 is not durable": lambda: _owner(60, held_at=10),
    "all that is granted is durable up to 60, and HIGH is granted to nobody": lambda: _owner(60, span=LOW),
    "the capture knows other DDL than the owner": _disagreeing,
}


def owner_tick() -> str:
    """The effects of an owner's tick, by what it knows."""
    rows = []
    for words, make in OWNERS.items():
        machine = make()
        effects = machine.tick(0.0)
        rows.append([words, str(machine.checkpoint), ", ".join(map(_effect, effects)) or NONE])
    return table(["the stored checkpoint is 10, and", "checkpoint", "effects of the tick"], rows)


def _effect(effect: owner.Effect) -> str:
    match effect:
        case owner.SendDdl(batch):
            return f"SendDdl {batch.finished_ts}"
        case owner.SendResolved(ts):
            return f"SendResolved {ts}"
        case owner.SendRepartition(ts, partitions):
            return f"SendRepartition {ts} to {partitions}"
        case owner.Persist(ts):
            return f"Persist {ts}"
    return type(effect).__name__


def _stored() -> dict[str, Grant]:
    """Capture a has LOW and b has HIGH, each in its first incarnation."""
    ranges = {"a": LOW, "b": HIGH}
    return {name: Grant("i", (7, 1), 1, 2, (GrantedRange(span, (7, 1)),)) for name, span in ranges.items()}


def _interrupted() -> dict[str, Grant]:
    """The same, but a round in which they exchange ranges was stored and its givers were not fenced."""
    return _stored() | shared_out(_stored(), "i", (7, 2), {"a": [HIGH], "b": [LOW]}, {"a": 2, "b": 2})


def _taken_over() -> dict[str, Grant]:
    """After that, a later owner gives LOW to c and HIGH to b."""
    before = _interrupted()
    return before | shared_out(before, "i", (8, 1), {"c": [LOW], "b": [HIGH]}, {"c": 2, "b": 2})


ROUNDS: Final[Mapping[str, Callable[[], Mapping[str, Grant]]]] = {
    "at first: a has LOW, b has HIGH": _stored,
    "they exchange ranges": _interrupted,
    "the same, once the givers are fenced": lambda: {n: settled(g) for n, g in _interrupted().items()},
    "before they are: another owner gives LOW to c, HIGH to b": _taken_over,
    "the same, once they are fenced": lambda: {n: settled(g) for n, g in _taken_over().items()},
    "after the first line: b takes all alone": lambda: (
        _stored() | raised(_stored(), "b", "i", (7, 2), [ALL], 2)
    ),
}


def grants() -> str:
    """The stored grants after each change."""
    rows = []
    for words, make in ROUNDS.items():
        stored = make()
        rows.append([words, *(_grant(stored.get(name)) for name in "abc")])
    return table(["change", "grant of a", "grant of b", "grant of c"], rows)


def _grant(found: Grant | None) -> str:
    if found is None:
        return NONE
    names = {LOW: "LOW", HIGH: "HIGH", ALL: "all"}
    ranges = ", ".join(names[one.id] for one in found.ranges) or "no ranges"
    givers = f"; givers {', '.join(sorted(found.givers))}" if found.givers else ""
    fenced = "; fenced" if found.fenced else ""
    return f"incarnation {found.incarnation}, token {found.token}: {ranges}{givers}{fenced}"


def dog() -> str:
    """The answers of a watchdog, by its state and its input."""
    looks: dict[str, tuple[str, int, float]] = {
        "no work": ("", 0, 60.0),
        "work, and something was reported": ("rows", 1, 60.0),
        "work, no report, patience left": ("rows", 0, 600.0),
        "work, no report, patience over": ("rows", 0, 2.0),
    }
    begins: dict[str, Sequence[tuple[str, int, float]]] = {
        "idle": [("", 0, 60.0)],
        "silent": [("rows", 0, 60.0), ("rows", 0, 60.0)],
        "hung": [("rows", 0, 60.0), ("rows", 0, 2.0)],
    }
    rows = [[name, *(_watched([*steps, look]) for look in looks.values())] for name, steps in begins.items()]
    return table(["", *looks], rows)


def _watched(steps: Sequence[tuple[str, int, float]]) -> str:
    machine = Watchdog()
    machine.step(0.0, "", 0, 60.0)
    for at, (work, reports, patience_s) in enumerate(steps, 1):
        hung = machine.step(at * 10.0, work, reports, patience_s)
    if hung is not None:
        return "hung"
    return "silent" if machine._silent_s else "idle" if not work else "silent, from zero"


def _tick_in_vain(machine: gc.GcGuard) -> None:
    machine.tick({FeedId("default", "a"): 500}, 99.0)
    machine.failed()


def guard() -> str:
    """The requests of a GC guard to PD."""
    needs = {FeedId("default", "a"): 500}
    begins: dict[str, Callable[[gc.GcGuard], Any]] = {
        "the process has just started": lambda one: None,
        "a hold was taken 10 s ago": lambda one: one.tick(needs, 90.0),
        "a hold was taken 60 s ago": lambda one: one.tick(needs, 40.0),
        "the hold was given up": lambda one: one.tick({}, 0.0),
        "the last call failed": _tick_in_vain,
        "PD's least safepoint is 700, above what is needed": lambda one: one.answered(
            gc.Hold(499, gc.TTL_S), 700
        ),
    }
    asks: dict[str, Callable[[gc.GcGuard], gc.Hold | None]] = {
        "tick, a feed needs 500": lambda one: one.tick(needs, 100.0),
        "the same, at once": lambda one: one.tick(needs, 100.0, force=True),
        "tick, no feed needs anything": lambda one: one.tick({}, 100.0),
    }
    rows = []
    for words, begin in begins.items():
        cells = [words]
        for ask in asks.values():
            machine = gc.GcGuard()
            begin(machine)
            cells.append(_hold(ask(machine)))
        rows.append(cells)
    return table(["", *asks], rows)


def _hold(found: gc.Hold | None) -> str:
    if found is None:
        return NONE
    return f"hold {found.safe_point} for {found.ttl_s:,} s" if found.ttl_s else "give it up"


def lease() -> str:
    """When a capture relies on a lease with a TTL of 10 s."""
    events: dict[str, Sequence[tuple[float, int]]] = {
        "no answer has come": (),
        "the renewal sent at 0 s is answered": ((0.0, 10),),
        "and the one sent at 3 s": ((0.0, 10), (3.0, 10)),
        "the answers come in the other order": ((3.0, 10), (0.0, 10)),
        "the renewal sent at 3 s is answered: the lease is gone": ((0.0, 10), (3.0, 0)),
        "and later another answer comes": ((3.0, 0), (4.0, 10)),
    }
    rows = []
    for words, answers in events.items():
        found = LocalLease()
        for sent, ttl_s in answers:
            found.renewed(sent, ttl_s)
        held = [f"{at:g} s" for at in (0, 7.9, 8, 10.9, 11) if found.holds(at)]
        never = "not yet" if not answers else "no longer"
        rows.append([words, f"before {found.until:g} s" if held else never])
    return table(["event", "it is relied on"], rows)


def standing() -> str:
    """How an owner classifies a processor, by the owner's last request."""
    rows = []
    for wish, given_up in product((None, *Wish), (False, True)):
        if wish is None and given_up:
            continue
        peer = Peer("a", asked=None if wish is None else _dispatch(wish, 1, 1))
        if given_up:
            peer.given_up.set()
        yes = {True: "yes", False: "no"}
        asked = "nothing" if wish is None else f"{wish}"
        rows.append([asked, yes[given_up], yes[peer.runs], yes[peer.rests]])
    return table(
        ["asked for last", "it has said that it runs nothing", "it is to deliver", "it holds nothing"], rows
    )


def shunned() -> str:
    """For how long a failing capture gets no ranges."""
    peer, rows = Peer("a"), []
    for failures in range(1, 9):
        peer.fails(100.0)
        waits = next(s for s in range(10_000) if peer.may_try(100.0 + s))
        rows.append([str(failures), f"{waits} s"])
    return table(["failures in a row", "left out for"], rows)


def verdicts() -> str:
    """The answers of GET synced, in the order of the rules."""
    cases = {
        "rows came within the last 300 s": (1000, 1000, 900),
        "no rows came; the checkpoint is 5 s behind": (995, 995, 100),
        "no rows came; the checkpoint is 60 s behind, and so is the resolved ts": (940, 941, 100),
        "no rows came; the checkpoint is 60 s behind, the resolved ts is not": (940, 999, 100),
    }
    rows = []
    for words, (checkpoint, resolved, last) in cases.items():
        ts = [compose(at * 1000) for at in (checkpoint, resolved, last, 1000)]
        verdict, why = synced(ts[0], ts[1], ts[2], ts[3], 300, 15)
        rows.append([words, "yes" if verdict else "no", why])
    return table(["state", "synced", "answer"], rows)


# The explorer.


def guards() -> str:
    """Every guard of the explorer, and the violation without it."""
    traces = sharing.sections(sharing.TRACES.read_text())
    rows = []
    for name, words in sharing.GUARDS.items():
        if name in sharing.CASES:
            lines = traces[sharing.heading(name)]
            behind = ", ".join(f"`{one}`" for one in sharing.CASES[name].behind) or NONE
            steps = sum(not line.strip().startswith(("#", "-->")) for line in lines[1:])
            wrong, count = lines[-1].strip().removeprefix("--> "), str(steps)
        else:
            behind, wrong, count = NONE, f"nothing: {sharing.HARMLESS[name][1]}", NONE
        rows.append(
            [f"`{name}`", words, "machine" if name in sharing.PATCHES else "model", behind, wrong, count]
        )
    return table(["guard", "it keeps", "kept by", "off together with", "found without it", "steps"], rows)


def rules() -> str:
    """The same for takeovers by one capture at a time."""
    text = inspect.getsource(takeover.Rules)
    traces = takeover.traces(takeover.TRACES.read_text())
    rows = []
    for name, words in re.findall(r"    (\w+): bool = True\n    \"\"\"(.*?)\"\"\"", text, re.DOTALL):
        steps = traces[name]
        rows.append(
            [f"`{name}`", " ".join(words.split()), steps[-1].removeprefix("--> "), str(len(steps) - 1)]
        )
    return table(["rule", "it says", "found without it", "steps"], rows)


FAULTS: Final = {
    "sessions": "an owner loses its session",
    "resigns": "an owner resigns and keeps its session",
    "shares": "the ranges are divided again",
    "restarts": "a capture starts again",
    "drops": "a message or an answer is lost",
    "doubles": "a message comes twice",
    "repeats": "a Dispatch is repeated",
    "upgrades": "a capture starts again with another version",
    "cuts": "the network is cut, or a cut ends",
}


DDL_KNOWN: Final = {
    "known": "known",
    "late": "known late",
    "ahead": "captures read further at once",
    "never": "none",
}


def configurations() -> str:
    """The configurations that are explored with all guards on."""
    rows = []
    for name, found in sharing.CLEAN.items():
        faults = [f"{FAULTS[what]}: {count}" for what, count in found.budget._asdict().items() if count]
        ddl = (
            {
                "known": "known",
                "late": "known late",
                "ahead": "read further at once by captures",
                "never": "none",
            }[found.ddl]
            if found.target > 3
            else "none"
        )
        rows.append([name, str(len(found.captures)), ddl, ", ".join(faults)])
    return table(["configuration", "captures", "DDL", "how often, at most"], rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "changefeed": lambda: transitions(changefeed.TRANSITIONS),
    "changefeed-matrix": lambda: matrix(changefeed.TRANSITIONS, changefeed.State, changefeed.On),
    "outlet": lambda: transitions(OUTLET),
    "owner-tick": owner_tick,
    "bounds": bounds,
    "received": received,
    "processor-life": processor_life,
    "grants": grants,
    "lease": lease,
    "session-times": lambda: constants(session, ("RENEWALS", "MARGIN", "BEATS", "PAUSE_S")),
    "standing": standing,
    "shunned": shunned,
    "peer-times": lambda: constants(
        peers,
        ("SILENT_S", "ANNOUNCE_S", "JOIN_S", "SHUN_S", "FORGIVEN_S", "WARM_S", "WARM_MAX_S", "CUT_OFF_S"),
    ),
    "division-times": lambda: constants(division, ("CAPTURES_S", "BALANCE_S", "TOLERANCE", "UNEVEN")),
    "division-loads": lambda: constants(delivered_spans, ("IDLE_LOAD", "WORTH")),
    "round-times": lambda: constants(processor_link, ("MEET_S", "AGAIN_S", "GIVE_UP_TRIES")),
    "incarnation-times": lambda: constants(jobs, ("JOBS_S",)),
    "watchdog": dog,
    "watchdog-times": lambda: constants(watchdog, ("STEP_MAX_S",)),
    "gc": guard,
    "synced": verdicts,
    "guards": guards,
    "rules": rules,
    "configurations": configurations,
}


def pages() -> list[Path]:
    """The pages with tables."""
    return [page for page in sorted(FOLDER.glob("*.md")) if BLOCK.search(page.read_text())]


def drawn(text: str) -> str:
    """A page with its tables as they should be."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def on_pages() -> list[str]:
    """The names of all tables that are on a page."""
    return [name for page in pages() for _, name, _ in BLOCK.findall(page.read_text())]


def out_of_date() -> list[Path]:
    """The pages whose tables differ from the code."""
    return [page for page in pages() if page.read_text() != drawn(page.read_text())]


def main(arguments: Iterable[str]) -> int:
    """Write the tables, or compare them."""
    stale = out_of_date()
    if "--check" in arguments:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is out of date: run make docs")
        return 1 if stale else 0
    for page in stale:
        page.write_text(drawn(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
