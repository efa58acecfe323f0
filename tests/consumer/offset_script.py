"""Scripts of the engine without watermarks: `testdata/offset_engine/*.txt`. A broker keeps what is sent.

    topic partitions=2 [ddls-on=0] [clock=99]   a fresh target; without `ddls-on` each partition has every DDL
    topic partitions=2 begun=0:4,1:3            the same, after a write up to these offsets was cut off
    topic partitions=2 waiting-rows=5           no more is read once so many rows wait
    send 1 t@5 truncate:t@7 t@8                 rows of a table by commit ts (0: not known), and its TRUNCATE
    read 0 1 [end=3]                            one round of fetches, up to an offset or to what is there
    step [rows=100]                             the next step; it is applied
    run                                         steps until nothing moves
    wanted                                      the partitions that are read on, and from which offset
    waits                                       the DDLs that wait, and where a copy is missing
    snapshot after=0                            by which ts the target's state can be named
    named                                       it is named
    position ts=6                               what is kept with the snapshot
    restart                                     continue from the position that was shown last
    join b0 b1 [ddls-on=b0]                     partitions of a topic that comes into being

A step shows up to which offset each partition goes, and the changes in it. Before a round the broker says
where its partitions end.
"""

from __future__ import annotations

import pytest

from tests.consumer.offset_model import Broker, Change
from tests.consumer.partitions import Labels, partition_of, partitions_of
from tests.scripts import Command
from tidegate.consumer.engine import offset_flow
from tidegate.consumer.engine.assembler import StagedPiece
from tidegate.consumer.engine.flow import MAX_WAITING_ROWS, Ddls
from tidegate.consumer.engine.offset_flow import Group, OffsetFlow
from tidegate.consumer.engine.position import PartitionPosition, Position


class OffsetScript:
    """One source on its way to one target, and the broker that it reads."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """`patch`: sets the limit of rows that wait."""
        self._patch = patch
        self._flow: OffsetFlow | None = None
        self._position: Position | None = None
        self._broker = Broker(0, ddls_on_first=False)
        self._groups: list[Group] = []
        self._labels = Labels("1")
        self._clock = 0

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "topic":
            self._open(command)
            return ""
        flow = self._flow
        assert flow is not None, "a scenario begins with 'topic'"
        match command.name, command.words:
            case "send", (partition, *changes):
                self._broker.logs[partition_of(partition)] += map(_change, changes)
                return ""
            case "read", partitions:
                self._read(flow, partitions, command)
                return ""
            case "step", ():
                return self._step(flow, command.number("rows", 100)) or "nothing moves"
            case "run", ():
                return "\n".join(iter(lambda: self._step(flow, 100), "")) or "nothing moves"
            case "wanted", ():
                wanted = [f"{self._labels.of(p)} from {offset}" for p, offset in flow.wanted().items()]
                return f"read on: {', '.join(wanted) or 'none'}"
            case "waits", ():
                missing = " ".join(map(self._labels.of, flow.lacking()))
                return f"DDLs that wait: {flow.ddls_waiting}; no copy on: {missing or 'none'}"
            case "snapshot", ():
                return f"snapshot: {flow.snapshot(command.number('after')) or 'none'}"
            case "named", ():
                flow.named()
                return ""
            case "position", ():
                self._position = flow.position(command.number("ts"))
                return self._shown(self._position)
            case "restart", ():
                assert self._position is not None
                self._flow = self._started(Position.from_json(self._position.to_json()), None)
                return ""
            case "join", names:
                self._join(flow, [*map(partition_of, names)], command.options.get("ddls-on"))
                return ""
        raise ValueError(f"{command.where}: the engine does not know '{command.name}'")

    def _open(self, command: Command) -> None:
        text, ddls_on = command.options["partitions"], command.options.get("ddls-on")
        numbers = partitions_of(text)
        self._patch.setattr(offset_flow, "MAX_WAITING_ROWS", command.number("waiting-rows", MAX_WAITING_ROWS))
        self._labels, self._clock = Labels(text), command.number("clock", 0)
        self._broker = Broker(0, ddls_on_first=ddls_on is not None)
        self._broker.logs = {number: [] for number in numbers}
        self._groups = [Group(tuple(numbers), None if ddls_on is None else partition_of(ddls_on))]
        begun = [pair.split(":") for pair in command.options.get("begun", "").split(",") if pair]
        fresh = {number: PartitionPosition(0, 0, 0) for number in numbers}
        self._position = Position(0, self._labels.topics, "canal-json", "row", fresh, by_offset=True)
        self._flow = self._started(self._position, {partition_of(at): int(end) for at, end in begun} or None)

    def _started(self, position: Position, begun: dict[int, int] | None) -> OffsetFlow:
        return OffsetFlow(position, self._groups, self._broker.sides, begun, now_ts=lambda: self._clock)

    def _join(self, flow: OffsetFlow, numbers: list[int], ddls_on: str | None) -> None:
        self._groups = [
            *self._groups,
            Group(tuple(numbers), None if ddls_on is None else partition_of(ddls_on)),
        ]
        self._broker.logs |= {number: [] for number in numbers}
        flow.join(numbers, self._groups, {})

    def _read(self, flow: OffsetFlow, partitions: tuple[str, ...], command: Command) -> None:
        said = self._broker.ends()
        ends = {number: said[number] for number in flow.asked()}
        wanted, fetched = flow.wanted(), []
        for number in map(partition_of, partitions):
            end = min(command.number("end", said[number]), said[number])
            fetched.append(self._broker.read(number, wanted[number], end))
        flow.take(fetched, ends)

    def _step(self, flow: OffsetFlow, rows: int) -> str:
        match flow.next_step(rows):
            case None:
                return ""
            case Ddls(ts, messages):
                return f"ddl at {ts}: {'; '.join(message.query.lower() for message in messages)}"
            case step:
                pieces = [one for taken in flow.assembler.take(step.bounds).values() for one in taken]
                flow.assembler.release()
                found = sorted(change for piece in pieces for change in self._changes(piece))
                rows_of = " ".join(f"{name}@{ts}" for _, _, name, ts in found)
                return f"apply {self._labels.bounds(step.bounds.items())}: {rows_of or 'no rows'}"

    def _changes(self, piece: StagedPiece) -> list[tuple[int, int, str, int]]:
        """Partition, offset, table, and commit ts of each row of a piece."""
        segment = piece.segment
        at, _ = self._broker.sides(segment, 0)
        log = self._broker.logs[segment.partition]
        return [
            (segment.partition, offset, segment.table, log[offset].ts)
            for offset in at.tolist()
            if piece.after < offset + 1 <= piece.upto
        ]

    def _shown(self, position: Position) -> str:
        lines = [
            f"{self._labels.of(number)}: read from offset {p.offset}, nothing applied above {p.watermark}"
            for number, p in position.partitions.items()
        ]
        return "\n".join([*lines, f"DDLs known: {len(position.ddls)}"])


def _change(text: str) -> Change:
    what, ts = text.split("@")
    kind, _, table = what.rpartition(":")
    assert kind in ("", "truncate"), f"{text}: a row is table@ts, a DDL truncate:table@ts"
    return Change(table, -1 if kind else 0, int(ts), None)
