"""The page of floors holds the last report of each span, whatever changes at the same time."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.disk import DiskFull
from tidegate.eventstore.floors import ENTRY_BYTES, FLOORS, FloorPage, FloorReader, settled
from tidegate.eventstore.manifest import Manifest, RegionRange
from tidegate.model.span import Span
from tidegate.model.ts_by_span import SpanOrder


def name(number: int) -> str:
    return f"{(number + 1) * 0x0123456789ABCDEF % (1 << 64):016x}"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_mix_of_puts_removals_and_restarts_reads_as_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    page, reader = FloorPage(folder, "process"), FloorReader(folder)
    reported: dict[str, tuple[int, int]] = {}
    order = SpanOrder(map(name, range(505)))
    for step in range(data.draw(st.integers(1, 12))):
        match data.draw(st.integers(0, 4)):
            case 0:
                page.close()
                page = FloorPage(folder, data.draw(st.sampled_from(["process", "fsync"])))
                assert page.damage == ""
            case 1:
                gone = name(data.draw(st.integers(0, 300)))
                page.forget(gone)
                reported.pop(gone, None)
            case _:
                first, count = data.draw(st.integers(0, 300)), data.draw(st.sampled_from([1, 3, 200]))
                some = {name(n): (step * (n % 7), step + n) for n in range(first, first + count)}
                page.put((each, *floor) for each, floor in some.items())
                reported |= some
        expected = {each: floor for each, (floor, _) in reported.items() if floor}
        if data.draw(st.booleans()):
            found = reader.read()
            assert dict(found) == expected
            assert found.ts_of(order).tolist() == [expected.get(each, 0) for each in order.names]
            there = [place for place, each in enumerate(order.names) if each in expected]
            versions = [reported[order.names[place]][1] for place in there]
            assert found.versions_of(order)[there].tolist() == versions
        one = name(data.draw(st.integers(0, 300)))
        assert reader.of(one).get(one, 0) == expected.get(one, 0)
        assert page.get(one) == reported.get(one, (0, 0))
    assert reader.read() == FloorReader(folder).read() == expected
    page.close()


def test_a_floor_counts_only_with_the_manifest_it_names(tmp_path: Path) -> None:
    page, reader = FloorPage(tmp_path, "process"), FloorReader(tmp_path)
    manifest = Manifest(Span(b"a", b"z"), (RegionRange(b"a", b"z", 50),), version=7)
    assert reader.read() == {}
    assert reader.read().reach(name(1), manifest) == 50
    page.put([(name(1), 90, 7), (name(2), 90, 8), (name(3), 40, 7)])
    for frontier in (reader.read(), reader.of(name(1))):
        assert frontier.reach(name(1), manifest) == 90
    assert [reader.read().reach(name(n), manifest) for n in (2, 3, 4)] == [50, 50, 50]
    assert [reader.of(name(n)).reach(name(n), manifest) for n in (2, 3, 4)] == [50, 50, 50]


def test_a_changed_byte_takes_back_one_floor_and_no_other(tmp_path: Path) -> None:
    page = FloorPage(tmp_path, "process")
    page.put((name(n), 100 + n, n) for n in range(100))
    page.close()
    good = (tmp_path / FLOORS).read_bytes()
    whole = dict(FloorReader(tmp_path).read())
    for at in range(ENTRY_BYTES, 8 * ENTRY_BYTES):
        bad = bytearray(good)
        bad[at] ^= 0x10
        (tmp_path / FLOORS).write_bytes(bytes(bad))
        found = dict(FloorReader(tmp_path).read())
        assert found.items() <= whole.items()
        assert len(found) == 99
    page = FloorPage(tmp_path, "process")
    assert "1 entries" in page.damage
    page.put((name(n), 200 + n, n) for n in range(100))
    assert dict(FloorReader(tmp_path).read()) == {name(n): 200 + n for n in range(100)}


@pytest.mark.parametrize("data", [b"", b"x", bytes(ENTRY_BYTES * 8), b"tgfloors" + bytes(56)])
def test_a_page_that_is_none_is_said_and_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FLOORS).write_bytes(data)
    reader = FloorReader(tmp_path)
    assert reader.read() == {}
    page = FloorPage(tmp_path, "process")
    assert page.damage
    page.put([(name(1), 5, 6)])
    assert reader.read() == {name(1): 5}


@pytest.mark.parametrize("what", ["head", "entry", "cut", "gone"])
def test_a_damaged_page_of_a_running_store_is_repaired_by_the_next_tick(tmp_path: Path, what: str) -> None:
    page, path = FloorPage(tmp_path, "process"), tmp_path / FLOORS
    page.put([(name(n), 5, 6) for n in range(9)])
    data = bytearray(path.read_bytes())
    data[40 if what == "entry" else 3] ^= 1
    if what == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(data[:100] if what == "cut" else data))
    page.put([(name(8), 7, 8)])
    assert FloorReader(tmp_path).read() == {name(n): 5 if n < 8 else 7 for n in range(9)}
    page.put([(name(0), 9, 9)])
    assert FloorReader(tmp_path).of(name(0)) == {name(0): 9}


class Busy(np.ndarray):
    """Mapped entries in the midst of a write when they are first looked at."""

    def copy(self, order: Any = "C") -> Any:
        """Return what a reader gets then: a new floor, and everything else as before."""
        found = np.array(self)
        found[2, 1] += 1
        return found


def test_a_slot_met_in_the_midst_of_a_write_is_read_again(tmp_path: Path) -> None:
    FloorPage(tmp_path, "process").put([(name(n), 5, 6) for n in range(4)])
    entries = np.frombuffer((tmp_path / FLOORS).read_bytes(), "<u8").reshape(-1, 4)
    assert np.array_equal(settled(entries.view(Busy)), entries)


def test_a_reader_during_a_write_never_sees_halves_of_two_writes(tmp_path: Path) -> None:
    """Each version is three times its floor; the page grows under the reader's feet."""
    page, reader = FloorPage(tmp_path, "process"), FloorReader(tmp_path)
    done, floors = threading.Event(), [0]

    def write() -> None:
        for floor in range(1, 1000):
            page.put((name(n), floor, 3 * floor) for n in range(1 + floor // 5))
            floors[0] = floor
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    finished = False
    while not finished:
        finished = done.is_set()
        reported = floors[0]
        time.sleep(
            0.0001
        )  # else it keeps the interpreter for itself, and the writer waits 5 ms for each step
        frontier = reader.read()
        for place, each in enumerate(frontier):
            floor = frontier[each]
            manifest = Manifest(Span(b"a", b"z"), (RegionRange(b"a", b"z", 0),), version=3 * floor)
            assert frontier.reach(each, manifest) == floor
            assert place or floor >= reported
        assert len(frontier) >= last
        last = len(frontier)
    thread.join()
    assert dict(reader.read()) == {name(n): 999 for n in range(200)}


def test_a_write_that_finds_no_room_is_made_up_for_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = FloorPage(tmp_path, "process")
    page.put([(name(1), 5, 6)])
    pwrite = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:20], at))
        with pytest.raises(DiskFull):
            page.put([(name(1), 7, 8)])
    page.put([(name(1), 7, 8)])
    assert FloorReader(tmp_path).read() == {name(1): 7}


def test_a_mark_is_equal_as_long_as_nothing_was_reported(tmp_path: Path) -> None:
    reader = FloorReader(tmp_path)
    marks = [reader.mark()]
    page = FloorPage(tmp_path, "process")
    for change in (
        [(name(1), 5, 1)],
        [(name(1), 5, 2)],
        [(name(2), 5, 1)],
        [(name(n), 6, 1) for n in range(1, 300)],
    ):
        page.put(change)
        marks.append(reader.mark())
        assert marks[-1] == reader.mark() == FloorReader(tmp_path).mark()
    assert all(one != other for one, other in itertools.pairwise(marks))


def test_spans_are_stirred_by_another_manifest_and_not_by_a_floor(tmp_path: Path) -> None:
    reader, page = FloorReader(tmp_path), FloorPage(tmp_path, "process")
    page.put([(name(1), 5, 1), (name(2), 5, 1)])
    mark, versions = reader.mark(), reader.versions([name(1)])
    assert mark is not None
    assert mark.changed_since(None) is None

    def stirred(*floors: tuple[int, int, int]) -> tuple[frozenset[str] | None, bool]:
        """Since before these: which spans, and whether the first's own versions say so."""
        page.put([(name(number), floor, version) for number, floor, version in floors])
        now = reader.mark()
        assert now is not None
        assert (
            reader.versions([name(1)])
            == reader.versions([name(1)])
            == FloorReader(tmp_path).versions([name(1)])
        )
        return now.changed_since(mark), reader.versions([name(1)]) != versions

    assert stirred((1, 6, 1), (2, 6, 1)) == (frozenset(), False)
    assert stirred((2, 7, 2)) == ({name(2)}, False)
    assert stirred((3, 7, 1)) == ({name(2), name(3)}, False)
    assert stirred((1, 7, 2)) == ({name(1), name(2), name(3)}, True)
    assert stirred(*((number, 9, 1) for number in range(4, 300))) == (None, True), "another file"


def test_a_span_added_later_changes_the_versions_of_its_waiters(tmp_path: Path) -> None:
    reader, page = FloorReader(tmp_path), FloorPage(tmp_path, "process")
    assert reader.versions([name(2)]) is None
    page.put([(name(1), 5, 1)])
    before = reader.versions([name(1), name(2)])
    page.put([(name(2), 5, 1)])
    assert reader.versions([name(1), name(2)]) != before
    reader.read()
    before = reader.versions([name(1), name(2)])
    page.put([(name(2), 5, 2)])
    assert reader.versions([name(1), name(2)]) != before
