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
from tests.consumer.memory_topic import consume_by_offset_into, consume_into
from tests.consumer.one_bag import END, FIRST, after_all, bag_topic, before, rows_of
from tests.consumer.test_net_effect import CHANGED, NAMES, any_changes
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying import part_file, parted
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.applying.net_effect import BagEffect, Changes, net_bag
from tidegate.consumer.applying.parted import PartedTable, row_bytes
from tidegate.consumer.applying.row_codes import codes_of
from tidegate.consumer.applying.row_runs import Places, RowRuns
from tidegate.consumer.applying.target import TableFailed, Target
from tidegate.consumer.engine.row_clock import clock_of
from tidegate.consumer.lakehouse import lake_target
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import ROWID, guess
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT

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


@given(st.lists(CHANGED, max_size=30), st.integers(1, 5), st.integers(1, 4), st.randoms(), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_parts_together_have_the_effect_of_the_whole(
    rows: list[Any], parts: int, count: int, random: Any, few: int
) -> None:
    """Also if the pieces that are read lie within each other, and whichever are cut together."""
    whole = any_changes(rows)
    whole = replace(whole, seq=(whole.offset % 3).astype(np.int32), offset=whole.offset // 3)
    of = np.array([random.randrange(count) for _ in rows], np.int64)
    pieces = [taken(whole, np.flatnonzero(of == number)) for number in range(count)]
    runs = runs_of(pieces)
    numbered = [replace(piece, run=runs.of(piece)) for piece in pieces]
    inserts, deletes, seen = Counter[Any](), Counter[Any](), set[Any]()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "GATHERED_MAX", few)
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


def inserts_of(values: Sequence[int], first: int = 0) -> Changes:
    """Rows of 100 columns, of which each has the same value in all; `first`: the offset of the first."""
    held = pa.array(values, pa.int64())
    new = pa.table({f"c{at}": held for at in range(100)})
    old = pa.table({name: pa.nulls(len(values), pa.int64()) for name in new.column_names})
    count, offset = len(values), np.arange(first, first + len(values), dtype=np.int64)
    zero = np.zeros(count, np.int32)
    return Changes(
        np.full(count, INSERT, np.uint8), np.full(count, 9, np.uint64), zero, offset, zero, new, old
    )


@pytest.mark.parametrize("keys", [(), ("c0",)])
def test_many_small_pieces_take_hardly_more_than_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    """A consumer at the end of a topic gets a giant transaction bit by bit."""
    values, file, known = 800 * 600, tmp_path / "parts", replace(KNOWN, keys=keys)
    monkeypatch.setattr(parted, "BAG_PART_MAX", values)
    pieces = [(known, inserts_of(range(at, at + 5), at)) for at in range(0, 600, 5)]
    table = PartedTable(("s", "t"), 4, 1, lambda: pieces, file, True)
    table.prepare()
    # Twice: the images before the changes, which are nulls here, are there, too.
    assert file.stat().st_size < 2 * values + 500_000
    assert sum(len(effect_rows(table, part)) for part in range(4)) == 600
    table.close()


def effect_rows(table: PartedTable, part: int) -> pa.Table:
    """The rows that a part inserts."""
    changes = table.net_changes(part)
    assert changes is not None
    return changes.effect.inserts if isinstance(changes.effect, BagEffect) else changes.effect.upserts


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([7] * 90 + list(range(10)), r"too many equal rows .*; 91 equal rows are 81,900 bytes of it"),
        (list(range(100)), r"is too large for a table .* takes 90,000 bytes.*; 1 equal rows are 900 bytes"),
    ],
)
def test_a_part_above_the_limit_is_refused_with_its_true_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[int], words: str
) -> None:
    monkeypatch.setattr(parted, "BAG_PART_MAX", 50_000)
    monkeypatch.setattr(part_file, "GATHERED_MAX", 2)
    pieces = [(KNOWN, inserts_of(values[at : at + 10], at)) for at in range(0, 100, 10)]
    table = PartedTable(("s", "t"), 1, 1, lambda: pieces, tmp_path / "parts", True)
    with pytest.raises(Fatal, match=f"(?s){words}"):
        table.prepare()
    table.close()


def test_the_bytes_of_rows_are_those_of_their_values() -> None:
    rows = pa.table(
        {
            "l": pa.array([[1.0, 0.5], None], pa.list_(pa.float32())),
            "t": pa.array(["é", None], pa.string()),
            "n": pa.array([1, None], pa.int64()),
            "d": pa.array(["1.50", None]).cast(pa.decimal128(9, 2)),
        }
    )
    assert row_bytes(rows).tolist() == [8 + 4 + 2 + 4 + 8 + 16, 4 + 4 + 8 + 16]


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


@given(st.lists(CHANGED, max_size=30), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None)
def test_sifted_rows_are_those_that_a_part_may_delete(
    rows: list[Any], parts: int, size: int, few: int
) -> None:
    """Whatever batches the target's rows come in."""
    changes = any_changes(rows)
    held = changes.new.append_column("more", pa.array(range(len(changes))))
    removed = set(rows_of(changes.old.select(NAMES).filter(pa.array(changes.op != INSERT))))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "GATHERED_MAX", few)
        file = Path(folder) / "parts"
        table = PartedTable(("s", "t"), parts, 1, lambda: [(known_as(NAMES), changes)], file, True)
        sifted = table.sift(iter(held.to_batches(size)))
        for part in range(parts):
            effect = table.net_changes(part)
            gone = Counter(rows_of(effect.effect.deletes)) if effect is not None else Counter()
            here = pa.Table.from_batches(sifted(part), held.schema)
            there = Counter(rows_of(held.select(NAMES)))
            assert Counter(rows_of(here.select(NAMES))) & gone == there & gone
            # Null has the number of 0 and of an empty text.
            alike = {(a or 0, b or "", v or 0) for a, b, v in rows_of(here.select(NAMES))}
            assert alike <= removed, "other rows take disk for nothing"
        table.close()


def known_as(names: Sequence[str]) -> Any:
    """A definition without a key that has these columns."""
    columns = any_changes([]).new.select(list(names)).schema
    made = guess("s", "t", (), 1)
    return replace(made, columns=tuple(column_of(one.name, one.type) for one in columns))


def column_of(name: str, kind: pa.DataType) -> Any:
    return TargetColumn(name, 3, kind)


def test_rows_of_many_small_batches_are_sifted_into_few(tmp_path: Path) -> None:
    rows = [(1, DELETE, (at % 4, "", at // 4), (0, "", 0), 0) for at in range(40)]
    changes = any_changes(rows)
    table = PartedTable(("s", "t"), 3, 1, lambda: [(known_as(NAMES), changes)], tmp_path / "parts", True)
    held = pa.concat_tables([changes.old.select(NAMES)] * 25)
    sifted = table.sift(held.to_batches(5))
    batches = [list(sifted(part)) for part in range(3)]
    assert [len(one) for one in batches] == [1, 1, 1]
    assert sum(batch.num_rows for one in batches for batch in one) == 1000
    table.close()


def test_narrow_rows_are_cut_before_their_hashes_take_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of one integer takes ten times its value while it is cut."""
    monkeypatch.setattr(part_file, "GATHERED_BYTES", 40 * part_file.ROW_BYTES)
    changes = any_changes([(1, DELETE, (0, "", 0), (0, "", 0), 0)] * 10)
    pieces = [(known_as(NAMES), changes)] * 40
    table = PartedTable(("s", "t"), 1, 1, lambda: pieces, tmp_path / "parts", True)
    table.prepare()
    assert len(list(table._cut.read(0))) >= 10, "at most 40 rows in each"
    held = changes.old.select(NAMES).to_batches()
    assert len(list(table.sift(held * 40)(0))) >= 10
    table.close()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the table's rows in each search for rows to delete."""
    found = list[int]()
    matched = lake_target._matched

    def counting(held: pa.Table, wanted: pa.Table) -> Any:
        found.append(held.num_rows)
        return matched(held, wanted)

    monkeypatch.setattr(lake_target, "_matched", counting)
    return found


def test_a_table_of_small_batches_is_searched_in_large_pieces(tmp_path: Path, searches: list[int]) -> None:
    """Each search numbers all rows that are still to delete."""
    held = pa.table({"a": range(100), ROWID: [str(at) for at in range(100)]})
    with AtDelta(tmp_path / "target").address().opened() as target:
        wanted = pa.table({"a": [3, 98, 3]})
        found = target._find_in_bag(iter(held.to_batches(2)), wanted)
        assert (found.to_pylist(), target.stats.missing_deletes) == (["3", "98"], 1)
    assert searches == [100]


def test_narrow_rows_are_searched_before_their_numbers_take_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: list[int]
) -> None:
    """A row of one integer takes several times its value while it is compared."""
    monkeypatch.setattr(part_file, "GATHERED_BYTES", 40 * part_file.ROW_BYTES)
    held = pa.table({"a": range(100), ROWID: [str(at) for at in range(100)]})
    with AtDelta(tmp_path / "target").address().opened() as target:
        found = target._find_in_bag(iter(held.to_batches(2)), pa.table({"a": [99]}))
        assert found.to_pylist() == ["99"]
    assert max(searches) <= 40
    assert len(searches) == 3


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


def test_a_topic_that_is_read_by_offset_shows_which_rows_it_repeats(tmp_path: Path) -> None:
    """Its rows are ordered by offset, but a producer's restart shows in the commit ts that they carry."""
    topic, place, cuts = bag_topic(), AtDelta(tmp_path / "target"), list[int]()
    clock = clock_of(reader_of(topic.options).losses(topic.options))
    with place.address().opened() as target:
        write = target.write
        target.write = lambda small, reached, parted: (  # type: ignore[method-assign,assignment,misc]
            cuts.extend(one for _, _, one in reached.parts),
            write(small, reached, parted),
        )
        applier = Applier(target, tmp_path, trust_inserts=False, clock=clock, sizes=SIZES)
        consume_by_offset_into(topic, applier, tmp_path / "staging", size=10_000, rows=100_000)
    assert max(cuts) > 5, "it is in parts"
    assert place.seen() == {"items": sorted(after_all(), key=repr)}


def test_a_part_that_does_not_fit_into_memory_stops_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = AtDelta(tmp_path / "target")
    with monkeypatch.context() as patch, place.address().opened() as target:
        patch.setattr(parted, "BAG_PART_MAX", 1)
        with pytest.raises(Fatal, match="too large for a table without a key") as refused:
            consume(target, tmp_path, FIRST)
    assert isinstance(refused.value, TableFailed), "so that the table can be set aside"
    assert "--exclude" in refused.value.fix
    with place.address().opened() as target:
        assert consume(target, tmp_path, END) == END
    assert place.seen() == {"items": sorted(after_all(), key=repr)}
