"""Scripts of a processor: `testdata/processor/*.txt`. A command is a call of `Processor`.

Brackets mark optional parts.

    processor [epoch=3]                                   of capture a
    announce [owner=1] [sequence=0] [epoch=3] [capture=a]
    dispatch 2 .. [wish=run] [incarnation=1] [token=1.1] [bound=200] [checkpoint=100]
                  [owner=1] [epoch=3] [capture=a]
    open a b [checkpoint=100] known=200                   the spans there are at the checkpoint
    ddl ts=200 [alter ...] [adds=c,d/10] [drops=a] [known=300]
    passed                                                DDL that the bound has left behind
    started a=150 [incarnation=1] [outlived=old/150]      its pipeline begins; records that matter up to a ts
    report a=150 b=140 [incarnation=1] [token=1.1]        its pipeline has delivered up to there
    frontier a=300 b=180                                  which spans may advance without the pipeline
    idle a after=100 upto=250                             no row of it is between
    received a=300 b=310 [lacking=a]
    failed WHY; given-up; confirm; close; says WAITING-FOR
    tick now=1s                                           the messages to the owner
    state                                                 what the pipeline may do
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tests.control.words import DDL_OPTIONS, check, ddl, granted, known, listed, names, seconds, shown, task
from tests.scripts import Command

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.control.messages import (
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    FromOwner,
    FromProcessor,
    Header,
    ProcessorStatus,
    RangeProgress,
    RangeStatus,
    Sync,
    Wish,
)
from tidegate.control.open_spans import Received
from tidegate.control.processor import Processor
from tidegate.model.reports import Failed

HEADER: Final = Header(7, "default/one", "f00d", 1, "a", 3, 0)
"""The processor's header. An owner's is equal, unless a command says otherwise."""
NO_SPANS: Final = frozenset({"incarnation", "token", "outlived", "lacking"})
"""Options that are no spans."""


class ProcessorScript:
    """One processor, and what happens to it."""

    def __init__(self) -> None:
        self._processor: Processor | None = None
        self._history: list[DdlBatch] = []
        """All DDL of the scenario."""
        self._opened: tuple[int, list[SpanTask]] = (0, [])
        """The checkpoint and the spans of the last `open`."""

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name not in OF_SPANS:
            check(command, OPTIONS.get(command.name, "").split())
        if command.name == "processor":
            self._processor = Processor(replace(HEADER, capture_epoch=command.number("epoch", 3)))
            self._history = []
            return ""
        act = ACTS.get(command.name)
        if act is None:
            raise ValueError(f"{command.where}: a processor does not know '{command.name}'")
        return act(self, command)

    @property
    def processor(self) -> Processor:
        """The one of the last `processor`."""
        assert self._processor is not None, "a scenario begins with 'processor'"
        return self._processor

    def _announce(self, command: Command) -> str:
        return self._receive(Announce(_header(command, command.number("sequence", 0)), "1.0"))

    def _dispatch(self, command: Command) -> str:
        sequence, *ranges = command.words
        return self._receive(
            Dispatch(
                _header(command, int(sequence)),
                Wish(command.options.get("wish", "run")),
                command.number("incarnation", 1),
                tuple(granted(ranges, command.options.get("token", "1.1"))),
                command.number("bound", 200),
                command.number("checkpoint", 100),
                load=False,
            )
        )

    def _receive(self, message: FromOwner) -> str:
        name, header = type(message).__name__, message.header
        last_sequence = self.processor.receive(message)
        return "" if last_sequence else f"{name} {header.sequence} of owner {header.owner_rev}: no effect"

    def _open(self, command: Command) -> str:
        spans = [task(name) for name in command.words]
        self._opened = command.number("checkpoint", 100), spans
        self.processor.open(*self._opened, [], known(command))
        return ""

    def _ddl(self, command: Command) -> str:
        found = ddl(command)
        self._history += found
        self.processor.learn(found, known(command))
        return ""

    def _passed(self, _: Command) -> str:
        found = [str(batch.finished_ts) for batch in self.processor.passed()]
        return f"passed {listed(found)}; spans {listed(sorted(self.processor.spans.ids))}"

    def _started(self, command: Command) -> str:
        outlived = dict(one.rsplit("/", 1) for one in names(command, "outlived"))
        counts = self.processor.started(
            command.number("incarnation", 1),
            _spans(command),
            {name: int(ts) for name, ts in outlived.items()},
        )
        return "" if counts else "no effect"

    def _report(self, command: Command) -> str:
        (token,) = granted([".."], command.options.get("token", "1.1"))
        counts = self.processor.report(token.token, command.number("incarnation", 1), _spans(command))
        return "" if counts else "no effect"

    def _frontier(self, command: Command) -> str:
        found = self.processor.spans.beyond(_spans(command), self.processor.bound)
        return f"may be idle: {listed([f'{name} in ({after}, {upto}]' for name, after, upto in found])}"

    def _idle(self, command: Command) -> str:
        (span,) = command.words
        found = span, command.number("after"), command.number("upto")
        self.processor.idle(Received.by_name([found]))
        return ""

    def _received(self, command: Command) -> str:
        self.processor.resolve(_spans(command), names(command, "lacking"))
        return ""

    def _failed(self, command: Command) -> str:
        self.processor.failed(Failed(" ".join(command.words), "", "", "", retry=True))
        return ""

    def _says(self, command: Command) -> str:
        self.processor.status = ProcessorStatus(" ".join(command.words))
        return ""

    def _tick(self, command: Command) -> str:
        said = [self._in_words(message) for message in self.processor.tick(seconds(command, "now"))]
        return "\n".join(f"{command.options['now']}: {one}" for one in said or ["nothing"])

    def _in_words(self, message: FromProcessor) -> str:
        match message:
            case Sync():
                found = [f"incarnation {message.incarnation}", *_states(message.ranges)]
                found += [*_ranges(message.checkpoints), self._ddl_in_words(message.ddl)]
                return f"Sync: {listed(found)}; has messages up to {message.last_sequence}"
            case DispatchResponse():
                error = [f"failed: {message.error.what}"] if message.error is not None else []
                return f"DispatchResponse to {message.answers}: {listed([*_states(message.ranges), *error])}"
            case Checkpoint():
                found = [*_ranges(message.ranges), self._ddl_in_words(message.ddl)]
                found += [f"waits for {message.status.waits}"] if message.status.waits else []
                return f"Checkpoint: {listed([*found, *(f'delete record {key}' for key in message.over)])}"

    def _ddl_in_words(self, said: KnownDdl) -> str:
        """Which DDL a message says that its ranges hold by; its digest is that of just these."""
        if said == NOTHING:
            return "no DDL is open"
        within = [batch for batch in self._history if said.after < batch.finished_ts <= said.upto]
        log = DdlLog(*self._opened)
        log.learn((batch for batch in self._history if batch.finished_ts <= said.upto), said.upto)
        log.forget(said.after)
        what = "DDL " + "+".join(str(batch.finished_ts) for batch in within) if within else "no DDL"
        return f"by {what if log.said == said else 'other DDL'} in ({said.after}, {said.upto}]"

    def _state(self, _: Command) -> str:
        processor = self.processor
        spans = [_span_in_words(one) for _, one in sorted(processor.spans.tasks.items())]
        beyond = f", by the spans of now to {processor.reach}" if processor.reach != processor.bound else ""
        return f"may go to {processor.bound}{beyond}; {listed(spans)}"


def _header(command: Command, sequence: int) -> Header:
    return replace(
        HEADER,
        owner_rev=command.number("owner", 1),
        capture=command.options.get("capture", HEADER.capture),
        capture_epoch=command.number("epoch", HEADER.capture_epoch),
        sequence=sequence,
    )


def _spans(command: Command) -> dict[str, int]:
    return {name: int(ts) for name, ts in command.options.items() if name not in NO_SPANS}


def _span_in_words(one: SpanTask) -> str:
    tables = f" of tables {one.wanted:b}" if one.wanted else ""
    return f"{one.id}{tables} durable to {one.start_ts}"


def _states(found: Iterable[RangeStatus]) -> list[str]:
    return [f"{shown(one.id)} {one.state}" for one in found]


def _ranges(found: Iterable[RangeProgress]) -> list[str]:
    return [f"{shown(one.id)} durable to {one.checkpoint_ts} received to {one.resolved_ts}" for one in found]


def _call(method: str) -> Callable[[ProcessorScript, Command], str]:
    def run(script: ProcessorScript, _: Command) -> str:
        getattr(script.processor, method)()
        return ""

    return run


OPTIONS: Final = {
    "processor": "epoch",
    "announce": "owner sequence epoch capture",
    "dispatch": "wish incarnation token bound checkpoint owner epoch capture",
    "open": "checkpoint known",
    "ddl": DDL_OPTIONS,
    "idle": "after upto",
    "tick": "now",
}
OF_SPANS: Final = frozenset({"started", "report", "frontier", "received"})
"""Commands in which each other option is a span and a ts."""
ACTS: Final[dict[str, Callable[[ProcessorScript, Command], str]]] = {
    "announce": ProcessorScript._announce,
    "dispatch": ProcessorScript._dispatch,
    "open": ProcessorScript._open,
    "ddl": ProcessorScript._ddl,
    "passed": ProcessorScript._passed,
    "started": ProcessorScript._started,
    "report": ProcessorScript._report,
    "frontier": ProcessorScript._frontier,
    "idle": ProcessorScript._idle,
    "received": ProcessorScript._received,
    "failed": ProcessorScript._failed,
    "says": ProcessorScript._says,
    "tick": ProcessorScript._tick,
    "state": ProcessorScript._state,
    "confirm": _call("confirm"),
    "close": _call("close"),
    "given-up": _call("given_up"),
}
