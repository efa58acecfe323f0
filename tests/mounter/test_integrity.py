"""Verifying whole blocks: kernels agree with the plain checksum, damage is found, clean rows pass."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import corruption
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_folder import count
from tests.mounter.golden_rows import CASES, GoldenRow, block_of, golden_rows, store_of
from tidegate.model.block import OP_DELETE
from tidegate.model.cells import DELETE, INSERT, RowBlock
from tidegate.mounter.decode import Checks, MountOptions, mount
from tidegate.mounter.integrity import IMAGES, Mismatch, Tally, column_sums, verify, with_checksums
from tidegate.mounter.rows import rows_of
from tidegate.tidb import checksum, keys, record, row
from tidegate.tidb.checksum import Outcome

ALL = MountOptions(force_replicate=True)
SEALED = ("checksum_ints_unsigned", "checksum_times", "random_ck_00", "key_common_three", "key_int_signed")


def verified(rows: list[GoldenRow]) -> tuple[list[Mismatch], Tally, pa.RecordBatch, list[RowBlock]]:
    block, tally = block_of([row.entry for row in rows]), Tally()
    checks = Checks.of(block)
    groups, _ = mount(block, store_of(rows), ALL, checks)
    return [one for group in groups for one in verify(block, group, checks, tally)], tally, block, groups


def plainly(rows: list[GoldenRow], groups: list[RowBlock]) -> list[tuple[int, str, checksum.Check]]:
    """Return the plain twin's check of each image of the mounted rows."""
    found = []
    for at in sorted(int(at) for group in groups for at in group.position):
        entry, table = rows[at].entry, rows[at].table
        for image, data in zip(IMAGES, (entry.value, entry.old_value), strict=True):
            if data and not (image == "new" and entry.op == OP_DELETE):
                found.append((at, image, checksum.check(table, entry.key, data, old=image == "old")))
    return found


def assert_as_plain(rows: list[GoldenRow]) -> Tally:
    found, tally, _, groups = verified(rows)
    plain = plainly(rows, groups)
    accused = [one for one in plain if one[2].outcome is Outcome.MISMATCHED]
    assert sorted((m.position, m.image, m.check) for m in found) == sorted(accused)
    outcomes = [check.outcome for _, _, check in plain]
    assert (tally.matched, tally.unchecked, tally.excused, tally.mismatched) == tuple(
        outcomes.count(one)
        for one in (Outcome.MATCHED, Outcome.UNCHECKED, Outcome.EXCUSED, Outcome.MISMATCHED)
    )
    return tally


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_golden_blocks_match_and_give_ticdcs_sums(case: str) -> None:
    rows = golden_rows(case)
    found, tally, _, groups = verified(rows)
    assert found == []
    assert tally.excused == 0
    for group in groups:
        every = np.arange(len(group))
        images = (
            (group.new, "current", "values", group.op != DELETE),
            (group.old, "previous", "pre_values", group.op != INSERT),
        )
        for image, member, values, has in images:
            for i, found_sum in zip(
                every[has], column_sums(group.table, image, every[has]).tolist(), strict=True
            ):
                golden = rows[int(group.position[i])]
                theirs = golden.mounted.get("checksum")
                if theirs and theirs[member] and not theirs["corrupted"]:
                    assert found_sum == theirs[member], golden.entry
                    count("rows", "row images, checksum of columns by kernel")
                assert golden.mounted[values] is not None


def emitted(rows: list[GoldenRow]) -> Iterator[tuple[GoldenRow, tuple[int, ...] | None]]:
    """Yield the rows with the checksums that their messages carry."""
    block = block_of([row.entry for row in rows])
    checks = Checks.of(block)
    groups, _ = mount(block, store_of(rows), ALL, checks)
    for group in groups:
        verify(block, group, checks, Tally())
        carried = with_checksums(group, checks).checksums
        assert carried is not None
        for position, (current, previous, version, corrupted, known, _) in zip(
            group.position.tolist(), carried.tolist(), strict=True
        ):
            yield rows[position], (current, previous, version, corrupted) if known else None


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_rows_tell_the_checksums_that_ticdc_tells(case: str) -> None:
    for golden, found in emitted(golden_rows(case)):
        theirs = golden.mounted.get("checksum")
        # While classic checks, it mounts no row that has a date without month or day, so it has no checksum.
        if theirs is not None:
            members = ("current", "previous", "version", "corrupted")
            assert found == tuple(theirs[name] for name in members), golden.entry


@given(st.randoms(use_true_random=False), st.sampled_from(SEALED))
@settings(max_examples=40, deadline=None)
def test_rows_of_every_version_tell_what_the_plain_twin_says(rng: random.Random, case: str) -> None:
    rows = golden_rows(case)
    for golden, found in emitted([resealed(one, rng) for one in rng.sample(rows, min(len(rows), 30))]):
        entry, sums, versions, corrupted = golden.entry, [0, 0], [0, 0], False
        for at, data in enumerate((b"" if entry.op == OP_DELETE else entry.value, entry.old_value)):
            check = checksum.check(golden.table, entry.key, data, old=at == 1) if data else None
            if check is not None and check.outcome is not Outcome.UNCHECKED:
                bad, versions[at] = check.outcome is Outcome.MISMATCHED, check.version
                corrupted |= bad
                values = record.decode(golden.table, keys.parse_record(entry.key), data)
                whole = checksum.column_sum(golden.table, values)
                sums[at] = check.expected if bad and check.version else whole
        version = versions[1 if entry.op == OP_DELETE else 0]
        assert found == ((*sums, version, corrupted) if any(sums) else None)


def resealed(golden: GoldenRow, rng: random.Random) -> GoldenRow:
    """A row with new checksums of any version, one in eight wrong, some taken away."""
    entry, table = golden.entry, golden.table
    parts: list[bytes] = []
    for data in (entry.value, entry.old_value):
        version = rng.choice([-1, 0, 0, 1, 2, 2])
        if not data or data[0] != row.V2:
            parts.append(data)
            continue
        carried = row.split(data).checksum
        bare = data
        if carried is not None:
            size = 5 if carried.extra is None else 9
            bare = bytes([data[0], data[1] & ~row.CHECKSUM]) + data[2:-size]
        if version < 0:
            parts.append(bare)
            continue
        sums: list[int] = []
        if version == 0:
            probe = checksum.sealed(bare, entry.key, 0, [0])
            right = checksum.check(table, entry.key, probe).found
            sums = rng.choice([[right], [right, 7], [7, right]])
        made = bytearray(checksum.sealed(bare, entry.key, version, sums))
        if rng.randrange(8) == 0:
            made[-1] ^= 1 << rng.randrange(8)
        parts.append(bytes(made))
    return golden._replace(entry=entry._replace(value=parts[0], old_value=parts[1]))


@given(st.randoms(use_true_random=False), st.sampled_from(CASES))
@settings(max_examples=60, deadline=None)
def test_kernels_judge_rows_of_every_version_as_the_plain_twin_does(rng: random.Random, case: str) -> None:
    rows = golden_rows(case)
    assert_as_plain([resealed(golden, rng) for golden in rng.sample(rows, min(len(rows), 30))])


def corrupted(golden: GoldenRow, rows: list[GoldenRow], rng: random.Random) -> GoldenRow:
    """One bit of the value flipped, or another row's value in its place."""
    data = bytearray(golden.entry.value)
    if rng.randrange(4):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        data = bytearray(rng.choice([r for r in rows if r.entry.value and r.entry.key != golden.entry.key])
                         .entry.value)  # fmt: skip
    return golden._replace(entry=golden.entry._replace(value=bytes(data)))


def planted(number: int, rng: random.Random) -> Iterator[tuple[list[GoldenRow], set[int]]]:
    """Blocks of recorded rows with checksums, some damaged; which ones."""
    clean = {case: [seal(r) for r in golden_rows(case) if r.entry.value and r.entry.value[0] == row.V2]
             for case in SEALED}  # fmt: skip
    while number > 0:
        rows = list(clean[rng.choice(SEALED)])
        chosen = set(rng.sample(range(len(rows)), min(number, max(len(rows) // 8, 1))))
        yield [corrupted(r, rows, rng) if i in chosen else r for i, r in enumerate(rows)], chosen
        number -= len(chosen)


def seal(golden: GoldenRow) -> GoldenRow:
    entry = golden.entry
    value = entry.value
    if not value[1] & row.CHECKSUM:
        value = checksum.sealed(value, entry.key)
    return golden._replace(entry=entry._replace(value=value, old_value=b""))


def found_in(rows: list[GoldenRow]) -> set[int]:
    """Rows accused by decoding or by their checksum."""
    block, tally = block_of([row.entry for row in rows]), Tally()
    checks = Checks.of(block)
    groups, bad = mount(block, store_of(rows), ALL, checks)
    accused = {one.position for one in bad}
    return accused | {one.position for group in groups for one in verify(block, group, checks, tally)}


def test_planted_corruptions_are_all_found_and_nothing_else() -> None:
    rng, seen = random.Random(5), 0
    for rows, chosen in planted(2000, rng):
        assert found_in(rows) == chosen
        seen += len(chosen)
    assert seen >= 2000


@pytest.mark.parametrize("version", [1, 2])
def test_no_bit_of_an_old_value_flips_unseen(version: int) -> None:
    """Not even the one that makes a version 0 of it, whose old values may differ."""
    golden = next(r for r in golden_rows("key_int_signed") if r.entry.old_value[:1] == b"\x80")
    bare = golden.entry.old_value
    if bare[1] & row.CHECKSUM:
        bare = bytes([bare[0], bare[1] & ~row.CHECKSUM]) + bare[2:-5]
    sealed = checksum.sealed(bare, golden.entry.key, version)
    rows = []
    for bit in range(8 * len(sealed)):
        data = bytearray(sealed)
        data[bit >> 3] ^= 1 << (bit & 7)
        rows.append(golden._replace(entry=golden.entry._replace(value=bare, old_value=bytes(data))))
    assert found_in(rows) == set(range(len(rows)))
    assert_as_plain(rows)


def test_the_benchmark_of_planted_damage_finds_all_of_it_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    arguments = [
        "--logs",
        "wide",
        "--rows",
        "3000",
        "--plant",
        "300",
        "--batch",
        "700",
        "--json",
        str(report),
    ]
    assert corruption.main(arguments) == 0
    (found,) = json.loads(report.read_text())
    assert (found["rows"], found["missed"], found["false_alarms"]) == (3000, [], 0)
    assert found["planted"] == {"flipped": 100, "swapped": 100, "lost": 100}
    assert found["by_checksum"]["swapped"] == found["by_checksum"]["lost"] == 100
    assert 0 < found["without_checksums"]["flipped"] < 100
    assert "300 damaged, 300 found, 0 false alarms" in capsys.readouterr().out


def test_a_mismatch_names_table_handle_and_both_sums() -> None:
    rows = [seal(r) for r in golden_rows("key_common_three") if r.entry.value]
    entry = rows[3].entry
    rows[3] = rows[3]._replace(entry=entry._replace(value=entry.value[:-1] + bytes([entry.value[-1] ^ 1])))
    (found,), tally, _, _ = verified(rows)
    assert (found.position, found.image, tally.mismatched) == (3, "new", 1)
    assert found.key == entry.key
    assert found.handle == entry.key[11:].hex()
    text = found.render()
    for part in (rows[3].table.name, found.handle, str(entry.commit_ts), str(found.check.expected),
                 str(found.check.found), "version 2"):  # fmt: skip
        assert part in text


def test_rows_only_the_plain_decoder_can_read_are_judged_too() -> None:
    """Ids out of order: TiDB never writes that, and the kernel leaves it to the plain path."""
    golden = golden_rows("types_ints_signed")[0]
    odd = bytes.fromhex("8000020000000302010002002d2a")
    right = checksum.sealed(odd, golden.entry.key)
    images = [(odd, (0, 1, 0)), (right, (1, 0, 0)), (right[:-1] + bytes([right[-1] ^ 1]), (0, 0, 1))]
    for value, wanted in images:
        tally = assert_as_plain([golden._replace(entry=golden.entry._replace(value=value, old_value=b""))])
        assert (tally.matched, tally.unchecked, tally.mismatched) == wanted


def test_old_rows_pass_unchecked() -> None:
    rows = [golden for golden in golden_rows("rowv1_json") if golden.entry.value[:1] == b"\x08"]
    found, tally, _, groups = verified(rows)
    assert found == []
    assert tally.unchecked >= sum(map(len, groups)) > 0
    assert [len(rows_of(group)) for group in groups] == [len(group) for group in groups]
