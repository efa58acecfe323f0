"""The owner: scenarios as scripts; in Python the cases of granted ranges and of DDL that differs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.control.owner_script import OwnerScript
from tests.scripts import run_script, scripts

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.owner import Owner, Persist, SendDdl, SendResolved
from tidegate.model.span import Span

ALL = Span(b"", b"")
LOW, HIGH = Span(b"", b"m"), Span(b"m", b"")
TOKEN = (1, 1)


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "owner"))
def test_the_owner_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, OwnerScript().run, rewrite=rewrite)


def test_the_example_in_contributing_is_what_the_owner_does(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"^```\n(# Promise: .*?)^```", page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "example.txt"
    path.write_text(example)
    run_script(path, OwnerScript().run, rewrite=False)


def granted(*spans: Span) -> list[GrantedRange]:
    return [GrantedRange(span, TOKEN) for span in spans]


def progress(ts: int, *spans: Span) -> list[RangeProgress]:
    return [RangeProgress(span, TOKEN, ts, 0) for span in spans]


def running(barrier: Barrier, *spans: Span) -> Owner:
    """An owner whose one processor has these ranges, and delivers them."""
    owner = Owner(100, barrier, ALL)
    owner.grant("a", 1, granted(*spans))
    owner.sink_open(0)
    owner.running("a", 1, granted(*spans))
    return owner


@pytest.mark.parametrize(
    ("spans", "hole"),
    [
        ([], ALL),
        ([LOW], HIGH),
        ([HIGH], ALL),
        ([LOW, HIGH], None),
        ([Span(b"", b"d"), Span(b"e", b"")], Span(b"d", b"")),
        ([Span(b"", b"k"), Span(b"c", b"")], None),
    ],
)
def test_while_a_part_of_the_keys_is_nobodys_the_checkpoint_stays(
    spans: list[Span], hole: Span | None
) -> None:
    owner = running(Barrier(500), *spans)
    owner.report("a", 1, progress(400, *spans))
    assert owner.ranges.hole == hole
    assert bool(owner.tick(0.0)) is (hole is None)
    assert owner.checkpoint == (400 if hole is None else 100)


def batch(ts: int, *removed: str) -> DdlBatch:
    return DdlBatch(ts, (), removed=frozenset(removed))


def said(*batches: DdlBatch, upto: int) -> KnownDdl:
    log = DdlLog(100)
    log.learn(batches, upto)
    return log.said


@pytest.mark.parametrize(
    ("theirs", "agrees"),
    [
        ((batch(150, "x"), batch(160)), True),
        ((batch(150, "x"),), False),
        ((batch(150, "y"), batch(160)), False),
        ((batch(151, "x"), batch(160)), False),
        ((), False),
    ],
)
def test_the_checkpoint_waits_while_a_capture_knows_other_ddl(
    theirs: tuple[DdlBatch, ...], agrees: bool
) -> None:
    owner = running(Barrier(100), ALL)
    owner.learn([batch(150, "x"), batch(160)], 200)
    owner.receive_ddl("a", said(*theirs, upto=170))
    owner.report("a", 1, progress(170, ALL))
    effects = owner.tick(0.0)
    assert (owner.checkpoint, bool(effects), owner.agreement.disagreement is None) == (
        149 if agrees else 100,
        agrees,
        agrees,
    )
    assert agrees or owner.due_in(9.0) == float("inf"), "nothing is due while it lasts"
    owner.receive_ddl("a", said(batch(150, "x"), batch(160), upto=180))
    assert owner.agreement.disagreement is None
    owner.tick(1.0)
    assert owner.checkpoint == 149


def test_a_checkpoint_may_wait_for_others_unless_a_restart_needs_it() -> None:
    owner = running(Barrier(499), ALL)

    def stored_at(now: float, checkpoint: int) -> Persist:
        owner.report("a", 1, progress(checkpoint, ALL))
        effects = owner.tick(now)
        for one in effects:
            if isinstance(one, SendResolved):
                owner.resolved_done(one.ts)
        (found,) = (one for one in effects if isinstance(one, Persist))
        owner.persisted(found.ts)
        return found

    assert stored_at(10.0, 200) == Persist(200, may_wait=True)
    owner.synced(300)
    assert stored_at(20.0, 300) == Persist(300), "rows up to there would be read again"
    assert stored_at(30.0, 400) == Persist(400, may_wait=True)
    owner.learn([batch(500)], 1000)
    owner.report("a", 1, progress(500, ALL))
    assert any(isinstance(one, SendDdl) for one in owner.tick(40.0))
    owner.persisted(499)
    owner.ddl_done(500)
    assert stored_at(40.0, 600) == Persist(600), "the DDL would be looked for again"
