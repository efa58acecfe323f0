"""Scripts of the consumer's engine: `testdata/engine/*.txt`. Commands are what partitions bring, and steps.

    topic partitions=2 mode=row [until=9]   a fresh target; `begun=0:6,1:6`: a write up to there was cut off
    read partition=0 next=10                what one fetch brings, in its body
      rows 3..5 at=0                        rows with these commit ts, from this offset on
      resolved 6 at=2
      ddl 6 at=1 create table t(a int)
      align 10 at=5                         an alignment mark
    step [rows=100]                         the next step; it is applied
    run                                     steps until nothing moves
    meet                                    row mode: a snapshot is due
    position ts=6                           what is kept with the snapshot
    restart                                 go on from the position that was shown last
    snapshot after=0                        at which ts the target's state can be named

A step shows the bound of each partition, and of each piece of rows which ts are in it.
"""

from __future__ import annotations

from tests.consumer.test_assembler import segment
from tests.scripts import Command
from tidegate.codec.base import DdlMessage
from tidegate.consumer.assembler import Segment
from tidegate.consumer.fetched import Fetched
from tidegate.consumer.flow import Ddls, Flow
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.watermark import Mode


class EngineScript:
    """One source on its way to one target."""

    def __init__(self) -> None:
        self._flow: Flow | None = None
        self._position: Position | None = None
        self._until: int | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "topic":
            numbers = range(command.number("partitions"))
            mode, until = Mode(command.options["mode"]), command.options.get("until")
            fresh = {number: PartitionPosition(0, 0, 0) for number in numbers}
            self._position = Position(0, "t", "open-protocol", mode.value, fresh)
            self._until = int(until) if until else None
            begun = [pair.split(":") for pair in command.options.get("begun", "").split(",") if pair]
            held = {int(number): int(ts) for number, ts in begun}
            self._flow = Flow(self._position, mode, (), self._until, held or None)
            return ""
        assert self._flow is not None, "a scenario begins with 'topic'"
        flow = self._flow
        match command.name, command.words:
            case "read", ():
                flow.take([_fetched(command)])
                return ""
            case "step", ():
                return _step(flow, command.number("rows", 100)) or "nothing moves"
            case "run", ():
                return "\n".join(iter(lambda: _step(flow, 100), "")) or "nothing moves"
            case "meet", ():
                flow.meet()
                return ""
            case "snapshot", ():
                return f"snapshot: {flow.snapshot(command.number('after')) or 'none'}"
            case "position", ():
                position = flow.position(command.number("ts"))
                self._position = Position.from_json(position.to_json())
                assert self._position == position
                return _places(position)
            case "restart", ():
                assert self._position is not None
                self._flow = Flow(self._position, flow.mode, (), self._until)
                return ""
        raise ValueError(f"{command.where}: the engine does not know '{command.name}'")


def _fetched(command: Command) -> Fetched:
    partition = command.number("partition")
    rows: list[Segment] = []
    resolved, aligns = [], []
    ddls: list[DdlMessage] = []
    for line in command.body:
        what, ts, at, *text = line.split()
        offset = int(at.removeprefix("at="))
        match what:
            case "rows":
                low, high = map(int, ts.split(".."))
                rows.append(segment(partition, low, high, offset))
            case "resolved":
                resolved.append((int(ts), offset))
            case "align":
                aligns.append((int(ts), offset))
            case "ddl":
                ddls.append(DdlMessage(int(ts), " ".join(text), 14, "s", "t", None, offset))
            case _:
                raise ValueError(f"{command.where}: a partition does not bring '{what}'")
    return Fetched(
        partition,
        command.number("next"),
        segments=tuple(rows),
        resolved=tuple(resolved),
        ddls=tuple(ddls),
        aligns=tuple(aligns),
    )


def _step(flow: Flow, rows: int) -> str:
    match flow.next_step(rows):
        case None:
            return ""
        case Ddls(ts, messages):
            return f"ddl at {ts}: {'; '.join(message.query for message in messages)}"
        case step:
            taken = [piece for pieces in flow.assembler.take(step.bounds).values() for piece in pieces]
            found = [f"{p.segment.partition} has ({p.after}, {p.upto}]" for p in taken]
            ends = " ".join(f"{number} to {ts}" for number, ts in step.bounds.items())
            return f"apply {ends}: {', '.join(found) or 'no rows'}"


def _places(position: Position) -> str:
    lines = [
        f"{number}: read from offset {p.offset}, applied {p.applied}, resolved {p.watermark}"
        for number, p in position.partitions.items()
    ]
    if position.ddl_ts:
        lines.append(f"ddl: all below {position.ddl_ts} ran, and {len(position.ddls)} at it")
    return "\n".join(lines)
