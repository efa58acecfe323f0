"""Scripts of the assembler: `testdata/assembler/*.txt`. A command is a call of one assembler.

assembler 0:5 1:5                               a new one; partitions, and up to which ts each is applied
add partition=0 ts=3..9 at=100 [rows=10] [file=f]
                                                rows of one table with these commit ts, from an offset on
take 0:10 1:10                                  hand out the rows up to these bounds
rows                                            how many rows wait
release                                         the staging files that nobody needs any more
restart-offset partition=0 next=50              where reading must begin again
cut 0:30 1:30 rows=15                           the ts of a step of about so many rows
cut-each 0:30 1:8 rows=40                       the bounds of such a step, without watermarks
aligned                                         the ts at which all partitions are, if it is one
"""

from __future__ import annotations

from tests.scripts import Command
from tidegate.consumer.engine.assembler import Assembler, StagedRun


def segment(partition: int, low: int, high: int, offset: int, rows: int = 10, file: str = "f") -> StagedRun:
    """Rows of table s.t in a staging file of the partition's own."""
    return StagedRun(partition, "s", "t", (), f"{file}{partition}", 0, 0, rows, low, high, offset)


class AssemblerScript:
    """One assembler."""

    def __init__(self) -> None:
        self._assembler: Assembler | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        if command.name == "assembler":
            self._assembler = Assembler(_bounds(command))
            return ""
        held = self._assembler
        assert held is not None, "a scenario begins with 'assembler'"
        match command.name:
            case "add":
                low, high = map(int, command.options["ts"].split(".."))
                place = command.number("partition"), low, high, command.number("at")
                held.add([segment(*place, command.number("rows", 10), command.options.get("file", "f"))])
                return ""
            case "take":
                pieces = [piece for some in held.take(_bounds(command)).values() for piece in some]
                words = [f"{p.segment.partition} has ({p.after}, {p.upto}]" for p in pieces]
                return ", ".join(words) or "no rows"
            case "rows":
                return f"{held.rows} rows wait"
            case "release":
                return f"to be removed: {', '.join(sorted(held.release())) or 'nothing'}"
            case "restart-offset":
                partition = command.number("partition")
                return f"{partition}: from offset {held.restart_offset(partition, command.number('next'))}"
            case "cut":
                return f"up to {held.cut(_bounds(command), command.number('rows'))}"
            case "cut-each":
                found = held.cut_each(_bounds(command), command.number("rows"))
                return " ".join(f"{partition} to {upto}" for partition, upto in found.items())
            case "aligned":
                return f"aligned: {'no' if held.aligned is None else f'at {held.aligned}'}"
        raise ValueError(f"{command.where}: an assembler does not know '{command.name}'")


def _bounds(command: Command) -> dict[int, int]:
    pairs = (word.split(":") for word in command.words)
    return {int(partition): int(ts) for partition, ts in pairs}
