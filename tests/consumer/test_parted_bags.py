"""Steps that do not fit into memory: tables without a key, in parts by whole row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.each_target import AtDelta, AtIceberg, AtParquet, Killed, Place
from tests.consumer.memory_topic import consume_into
from tests.consumer.one_bag import END, FIRST, after_all, bag_topic, before, rows_of
from tests.consumer.test_net_effect import CHANGED, NAMES, any_changes
from tidegate.consumer.applying import parted
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.applying.net_effect import BagEffect, Changes, net_bag
from tidegate.consumer.applying.parted import PartedTable
from tidegate.consumer.applying.row_codes import codes_of
from tidegate.consumer.applying.row_runs import Places, RowRuns
from tidegate.consumer.applying.target import TableFailed, Target
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import guess
from tidegate.errors import Fatal
from tidegate.model.cells import INSERT

KNOWN = guess("s", "t", (), 1)
SIZES = Sizes(step=2_000, part=2_000)


def taken(changes: Changes, at: Any) -> Changes:
    """Some of the changes."""
    rows = np.asarray(at, np.int64)
    meta = {name: getattr(changes, name)[rows] for name in ("op", "commit_ts", "partition", "offset", "seq")}
    return Changes(**meta, new=changes.new.take(rows), old=changes.old.take(rows))


def runs_of(pieces: Sequence[Changes]) -> RowRuns:
    """The runs, as `row_runs.runs_of` finds them in staged pieces."""
    found: dict[int, list[tuple[int, Places]]] = {}
    for piece in sorted((one for one in pieces if len(one)), key=lambda one: int(one.offset.min())):
        for partition in set(piece.partition.tolist()):
            mine = taken(piece, np.flatnonzero(piece.partition == partition))
            places = Places(mine.offset, mine.seq, mine.commit_ts)
            found.setdefault(partition, []).append((int(mine.offset.min()), places))
    return RowRuns({number: sorted(held, key=lambda one: one[0]) for number, held in found.items()})


def counted(effect: BagEffect) -> tuple[Counter[Any], Counter[Any]]:
    """The effect without its order."""
    inserts = zip(rows_of(effect.inserts), effect.identities, strict=True)
    return Counter(inserts), Counter(rows_of(effect.deletes))


@given(st.lists(CHANGED, max_size=30), st.integers(1, 5), st.integers(1, 4), st.randoms())
@settings(max_examples=200, deadline=None)
def test_parts_together_have_the_effect_of_the_whole(
    rows: list[Any], parts: int, count: int, random: Any
) -> None:
    """Also if the pieces that are read lie within each other."""
    whole = any_changes(rows)
    whole = replace(whole, seq=(whole.offset % 3).astype(np.int32), offset=whole.offset // 3)
    of = np.array([random.randrange(count) for _ in rows], np.int64)
    pieces = [taken(whole, np.flatnonzero(of == number)) for number in range(count)]
    runs = runs_of(pieces)
    numbered = [replace(piece, run=runs.of(piece)) for piece in pieces]
    inserts, deletes, seen = Counter[Any](), Counter[Any](), set[Any]()
    with TemporaryDirectory() as folder:
        table = PartedTable(
            ("s", "t"), parts, 1, lambda: [(KNOWN, one) for one in numbered], Path(folder) / "parts", True
        )
        for part in range(parts):
            if (changes := table.net_changes(part)) is None:
                continue
            assert isinstance(changes.effect, BagEffect)
            assert table.may_delete(part) or not changes.effect.deletes.num_rows
            came, gone = counted(changes.effect)
            here = {row for row, _ in came} | set(gone)
            assert not here & seen, "equal rows are in one part"
            seen |= here
            inserts, deletes = inserts + came, deletes + gone
        table.close()
        assert list(Path(folder).iterdir()) == []
    assert (inserts, deletes) == counted(net_bag(whole))


def test_a_row_stays_in_its_part_in_every_release() -> None:
    """A write that was interrupted is completed by parts: they are part of what is kept."""
    rows = pa.table(
        {
            "v": pa.array([[1.0, 0.5], None, []], pa.list_(pa.float32())),
            "f": pa.array([0.0, -0.0, None], pa.float64()),
            "t": pa.array(["a", "a", None], pa.string()),
        }
    )
    assert codes_of(rows).tolist() == CODES
    assert codes_of(rows.take([0, 0, 1])).tolist() == [CODES[0], CODES[0], CODES[1]]


CODES = [10510591759703922053, 11063911685144107064, 15228513244704209645]


@given(st.lists(CHANGED, max_size=30), st.integers(1, 4))
@settings(deadline=None)
def test_sifted_rows_are_those_that_a_part_may_delete(rows: list[Any], parts: int) -> None:
    changes = any_changes(rows)
    held = changes.new.append_column("more", pa.array(range(len(changes))))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "parts"
        table = PartedTable(("s", "t"), parts, 1, lambda: [(known_as(NAMES), changes)], file, True)
        sifted = table.sift(iter(held.to_batches()))
        for part in range(parts):
            effect = table.net_changes(part)
            gone = Counter(rows_of(effect.effect.deletes)) if effect is not None else Counter()
            here = pa.Table.from_batches(sifted(part), held.schema)
            there = Counter(rows_of(held.select(NAMES)))
            assert Counter(rows_of(here.select(NAMES))) & gone == there & gone
        table.close()


def known_as(names: Sequence[str]) -> Any:
    """A definition without a key that has these columns."""
    columns = any_changes([]).new.select(list(names)).schema
    made = guess("s", "t", (), 1)
    return replace(made, columns=tuple(column_of(one.name, one.type) for one in columns))


def column_of(name: str, kind: pa.DataType) -> Any:
    return TargetColumn(name, 3, kind)


def test_a_step_that_deletes_nothing_does_not_read_the_table(tmp_path: Path) -> None:
    changes = any_changes([(1, INSERT, (1, "", 1), (1, "", 1), 0)])

    def unread() -> Iterator[pa.RecordBatch]:
        raise AssertionError
        yield

    table = PartedTable(("s", "t"), 2, 1, lambda: [(known_as(NAMES), changes)], tmp_path / "parts", True)
    assert list(table.sift(unread())(0)) == []
    table.close()


@pytest.fixture(params=["delta", "delta-deletes", "iceberg", "iceberg-deletes", "parquet"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    kind, _, deletes = request.param.partition("-")
    if kind == "parquet":
        return AtParquet(tmp_path / "target")
    if deletes:
        deletes_in_small_files(monkeypatch)
    mode = WriteMode.MERGE_ON_READ if deletes else WriteMode.COPY_ON_WRITE
    return AtDelta(tmp_path / "target", mode) if kind == "delta" else AtIceberg(tmp_path / "target", mode)


def consume(target: Target, folder: Path, until: int, sizes: Sizes = SIZES) -> int:
    applier = Applier(target, folder, sizes=sizes)
    return consume_into(bag_topic(), applier, folder / "staging", until=until, size=500, rows=10_000).ts


def test_files_take_parts_once_whichever_write_is_the_last(place: Place, tmp_path: Path) -> None:
    """It dies before and after writes of parts; what a restart undoes is written again."""
    cuts: list[int] = []
    with place.address().opened() as target:
        write = target.write
        target.write = lambda small, reached, parted: (  # type: ignore[method-assign,assignment,misc]
            cuts.extend(one for _, _, one in reached.parts),
            write(small, reached, parted),
        )
        assert consume(target, tmp_path, FIRST) == FIRST
    assert place.seen() == {"items": sorted(before(), key=repr)}
    deaths = 0
    for dies_at in count(5, 9):
        context, _ = place.mortal(dies_at)
        try:
            with context as target:
                assert consume(target, tmp_path, END) == END
            break
        except Killed:
            deaths += 1
    assert max(cuts) > 5, "it is in parts"
    assert deaths > 2
    assert place.seen() == {"items": sorted(after_all(), key=repr)}
    assert list(tmp_path.rglob("parts-*")) == []


def test_equal_rows_that_do_not_fit_into_memory_stop_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = AtDelta(tmp_path / "target")
    with monkeypatch.context() as patch, place.address().opened() as target:
        patch.setattr(parted, "BAG_PART_MAX", 1)
        with pytest.raises(Fatal, match="too many equal rows of a table without a key") as refused:
            consume(target, tmp_path, FIRST)
    assert isinstance(refused.value, TableFailed), "so that the table can be set aside"
    assert "--exclude" in refused.value.fix
    with place.address().opened() as target:
        assert consume(target, tmp_path, END) == END
    assert place.seen() == {"items": sorted(after_all(), key=repr)}
