"""Scripts of the consumer's engine: `testdata/engine/*.txt`. Commands are what partitions bring, and steps.

    topic partitions=2 mode=row [until=9]   a fresh target; `begun=0:6,1:6`: a write up to there was cut off
    topic partitions=a0,b0,b1 mode=row      of several topics; `ddls=a0/b0,b1`: each DDL is on one such group;
                                            `apart=1`: the target's readers see each step
    stored mode=row                         the position of an earlier release, as JSON in the body
    read partition=0 next=10                what one fetch brings, in its body
      rows 3..5 at=0                        rows with these commit ts, from this offset on
      resolved 6 at=2
      ddl 6 at=1 create table t(a int)
      align 10 at=5                         an alignment mark
      aligns 10 at=5 count=100              so many, at ts 10, 11, ... and offsets 5, 6, ...
      layout 10 epoch=1 old=2 new=3         its Resolved name a change of the number of partitions
    step [rows=100]                         the next step; it is applied
    run                                     steps until nothing moves
    meet                                    row and table mode: a snapshot is due
    wanted                                  the partitions that are read on, and from which offset
    marks                                   how many alignment marks wait to be met
    position ts=6                           what is kept with the snapshot
    restart [with=b0]                       continue from the position that was shown last, with a topic more
    join b0 b1 [ddls=a0/b0,b1]              partitions of a topic that comes into being, or that are added
    asked                                   the partitions that may leave if nothing is on them
    leave 2                                 they do
    snapshot after=0                        at which ts the target's state can be named

A step shows the bound of each partition, and of each piece of rows which ts are in it.
"""

from __future__ import annotations

from tests.consumer.assembler_script import segment
from tests.consumer.partitions import Labels, partition_of, partitions_of
from tests.scripts import Command
from tidegate.codec.base import DdlMessage
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Ddls, Flow
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.model.layout import Layout


class EngineScript:
    """One source on its way to one target."""

    def __init__(self) -> None:
        self._flow: Flow | None = None
        self._position: Position | None = None
        self._until: int | None = None
        self._labels = Labels("1")
        self._ddl_places: tuple[tuple[int, ...], ...] = ()

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "topic":
            numbers = partitions_of(command.options["partitions"])
            self._labels = Labels(command.options["partitions"])
            self._ddl_places = _groups(command)
            mode, until = Mode(command.options["mode"]), command.options.get("until")
            fresh = {number: PartitionPosition(0, 0, 0) for number in numbers}
            self._position = Position(0, self._labels.topics, "open-protocol", mode.value, fresh)
            self._until = int(until) if until else None
            begun = [pair.split(":") for pair in command.options.get("begun", "").split(",") if pair]
            held = {partition_of(number): int(ts) for number, ts in begun}
            apart = "apart" in command.options
            self._flow = Flow(self._position, mode, self._ddl_places, self._until, held or None, apart=apart)
            return ""
        if command.name == "stored":
            self._position = Position.from_json("".join(command.body))
            self._labels, self._ddl_places, self._until = (
                Labels(str(len(self._position.partitions))),
                (),
                None,
            )
            self._flow = Flow(self._position, Mode(command.options["mode"]), (), None)
            return ""
        assert self._flow is not None, "a scenario begins with 'topic' or 'stored'"
        flow = self._flow
        match command.name, command.words:
            case "read", ():
                flow.take([_fetched(command)])
                return ""
            case "step", ():
                return self._step(flow, command.number("rows", 100)) or "nothing moves"
            case "run", ():
                return "\n".join(iter(lambda: self._step(flow, 100), "")) or "nothing moves"
            case "meet", ():
                flow.meet()
                return ""
            case "snapshot", ():
                return f"snapshot: {flow.snapshot(command.number('after')) or 'none'}"
            case "wanted", ():
                wanted = flow.wanted().items()
                return f"read on: {', '.join(f'{self._labels.of(p)} from {offset}' for p, offset in wanted)}"
            case "marks", ():
                return f"marks that wait: {flow._meetings.count}"
            case "position", ():
                position = flow.position(command.number("ts"))
                self._position = Position.from_json(position.to_json())
                assert self._position == position
                return self._shown(position)
            case "restart", ():
                assert self._position is not None
                if joining := command.options.get("with"):
                    self._position = self._position.over(self._position.topics, [partition_of(joining)])
                self._flow = Flow(self._position, flow.mode, self._ddl_places, self._until, apart=flow.apart)
                return ""
            case "join", names:
                self._ddl_places = _groups(command)
                flow.join([*map(partition_of, names)], self._ddl_places, {})
                return ""
            case "asked", ():
                return f"may leave: {' '.join(map(self._labels.of, flow.asked())) or 'none'}"
            case "leave", names:
                flow.leave(map(partition_of, names), self._ddl_places)
                return ""
        raise ValueError(f"{command.where}: the engine does not know '{command.name}'")

    def _step(self, flow: Flow, rows: int) -> str:
        match flow.next_step(rows):
            case None:
                return ""
            case Ddls(ts, messages):
                return f"ddl at {ts}: {'; '.join(message.query for message in messages)}"
            case step:
                taken = [piece for pieces in flow.assembler.take(step.bounds).values() for piece in pieces]
                found = [f"{self._labels.of(p.segment.partition)} has ({p.after}, {p.upto}]" for p in taken]
                return f"apply {self._labels.bounds(step.bounds.items())}: {', '.join(found) or 'no rows'}"

    def _shown(self, position: Position) -> str:
        lines = [
            f"{name}: read from offset {p.offset}, applied {p.applied}, resolved {p.watermark}"
            for name, p in zip(
                map(self._labels.of, position.partitions), position.partitions.values(), strict=True
            )
        ]
        if position.ddl_ts:
            lines.append(f"ddl: all below {position.ddl_ts} ran, and {len(position.ddls)} at it")
        if position.epoch:
            waits = ", ".join(map(str, position.switches))
            lines.append(f"partitions changed {position.epoch} times; still to be reached: {waits or 'none'}")
        return "\n".join(lines)


def _groups(command: Command) -> tuple[tuple[int, ...], ...]:
    groups = [one for one in command.options.get("ddls", "").split("/") if one]
    return tuple(tuple(map(partition_of, one.split(","))) for one in groups)


def _fetched(command: Command) -> Fetched:
    partition = partition_of(command.options["partition"])
    rows: list[StagedRun] = []
    resolved, aligns = [], []
    ddls: list[DdlMessage] = []
    changes: list[Layout] = []
    for line in command.body:
        what, ts, *text = line.split()
        if what == "layout":
            epoch, old, new = (int(word.partition("=")[2]) for word in text)
            changes.append(Layout(epoch, int(ts), old, new, max(old, new)))
            continue
        at = text.pop(0)
        offset = int(at.removeprefix("at="))
        match what:
            case "rows":
                low, high = map(int, ts.split(".."))
                rows.append(segment(partition, low, high, offset))
            case "resolved":
                resolved.append((int(ts), offset))
            case "align":
                aligns.append((int(ts), offset))
            case "aligns":
                count = int(text.pop(0).removeprefix("count="))
                aligns += [(int(ts) + n, offset + n) for n in range(count)]
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
        layouts=tuple(changes),
    )
