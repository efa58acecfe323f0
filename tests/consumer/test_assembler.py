"""What waits, what is handed out, where a restart begins."""

from __future__ import annotations

from tidegate.consumer.assembler import Assembler, Segment


def segment(partition: int, low: int, high: int, offset: int, rows: int = 10, file: str = "f") -> Segment:
    return Segment(partition, "s", "t", (), f"{file}{partition}", 0, 0, rows, low, high, offset)


def test_rows_are_handed_out_once_and_only_within_the_bounds() -> None:
    held = Assembler({0: 5, 1: 5})
    held.add([segment(0, 3, 9, 100), segment(1, 6, 20, 7)])
    taken = held.take({0: 10, 1: 10})
    assert [(p.segment.partition, p.after, p.upto) for p in taken[("s", "t")]] == [(0, 5, 10), (1, 5, 10)]
    assert held.take({0: 10, 1: 10}) == {}
    assert [p.after for p in held.take({0: 10, 1: 30})[("s", "t")]] == [10]


def test_applied_segments_are_dropped_on_arrival_and_empty_files_released() -> None:
    held = Assembler({0: 5})
    held.add([segment(0, 1, 5, 1)])
    assert held.rows == 0
    held.add([segment(0, 6, 7, 2), segment(0, 8, 9, 3, file="g")])
    held.take({0: 7})
    assert held.release() == {"f0"}
    assert held.rows == 10


def test_a_restart_begins_at_the_first_row_that_waits() -> None:
    held = Assembler({0: 5})
    held.add([segment(0, 6, 7, 20), segment(0, 7, 9, 30)])
    assert held.restart_offset(0, 50) == 20
    held.take({0: 7})
    assert held.restart_offset(0, 50) == 30
    held.take({0: 9})
    assert held.restart_offset(0, 50) == 50


def test_a_cut_takes_about_the_wanted_rows_and_always_moves() -> None:
    held = Assembler({0: 0})
    held.add([segment(0, 1, 10, 1), segment(0, 11, 20, 2), segment(0, 21, 30, 3)])
    assert held.cut(30, 15) == 20
    assert held.cut(30, 1) == 10
    assert held.cut(30, 1000) == 30
    held.take({0: 10})
    assert held.cut(30, 1) == 20


def test_partitions_are_aligned_when_they_stand_at_one_ts() -> None:
    held = Assembler({0: 5, 1: 5})
    assert held.aligned == 5
    held.take({0: 9, 1: 7})
    assert held.aligned is None
