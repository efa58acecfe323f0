"""Decodes simple's rows in Avro in bulk: groups them by table version, and walks them with a kernel.

TiCDC writes the members of `data` and `old` in random order, so the kernel finds a member's column by a hash
of its name. The first row of a group shows which columns there are; rows with other columns form another
group. Rows that do not follow their definition go to the decoder behind this one, which also decodes JSON,
definitions and all other messages.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import Batch, Decoded, DecodedTable, Decoder, WireColumn
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import INTEGER_TYPES, DecodeError
from tidegate.codec.decoding.binary import Messages, Walked, table_of
from tidegate.codec.decoding.joined import join
from tidegate.codec.kernels import simple_decode_kernels as kernels
from tidegate.codec.kernels.avro_read_kernels import MAX_GROUPS, R_CURRENT, R_OP, R_PREVIOUS
from tidegate.codec.protocols.simple.definition import TIMESTAMP
from tidegate.codec.protocols.simple.plain import SimpleDecoder
from tidegate.kernel import address

Int64s = npt.NDArray[np.int64]
COLUMN_SETS: Final = 4
"""The most sets of columns, in one call, for rows of one table version; rows beyond that are decoded
plainly."""
MAX_PLANS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class _OwnedColumns:
    """The columns of a table version, in the form in which the kernel searches them."""

    lines: Int64s
    names: npt.NDArray[np.uint8]
    """The memory to which addresses in `lines` point."""
    table: npt.NDArray[np.int32]

    @property
    def bits(self) -> int:
        """The size of the hash table, as a power of two."""
        return len(self.table).bit_length() - 1


def _plan_of(columns: tuple[WireColumn, ...]) -> _OwnedColumns:
    names = [column.name.encode() for column in columns]
    held = np.frombuffer(b"".join(names) + bytes(8), dtype=np.uint8).copy()
    lines = np.zeros((len(columns), kernels.COLUMN_WORDS), dtype=np.int64)
    at = address(held)
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        lines[i, :3] = at, len(name), _form(column)
        at += len(name)
    lines[:, kernels.C_NEXT // 8] = sorted(range(len(columns)), key=lambda i: names[i])
    # More than twice as many places as columns: a search always ends at a free place.
    table = np.full(1 << (2 * len(columns)).bit_length(), -1, dtype=np.int32)
    for i in range(len(columns)):
        place = kernels.name_hash(*lines[i, :2].tolist()) & (len(table) - 1)
        while table[place] >= 0:
            place = (place + 1) & (len(table) - 1)
        table[place] = i
    return _OwnedColumns(lines, held, table)


def _form(column: WireColumn) -> int:
    if column.mysql_type == TIMESTAMP:
        return kernels.MOMENT
    if pa.types.is_floating(column.type):
        return kernels.SINGLE if column.type == pa.float32() else kernels.WIDE
    if column.mysql_type in INTEGER_TYPES:
        return kernels.UNSIGNED if column.type == pa.uint64() else kernels.SIGNED
    return kernels.BINARY if column.type == pa.binary() else kernels.STRING


class SimpleBulkDecoder:
    """A `Decoder` with the plain one's results, but in bulk. `otherwise` decodes all but rows in Avro."""

    def __init__(self, plain: SimpleDecoder, otherwise: Decoder) -> None:
        self._plain, self._otherwise = plain, otherwise
        self._plans: OrderedDict[tuple[WireColumn, ...], _OwnedColumns] = OrderedDict()
        zone = plain.time_zone.encode()
        self._zone, self._zone_size = np.frombuffer(zone + bytes(8), dtype=np.uint8).copy(), len(zone)

    def decode(self, batch: Batch) -> Decoded:
        """As `Decoder.decode`, but tables may be in another order than that of first appearance."""
        messages = Messages(batch)
        heads = np.empty((len(messages) + 1, kernels.HEAD_WORDS), dtype=np.int64)
        firsts = np.empty(MAX_GROUPS, dtype=np.int64)
        count = kernels.read_rows(len(messages), address(messages.spans), address(heads), address(firsts))
        if not count:
            return self._otherwise.decode(batch)
        groups = heads[: len(messages), kernels.H_GROUP // 8]
        parts, others = list[Decoded](), np.flatnonzero(groups < 0)
        if len(others):
            # As in the plain decoder, the definitions of a batch are read first, wherever in it they are.
            parts.append(self._otherwise.decode(messages.subset(others)))
        left = list[Int64s]()
        for number in range(count):
            rows = np.flatnonzero(groups == number)
            for _ in range(COLUMN_SETS):
                table, rows = self._group(messages, heads, rows, left)
                if table is None:
                    break
                parts += [Decoded(rows=[table])] if len(table) else []
                if not len(rows):
                    break
            left.append(rows)
        # Sorted, so that the other decoder gets the messages in the order of the topic.
        rest = np.sort(np.concatenate(left))
        if len(rest):
            parts.append(self._otherwise.decode(messages.subset(rest)))
        return join(parts)

    def _group(
        self, messages: Messages, heads: Int64s, rows: Int64s, left: list[Int64s]
    ) -> tuple[DecodedTable | None, Int64s]:
        """The rows with the same columns as the first one, and the other rows. Adds those that the plain
        decoder must check to `left`.
        """
        value = messages.values[int(rows[0])].as_py()
        try:
            key = self._plain.row_key(value)
        except (DecodeError, ValueError):
            return None, rows
        if not key.columns:
            return None, rows  # a damaged definition: Arrow cannot hold rows without columns
        plan = self._plan(key.columns)
        columns = len(key.columns)
        walked = Walked.of(rows, 2 * columns + 1)
        kernels.walk_rows(
            *(len(rows), address(rows), address(messages.spans), address(heads)),
            kernels.ColumnTable(address(plan.lines), columns, address(plan.table), plan.bits),
            kernels.Zone(address(self._zone), self._zone_size),
            walked.cells,
        )
        others = walked.rows[walked.result(R_OP) == 0]
        scales = [-1] * columns
        table = table_of(messages, key, scales, walked, columns)
        taken = np.flatnonzero(walked.result(R_OP))
        stated = (R_CURRENT, R_PREVIOUS)
        current, previous = (walked.result(word)[taken] for word in stated)
        sound = sums.matching(table, current, previous, self._plain.time_zone)
        if not sound.all():
            # The plain decoder decides about these: their sum is wrong, or could not be computed here.
            left.append(walked.rows[taken[~sound]])
            walked.results[taken[~sound], R_OP // 8] = 0
            table = table_of(messages, key, scales, walked, columns)
        if len(others) and others[0] == rows[0]:
            # The kernel could not walk the first row itself, so its columns do not help for the others.
            left.append(others[:1])
            others = others[1:]
        return table, others

    def _plan(self, columns: tuple[WireColumn, ...]) -> _OwnedColumns:
        found = self._plans.get(columns)
        if found is None:
            found = self._plans[columns] = _plan_of(columns)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return found
