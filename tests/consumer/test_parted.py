"""Steps that do not fit into memory: tables in parts by key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumer import at_delta, at_iceberg
from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tests.consumer.test_net_effect import NAMES, changes_of, end_of, histories, without_old_values
from tidegate.consumer.applying import part_file
from tidegate.consumer.applying.apply import Applier, Sizes
from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.parted import PartedTable
from tidegate.consumer.applying.row_codes import codes_of, parts_of
from tidegate.consumer.engine.assembler import STEP_BYTES, Assembler, StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import MAX_WAITING_BYTES, Flow
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.iceberg.snapshots import open_snapshot as open_iceberg
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.definition import guess

KNOWN = replace(guess("s", "t", (), 1), keys=("a", "b"))
FRESH = Position(0, "memory", "open-protocol", "transaction", {0: PartitionPosition(0, 0, 0)})


@given(histories(), st.booleans(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_parts_together_take_the_start_to_the_end(history, old_values, parts, pieces, few) -> None:  # type: ignore[no-untyped-def]
    start, events = history
    end = end_of(start, events)
    sent = events if old_values else without_old_values(events)
    cut = [changes_of(sent[at::pieces], ["a", "b"]) for at in range(pieces)]
    got, fresh = dict(start), dict[tuple[int, str], tuple[object, ...]]()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "GATHERED_MAX", few)
        table = PartedTable(
            ("s", "t"), parts, 1, lambda: [(KNOWN, one) for one in cut], Path(folder) / "parts", old_values
        )
        for part in range(parts):
            changes = table.net_changes(part)
            if changes is None:
                continue
            assert isinstance(changes.effect, Effect)
            if not table.may_delete(part):
                assert changes.effect.only_inserts
            for row in changes.effect.deletes.to_pylist():
                got.pop((row["a"], row["b"]), None)
            for row in changes.effect.upserts.to_pylist():
                assert (row["a"], row["b"]) not in fresh, "a key is in one part"
                fresh[row["a"], row["b"]] = tuple(row[name] for name in NAMES)
        table.close()
        assert list(Path(folder).iterdir()) == []
    assert got | fresh == end


def test_a_key_stays_in_its_part_in_every_release() -> None:
    """A write that was interrupted is completed by parts: they are part of what is kept."""
    keys = pa.table(
        {
            "n": pa.array([-1, 1, None, 2**40], pa.int64()),
            "t": pa.array([b"x", None, b"y", b"x"], pa.binary()),
            "d": pa.array(["1.50", "0.00", None, "-7.25"]).cast(pa.decimal128(9, 2)),
        }
    )
    assert parts_of(codes_of(keys), 7).tolist() == [4, 5, 5, 6]
    assert parts_of(codes_of(pa.table({"u": pa.array([2**63, 1], pa.uint64())})), 7).tolist() == [6, 2]


@pytest.mark.parametrize(
    ("applier_of", "opened"), [(at_delta.applier_of, open_snapshot), (at_iceberg.applier_of, open_iceberg)]
)
def test_a_target_of_files_takes_parts_and_shows_only_snapshots(
    tmp_path: Path, applier_of: Callable[..., Applier], opened: Callable[..., Any]
) -> None:
    line, target = snapshots()[2], tmp_path / "target"
    applier = applier_of(target, sizes=Sizes(step=1, part=4000))
    cuts = []
    write = applier.target.write
    applier.target.write = lambda small, reached, parted: (
        cuts.append(reached.parts),
        write(small, reached, parted),
    )  # type: ignore[method-assign,assignment,misc]
    assert (
        consume(bank_topic("open-protocol", 2), target, until=line.ts, applier=applier, rows=2000).ts
        == line.ts
    )
    assert differences(target, line, opened) == {}
    assert max(count for parts in cuts for _, _, count in parts) > 3
    assert list(tmp_path.rglob("parts-*")) == []


def test_a_position_keeps_how_a_step_is_cut() -> None:
    assert "parts" not in FRESH.to_json(), "as earlier releases wrote it"
    cut = replace(FRESH, parts=(("s", "t", 12), ("s.x", "t", 3)))
    assert Position.from_json(cut.to_json()) == cut


def test_what_waits_on_disk_is_bounded_in_bytes() -> None:
    """Above it only the partition is read that holds the watermark back."""
    begin = {number: PartitionPosition(0, 0, 0) for number in (0, 1)}
    flow = Flow(replace(FRESH, partitions=begin), Mode.TRANSACTION, (), None)
    for size, wanted in ((MAX_WAITING_BYTES, {0, 1}), (1, {1})):
        held = StagedRun(0, "s", "t", (), "f", 0, size, 1, 5, 5, 0)
        flow.take([Fetched(0, 1, segments=(held,), resolved=((9, 1),))])
        assert flow.wanted().keys() == wanted


def test_a_step_is_bounded_in_bytes() -> None:
    held = Assembler({0: 0})
    half = STEP_BYTES // 2
    held.add(StagedRun(0, "s", "t", (), "f", 0, half, 10, ts, ts, ts) for ts in range(1, 7))
    assert held.cut({0: 6}, 10_000) == 2
    assert held.bytes == 6 * half
