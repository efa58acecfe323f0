"""Records of machines: the events of every script, replayed through fresh machines, give the same effects."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.control import owner_script, processor_script
from tests.scripts import run_script

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.owner import Owner
from tidegate.control.processor import Processor
from tidegate.control.trace import OWNER, PROCESSOR, MachineKind, Record, Tap, decode, encode, replay
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span

TESTDATA = Path(__file__).parent / "testdata"
ALL = Span(b"", b"")
READS = {
    OWNER: {"due_in"},
    PROCESSOR: {"holds", "checkpoints_of"},
}


class Segments:
    """All that a machine's tap writes; with `each`, every event begins a segment of its own."""

    def __init__(self, kind: MachineKind, machine: Owner | Processor, *, each: bool = False) -> None:
        self._each = each
        self._tap = Tap(kind, "default/one", machine, self._write)
        self.lines = [[orjson.dumps(self._tap.head()) + b"\n"]]

    def _write(self, record: Record) -> None:
        self.lines[-1].append(orjson.dumps(record) + b"\n")
        if self._each:
            self.lines.append([orjson.dumps(self._tap.head()) + b"\n"])


def of_scripts(kind: MachineKind, patch: pytest.MonkeyPatch, *, each: bool = False) -> list[Segments]:
    """Return the traces of every machine of the kind's scripts."""
    made: list[Segments] = []

    def tapped(*given: Any, **named: Any) -> Owner | Processor:
        machine = kind.type(*given, **named)
        made.append(Segments(kind, machine, each=each))
        return machine

    module: Any = owner_script if kind is OWNER else processor_script
    runner: Callable[[], Any] = module.OwnerScript if kind is OWNER else module.ProcessorScript
    patch.setattr(module, kind.type.__name__, tapped)
    for path in sorted((TESTDATA / kind.name).glob("*.txt")):
        run_script(path, runner().run, rewrite=False)
    assert made
    return made


@pytest.mark.parametrize("kind", [OWNER, PROCESSOR], ids=lambda kind: kind.name)
def test_the_events_of_every_script_replay_with_the_same_effects(
    kind: MachineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for segments in of_scripts(kind, monkeypatch):
        (lines,) = segments.lines
        done = replay(lines)
        assert (done.difference, done.events, done.machine) == (None, len(lines) - 1, kind.name)
        seen |= {orjson.loads(line)["event"] for line in lines[1:]}
    assert set(kind.events) - seen <= {"over", "raise_to", "sync_soon"}, "the scripts have nearly all"


@pytest.mark.parametrize("kind", [OWNER, PROCESSOR], ids=lambda kind: kind.name)
def test_a_segment_may_begin_at_any_event(kind: MachineKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds all that the machine knows then."""
    for segments in of_scripts(kind, monkeypatch, each=True):
        for lines in segments.lines[:-1]:
            assert replay(lines).difference is None


@pytest.mark.parametrize("kind", [OWNER, PROCESSOR], ids=lambda kind: kind.name)
def test_every_method_of_a_machine_is_an_event_or_only_reads(kind: MachineKind) -> None:
    """A new one must be put into one of the two lists, or its calls would be missing from records."""
    methods = {name for name, one in vars(kind.type).items() if callable(one) and not name.startswith("_")}
    assert methods == set(kind.events) | READS[kind]


@pytest.fixture
def lines() -> list[bytes]:
    """An owner that sends a DDL."""
    owner = Owner(100, Barrier(100), ALL)
    segments = Segments(OWNER, owner)
    ddl = DdlEvent(7, 0, 1, 120, 3, "create table t", "s", "t", "s", "t", 9, None, {"id": 8}, (8,), ())
    owner.learn(iter([DdlBatch(120, (ddl,), removed=frozenset({"a", "b"}))]), known=130)
    owner.quiet_interval_s = 3.0
    owner.tick(1.0)
    owner.sink_open(100)
    owner.tick(2.5)
    return segments.lines[0]


def test_what_is_set_from_outside_is_recorded_with_the_event_after_it(lines: list[bytes]) -> None:
    assert [orjson.loads(line)["set"] for line in lines[1:]] == [{}, {"quiet_interval_s": 3.0}, {}, {}]


def test_no_table_definition_is_in_a_record(lines: list[bytes]) -> None:
    event = orjson.loads(lines[1])["args"][0][0]["DdlBatch"]["events"]["tuple"][0]["DdlEvent"]
    assert (event["query"], event["before"], event["after"]) == ("create table t", None, None)


def changed(lines: list[bytes], at: int, **members: Any) -> list[bytes]:
    """The lines with another value of these members in one of them."""
    return [*lines[:at], orjson.dumps(orjson.loads(lines[at]) | members) + b"\n", *lines[at + 1 :]]


def test_a_record_that_was_tampered_with_is_found_and_the_place_is_named(lines: list[bytes]) -> None:
    found = replay(changed(lines, 4, gave=[{"Finish": {}}])).difference
    assert found is not None
    assert (found.line, found.event, found.what) == (5, "tick", "effects")
    assert (found.recorded, found.replayed) == ('[{"Finish":{}}]', "[]")
    found = replay(changed(lines, 1, named={"known": 119})).difference
    assert found is not None
    assert (found.line, found.what, found.replayed) == (2, "exception", '"AssertionError"')


def test_a_line_that_was_taken_out_is_found(lines: list[bytes]) -> None:
    found = replay(lines[:2] + lines[3:]).difference
    assert found is not None
    assert (found.line, found.what, found.recorded, found.replayed) == (3, "number", "3", "2")


def test_an_exception_of_the_machine_is_part_of_the_record() -> None:
    owner = Owner(100, Barrier(100), ALL)
    segments = Segments(OWNER, owner)
    with pytest.raises(AssertionError):
        owner.resolved_done(5) if owner.tick(0.0) else owner.repartition_done(5)
    (lines,) = segments.lines
    assert orjson.loads(lines[-1])["raised"] == "AssertionError"
    assert replay(lines).difference is None
    found = replay(changed(lines, 2, raised=None, gave=None)).difference
    assert found is not None
    assert (found.what, found.recorded, found.replayed) == ("exception", "null", '"AssertionError"')


def test_the_line_that_a_kill_cut_off_does_not_count(lines: list[bytes]) -> None:
    done = replay([*lines[:-1], lines[-1][:-9]])
    assert (done.events, done.difference, done.torn) == (len(lines) - 2, None, True)


def test_what_is_no_record_is_refused(lines: list[bytes]) -> None:
    for wrong in ([], [b"{}\n"], changed(lines, 0, trace=1), changed(lines, 0, machine="barrier")):
        with pytest.raises(InvalidInput):
            replay(wrong)
    with pytest.raises(InvalidInput) as unreadable:
        replay([lines[0], b"no json\n"])
    assert unreadable.value.where == "line 2"
    for members in ({"event": "__init__"}, {"set": {"checkpoint": 1}}, {"args": [{"Popen": {}}]}):
        with pytest.raises(InvalidInput):
            replay(changed(lines, 1, **members))


def test_values_come_back_as_they_were() -> None:
    error = decode(encode(Fatal("it hangs", where="there")))
    assert (type(error), error.what, error.where) == (Fatal, "it hangs", "there")
    for one in (float("-inf"), b"\x00k", (1, "a"), {ALL: [1.5]}, {"b", "a"}, frozenset({3}), None):
        assert decode(encode(one)) == one
    with pytest.raises(TypeError, match="object has no form"):
        encode(object())
    unknown = StrEnum("Unknown", ["ONE"])
    with pytest.raises(TypeError, match="Unknown has no form"):  # `decode` would not find it in its modules
        encode(unknown.ONE)
    with pytest.raises(ValueError, match="not known"):
        decode({"Popen": {}})
