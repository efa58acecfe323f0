"""Scripts of an owner: `testdata/owner/*.txt`. A command is a call of `Owner`, named as the call is.

Brackets mark optional parts.

    owner checkpoint=100 known=100 [target=0] [load=0] [wanted=..] [spans=x,y]
          [resolved-interval=0.1s] [quiet-interval=0s]
    grant a ..m [incarnation=1] [token=1.1]        a capture begins an incarnation with these ranges
    running a ..m [incarnation=1] [token=1.1]      and delivers them now
    report a ..m checkpoint=120 [resolved=0] [incarnation=1] [token=1.1]
    ddl ts=200 [alter ...] [adds=c] [drops=a] [known=200]
    ddl known=300                                  there is no other DDL up to there
    says a [ddl=150,160/x] upto=170 [after=100] [spans=x,y]
                                   what a capture knows of DDL; 160/x drops the span x. It has opened its
                                   spans at the owner's checkpoint, the same as the owner has without `spans`
    says a nothing                                 it has nothing open, and knows of no DDL
    sink-open [resolved=0] [ddl=0]; sink-lost      with what its journal holds
    tick now=1s; due now=1s; synced 350
    ddl-done 200; resolved-done 200; repartition-done 200; load-done; persisted 199; persist-failed
    ask-repartition 5
    state                                          all that an operator sees
"""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Final

from tests.control.words import (
    DDL_OPTIONS,
    check,
    ddl,
    granted,
    keys,
    known,
    listed,
    names,
    seconds,
    shown,
    task,
)
from tests.scripts import Command

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.owner import Effect, Owner, Persist, SendDdl, SendRepartition, SendResolved


class OwnerScript:
    """One owner, and what is done to it."""

    def __init__(self) -> None:
        self._owner: Owner | None = None
        self._start = 0
        self._spans: list[str] = []

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        check(command, OPTIONS.get(command.name, "").split())
        if command.name == "owner":
            return self._begin(command)
        act = ACTS.get(command.name)
        if act is None:
            raise ValueError(f"{command.where}: an owner does not know '{command.name}'")
        return act(self, command)

    @property
    def owner(self) -> Owner:
        """The one of the last `owner`."""
        assert self._owner is not None, "a scenario begins with 'owner'"
        return self._owner

    def _begin(self, command: Command) -> str:
        self._start = command.number("checkpoint")
        barrier = Barrier(command.number("known"), command.number("target", 0), command.number("load", 0))
        self._owner = Owner(
            self._start,
            barrier,
            keys(command.options.get("wanted", "..")),
            resolved_interval_s=seconds(command, "resolved-interval", 0.1),
            quiet_interval_s=seconds(command, "quiet-interval", 0.0),
            spans=map(task, names(command, "spans")),
        )
        self._spans = names(command, "spans")
        return ""

    def _grant(self, command: Command) -> str:
        capture, *ranges = command.words
        self.owner.grant(capture, *self._incarnation(command, ranges))
        return ""

    def _running(self, command: Command) -> str:
        capture, *ranges = command.words
        self.owner.running(capture, *self._incarnation(command, ranges))
        return ""

    def _incarnation(self, command: Command, ranges: list[str]) -> tuple[int, list[GrantedRange]]:
        return command.number("incarnation", 1), granted(ranges, command.options.get("token", "1.1"))

    def _report(self, command: Command) -> str:
        capture, *ranges = command.words
        incarnation, found = self._incarnation(command, ranges)
        ts, resolved = command.number("checkpoint"), command.number("resolved", 0)
        counts = self.owner.report(
            capture, incarnation, [RangeProgress(one.id, one.token, ts, resolved) for one in found]
        )
        under = f"incarnation {incarnation}, token {command.options.get('token', '1.1')}"
        return "" if counts else f"ignored: {capture} was not granted {listed(ranges)} under {under}"

    def _ddl(self, command: Command) -> str:
        before = self._agreement()
        self.owner.learn(ddl(command), known(command))
        return "" if self._agreement() == before else self._agreement()

    def _says(self, command: Command) -> str:
        capture, *nothing = command.words
        spans = names(command, "spans") if "spans" in command.options else self._spans
        log = DdlLog(self._start, map(task, spans))
        log.learn(map(_batch, names(command, "ddl")), command.number("upto", self._start))
        log.forget(command.number("after", self._start))
        self.owner.receive_ddl(capture, NOTHING if nothing else log.said)
        return self._agreement()

    def _agreement(self) -> str:
        differs = self.owner.agreement.disagreement
        found = [] if differs is None else [f"{differs[0]} knows other DDL in {_between(differs[1])}"]
        found += ["a capture knows DDL further: read on"] if self.owner.agreement.lags else []
        return "; ".join(found) or "no capture is known to know other DDL"

    def _sink_open(self, command: Command) -> str:
        self.owner.sink_open(command.number("resolved", 0), command.number("ddl", 0))
        return ""

    def _tick(self, command: Command) -> str:
        owner = self.owner
        effects = owner.tick(seconds(command, "now"))
        held = f", partitions change at {owner.repartition_ts}" if owner.repartition_ts else ""
        state = f"checkpoint {owner.checkpoint}, ranges may go to {owner.barrier.bound}{held}"
        return f"{command.options['now']}: {listed([effect_in_words(one) for one in effects])}; {state}"

    def _due(self, command: Command) -> str:
        due = self.owner.due_in(seconds(command, "now"))
        when = "only by an event" if isinf(due) else f"in {due:g}s"
        return f"{command.options['now']}: a tick is due {when}"

    def _state(self, _: Command) -> str:
        ranges = self.owner.ranges
        lines = [
            f"{shown(span)} at {capture}: {'runs' if runs else 'starts'}, durable {ts}, received {resolved}"
            for capture, span, runs, ts, resolved in ranges.progress()
        ]
        gap = ranges.hole
        lines += (
            [f"from {gap.start.decode() or 'the first key'} on: not all granted"] if gap is not None else []
        )
        all_of_it = f"all: durable {ranges.durable}, received {ranges.resolved}"
        return "\n".join([*lines, f"{all_of_it}, {'runs' if ranges.are_running else 'starts'}"])


def effect_in_words(effect: Effect) -> str:
    """An effect of a tick in one line."""
    match effect:
        case SendDdl(batch):
            return " ".join(["SendDdl", str(batch.finished_ts), *(event.query for event in batch.events)])
        case SendResolved(ts):
            return f"SendResolved {ts}"
        case SendRepartition(ts, partitions):
            return f"SendRepartition {ts} to {partitions}"
        case Persist(ts):
            return f"Persist {ts}"
    return type(effect).__name__


def _batch(word: str) -> DdlBatch:
    ts, _, dropped = word.partition("/")
    return DdlBatch(int(ts), (), removed=frozenset(filter(None, [dropped])))


def _between(said: KnownDdl) -> str:
    return f"({said.after}, {said.upto}]"


def _call(method: str) -> Callable[[OwnerScript, Command], str]:
    def run(script: OwnerScript, _: Command) -> str:
        getattr(script.owner, method)()
        return ""

    return run


def _call_with_number(method: str) -> Callable[[OwnerScript, Command], str]:
    def run(script: OwnerScript, command: Command) -> str:
        getattr(script.owner, method)(int(command.words[0]))
        return ""

    return run


OPTIONS: Final = {
    "owner": "checkpoint known target load wanted spans resolved-interval quiet-interval",
    "grant": "incarnation token",
    "running": "incarnation token",
    "report": "checkpoint resolved incarnation token",
    "ddl": DDL_OPTIONS,
    "says": "ddl upto after spans",
    "sink-open": "resolved ddl",
    "tick": "now",
    "due": "now",
}
ACTS: Final[dict[str, Callable[[OwnerScript, Command], str]]] = {
    "grant": OwnerScript._grant,
    "running": OwnerScript._running,
    "report": OwnerScript._report,
    "ddl": OwnerScript._ddl,
    "says": OwnerScript._says,
    "sink-open": OwnerScript._sink_open,
    "tick": OwnerScript._tick,
    "due": OwnerScript._due,
    "state": OwnerScript._state,
    "sink-lost": _call("sink_lost"),
    "load-done": _call("load_done"),
    "persist-failed": _call("persist_failed"),
    "synced": _call_with_number("synced"),
    "persisted": _call_with_number("persisted"),
    "ddl-done": _call_with_number("ddl_done"),
    "resolved-done": _call_with_number("resolved_done"),
    "repartition-done": _call_with_number("repartition_done"),
    "ask-repartition": _call_with_number("ask_repartition"),
}
