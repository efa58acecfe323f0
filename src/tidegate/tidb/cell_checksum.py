"""The columns' checksum of row images in cells: for whole blocks, over all or some columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidegate.kernel import address, buffer
from tidegate.model.cells import Image
from tidegate.model.schema import TableSchema
from tidegate.tidb.kernels import checksum as checksum_kernels
from tidegate.tidb.kernels.checksum import FORMS
from tidegate.tidb.kernels.json import JSON_GROWTH, STACK_WORDS
from tidegate.tidb.kernels.text import DECIMAL_TEXT, SLACK, CellWords
from tidegate.tidb.value import fsp

Int64s = npt.NDArray[np.int64]


def plan_of(table: TableSchema, columns: Sequence[int] | None = None) -> Int64s:
    """The plan of `sums` for these columns of a table (default: all), in the order of their ids."""
    chosen = range(len(table.columns)) if columns is None else columns
    ordered = sorted(chosen, key=lambda at: table.columns[at].id)
    lines = [[at, FORMS[table.columns[at].kind], fsp(table.columns[at])] for at in ordered]
    return np.array(lines, dtype=np.int64).reshape(-1, checksum_kernels.SUM_WORDS)


def sums(plan: Int64s, image: Image, rows: Int64s) -> npt.NDArray[np.uint32]:
    """The sum (`checksum.column_sum`) of the rows numbered in `rows`: uint32[n]."""
    out = np.empty(len(rows), dtype=np.uint32)
    if not len(rows):
        return out
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    width = int(plan[:, 0].max(initial=-1)) + 1
    longest = max(int(image.sizes[rows, :width].max(initial=0)), 0)
    # The longest text is that of a JSON value, or of a decimal.
    scratch = buffer(longest * JSON_GROWTH + DECIMAL_TEXT + SLACK)
    stack = np.empty(STACK_WORDS, dtype=np.int64)
    of_image = CellWords(address(image.words), address(image.sizes), image.words.shape[1])
    checksum_kernels.column_sums(
        *(len(rows), address(rows), of_image),
        checksum_kernels.SumLines(address(plan), len(plan)),
        *(address(scratch), address(stack), address(out)),
    )
    return out
