"""Row integrity: compares mounted rows with the checksums they carry (docs/integrity.md).

While it decodes, `mount` compares the sums over raw bytes (versions 1 and 2). `verify` compares the sums over
columns (version 0), computed from the cells, and counts the outcomes. Rows that do not match go through the
plain `tidb.checksum`, which reports the exact difference. The caller decides what to do with them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.cells import CHECKSUM, DELETE, INSERT, Image, RowBlock
from tidegate.model.schema import TableSchema
from tidegate.mounter.decode import Checks
from tidegate.tidb import cell_checksum, checksum, keys
from tidegate.tidb.checksum import Check, Outcome
from tidegate.tidb.kernels.checksum import BY_COLUMNS

Int64s = npt.NDArray[np.int64]
IMAGES: Final = ("new", "old")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An image of a row that differs from its checksum, with everything needed to investigate it."""

    position: int
    """Row number in the block."""
    table: str
    handle: str
    """The integer handle, or the hex bytes of a clustered key."""
    commit_ts: int
    image: str
    """`new` or `old`."""
    check: Check
    key: bytes
    value: bytes
    old_value: bytes

    def render(self) -> str:
        """One line for logs and errors, without row values."""
        found = self.check
        return (
            f"the {self.image} value of {self.table} handle {self.handle} at commit ts {self.commit_ts} "
            f"carries checksum {found.expected} (version {found.version}), its bytes give {found.found}"
        )


@dataclass(slots=True)
class Tally:
    """Numbers of images (an update has two) by the outcome of their comparison."""

    matched: int = 0
    unchecked: int = 0
    """Images without a checksum: in the old row format, or written while TiDB's switch was off."""
    excused: int = 0
    """Old values of version 0 that differ. This is normal after a column was added or dropped."""
    mismatched: int = 0


def verify(block: pa.RecordBatch, group: RowBlock, checks: Checks, tally: Tally) -> list[Mismatch]:
    """Complete the comparison that `mount` began for `group`, whose rows are in `block`; returns mismatches.

    It compares version 0, adds all outcomes to `tally`, and writes them back into `checks`, for
    `with_checksums`.
    """
    # docs/guarantees.md#a-damaged-row-is-noticed: every image of the group is looked at.
    outcomes = checks.outcomes[group.position]
    is_changed = _ask_the_plain_twin(block, group, outcomes, checks)
    if (outcomes == BY_COLUMNS).any():
        _compare_columns(group, outcomes, checks.carried[group.position])
        _mark_lost_versions(block, group, outcomes)
        is_changed = True
    if is_changed:
        checks.outcomes[group.position] = outcomes
    counts = np.bincount(outcomes.ravel(), minlength=len(Outcome))
    tally.matched += int(counts[Outcome.MATCHED])
    tally.unchecked += int(counts[Outcome.UNCHECKED])
    tally.excused += int(counts[Outcome.EXCUSED])
    tally.mismatched += int(counts[Outcome.MISMATCHED])
    return list(_mismatches(block, group, outcomes)) if counts[Outcome.MISMATCHED] else []


def with_checksums(group: RowBlock, checks: Checks) -> RowBlock:
    """The rows with the checksums that messages carry, as in TiCDC `cdc/entry/mounter.go`. Call after
    `verify`.

    An image with a checksum of any version gets the sum over its columns. If its raw bytes do not match, it
    gets the sum that it carries instead, so that a reader that computes the sum finds a mismatch as well.
    """
    outcomes, carried = checks.outcomes[group.position], checks.carried[group.position]
    of_images = checks.versions[group.position]
    found = np.zeros(len(group), dtype=CHECKSUM)
    versions = np.zeros((len(group), 2), dtype=np.uint8)
    summed = (outcomes == Outcome.MATCHED) | (outcomes == Outcome.EXCUSED) | (outcomes == Outcome.MISMATCHED)
    for at, (name, image) in enumerate((("current", group.new), ("previous", group.old))):
        versions[summed[:, at], at] = of_images[summed[:, at], at]
        raw = (outcomes[:, at] == Outcome.MISMATCHED) & (versions[:, at] > 0)
        found[name][raw] = carried[raw, at, 0]
        rows = np.flatnonzero(summed[:, at] & ~raw)
        found[name][rows] = column_sums(group.table, image, rows)
    found["version"] = np.where(group.op == DELETE, versions[:, 1], versions[:, 0])
    # One flag for both images: a reader sets the whole message aside.
    found["corrupted"] = (outcomes == Outcome.MISMATCHED).any(axis=1)
    found["known"] = (found["current"] != 0) | (found["previous"] != 0)
    return replace(group, checksums=found)


def _ask_the_plain_twin(
    block: pa.RecordBatch, group: RowBlock, outcomes: npt.NDArray[np.uint8], checks: Checks
) -> bool:
    """Check the images that only the plain decoder could decode: they have no outcome from the kernel.

    Returns whether there are any.
    """
    has = np.stack([group.op != DELETE, group.op != INSERT], axis=1)
    unchecked = np.argwhere(has & (outcomes == Outcome.NO_IMAGE)).tolist()
    for i, at in unchecked:
        entry = _entry(block, int(group.position[i]))
        data = entry["old_value" if at else "value"]
        found = checksum.check(group.table, entry["key"], data, old=bool(at))
        outcomes[i, at] = found.outcome
        checks.carried[group.position[i], at] = found.expected
        checks.versions[group.position[i], at] = max(found.version, 0)
    return bool(unchecked)


def _compare_columns(
    group: RowBlock, outcomes: npt.NDArray[np.uint8], carried: npt.NDArray[np.uint32]
) -> None:
    """Set the outcome of images that carry a sum over columns."""
    for at, image in enumerate((group.new, group.old)):
        rows = np.flatnonzero(outcomes[:, at] == BY_COLUMNS)
        sums = column_sums(group.table, image, rows)
        # While a schema change is in progress TiDB writes two sums, for the columns before and after it.
        matched = (sums == carried[rows, at, 0]) | (sums == carried[rows, at, 1])
        # An old image may be from before a change of columns, which changes its sum. A new one has the
        # columns of now.
        otherwise = Outcome.EXCUSED if at else Outcome.MISMATCHED
        outcomes[rows, at] = np.where(matched, Outcome.MATCHED, otherwise)


def _mark_lost_versions(block: pa.RecordBatch, group: RowBlock, outcomes: npt.NDArray[np.uint8]) -> None:
    """Count excused old images as mismatched if they look like version 0 only because of a damaged header."""
    names, old_values = block.column("key"), block.column("old_value")
    for i in np.flatnonzero(outcomes[:, 1] == Outcome.EXCUSED).tolist():
        row = int(group.position[i])
        if checksum.has_lost_its_version(old_values[row].as_py(), names[row].as_py()):
            outcomes[i, 1] = Outcome.MISMATCHED


def _entry(block: pa.RecordBatch, row: int) -> dict[str, Any]:
    found: dict[str, Any] = block.slice(row, 1).to_pylist()[0]
    return found


def _mismatches(
    block: pa.RecordBatch, group: RowBlock, outcomes: npt.NDArray[np.uint8]
) -> Iterator[Mismatch]:
    for i, at in np.argwhere(outcomes == Outcome.MISMATCHED).tolist():
        row = int(group.position[i])
        entry = _entry(block, row)
        key, values = entry["key"], (entry["value"], entry["old_value"])
        handle = keys.parse_record(key)
        yield Mismatch(
            position=row,
            table=group.table.name,
            handle=str(handle.int_handle) if handle.is_int else handle.handle.hex(),
            commit_ts=int(group.commit_ts[i]),
            image=IMAGES[at],
            check=checksum.check(group.table, key, values[at], old=bool(at)),
            key=key,
            value=values[0],
            old_value=values[1],
        )


# --- sums over columns ----------------------------------------------------------------------------------

_plans: WeakKeyDictionary[TableSchema, Int64s] = WeakKeyDictionary()


def column_sums(table: TableSchema, image: Image, rows: Int64s) -> npt.NDArray[np.uint32]:
    """The sums over columns (`checksum.column_sum`) of the rows with numbers `rows`, from their cells:
    uint32[n].

    Messages carry these sums for rows of every checksum version.
    """
    if table not in _plans:
        _plans[table] = cell_checksum.plan_of(table)
    return cell_checksum.sums(_plans[table], image, rows)
