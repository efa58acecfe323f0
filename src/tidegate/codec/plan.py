"""A table's encode plan: what `codec.kernels.encode_kernels` needs to know of one table version under given
options.

A protocol builds the plan with a `Writer`: text, values, and the text after them, first for the key and then
for each operation. All constants are in one run of bytes. Pieces refer to it by offset, until
`EncodePlan.bind` turns the offsets into addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.codec.kernels import connect_kernels, job_kernels, piece_kernels, text_kernels
from tidegate.codec.kernels import encode_kernels as kernels
from tidegate.errors import InvalidInput
from tidegate.kernel import address, buffer
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.schema import Column, Kind, TableSchema

Int64s = npt.NDArray[np.int64]
NEW, OLD = 0, 1
KEY: Final = 0
OPERATIONS: Final = (INSERT, UPDATE, DELETE)
"""A plan has pieces for `KEY`, then for each of these, in this order."""

NUMBERS: Final = {
    Kind.INT: piece_kernels.INT,
    Kind.YEAR: piece_kernels.INT,
    Kind.UINT: piece_kernels.UINT,
    Kind.ENUM: piece_kernels.UINT,
    Kind.SET: piece_kernels.UINT,
    Kind.BIT: piece_kernels.UINT,
}
"""Forms of the kinds whose text consists of digits."""
_TEXTS: Final = {
    Kind.DECIMAL: piece_kernels.DECIMAL,
    Kind.DATE: piece_kernels.DATE,
    Kind.DATETIME: piece_kernels.DATETIME,
    Kind.TIMESTAMP: piece_kernels.DATETIME,
    Kind.TIME: piece_kernels.TIME,
    Kind.JSON: piece_kernels.JSON,
    Kind.VECTOR: piece_kernels.VECTOR,
}
_WITH_FSP: Final = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one column's values are written, between the texts before and after them."""

    form: int
    """One of the forms in `kernels`; `param` is its parameter."""
    param: int = 0
    before: bytes = b""
    behind: bytes = b""
    """A short text (`text_kernels.SHORT_TEXT`), including the text that ends the cell."""
    null: bytes = b"null"
    """Written for NULL instead of before, value and behind. Any length, but short texts are faster."""
    names: tuple[bytes, ...] | None = None
    """For the forms `connect_kernels.TABLED`: the names of the elements, as messages contain them."""

    @property
    def room(self) -> int:
        """The most bytes of a value in addition to the bound of its form."""
        return sum(map(len, self.names)) + len(self.names) if self.names else 0


def bare(form: int, param: int = 0) -> Shape:
    """A JSON number."""
    return Shape(form, param)


def quoted(form: int, param: int = 0) -> Shape:
    """A JSON string; NULL without quotes."""
    return Shape(form, param, b'"', b'"')


def text_shape(column: Column, std: int) -> Shape | None:
    """The shape, in quotes, of decimals, times, JSON and vectors; None for a column of another kind.

    `std`: whether JSON's text is escaped as in Go's encoding/json (1) or as in easyjson (0).
    """
    if column.kind not in _TEXTS:
        return None
    param = max(column.decimal, 0) if column.kind in _WITH_FSP else std
    return quoted(_TEXTS[column.kind], param)


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan in memory, used by one encoder at a time.

    `EncodePlan.bind` lends it to an encoder, `EncodePlan.release` takes it back.
    """

    job: Int64s
    """The kernels' job: the words that are the same for every block are set, all others are 0."""
    job_at: int
    data: npt.NDArray[np.uint8]
    """The constants, which contain the build time."""
    owners: tuple[npt.NDArray[np.generic], ...]
    """The other arrays that the job points to."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodePlan:
    """The plan of one table version under one set of options."""

    framed: bool
    """Whether messages are batches of rows with lengths; otherwise a message is a row."""
    encode: Callable[[int], int]
    """The kernel that writes them: `kernels.encode_rows`, or a protocol's own."""
    max_rows: int
    """The most rows of a batch."""
    refused: dict[int, InvalidInput]
    """Operations that cannot be written for this table under these options, with the error."""
    constants: bytes
    stamps: tuple[int, ...]
    """Offsets in `constants` at which the build time is written."""
    pieces: Int64s
    """int64[pieces, PIECE_WORDS]; those of the key, and of each operation, are consecutive."""
    tabled: Int64s
    """The numbers of the pieces whose parameter is the offset of a table of names in `constants`."""
    first: tuple[int, ...]
    """For the key and each operation, the number of its first piece; then the number of pieces."""
    key_bound: int
    """The most bytes of one row's key."""
    fixed: Int64s
    """For each operation, the bound of everything except values of variable size."""
    most_fixed: int
    """The largest number in `fixed`."""
    typical: Int64s
    """For each operation, the expected size of the same parts, to size the buffer."""
    variables: Int64s
    """The number of columns of variable size, then (column, growth) of each."""
    most_growth: int
    """The largest of these growths, 0 if there is none."""
    quoted: bool
    """Whether Go's table of printable characters is needed."""
    json_columns: bool
    zoned: tuple[int, ...]
    """TIMESTAMP columns whose text is in the feed's time zone."""
    start_ts: bool
    """Whether messages contain the rows' start ts."""
    row_keys: bool
    """Whether messages contain the rows' keys in TiKV; a row's bound counts each key twice."""

    spare: list[Bound] = field(default_factory=list, repr=False)
    """Plans in memory that no encoder uses: as many as encoders have worked at the same time."""

    def bind(self, build_ms: int) -> Bound:
        """The plan in memory, with the build time written into it, for one encoder."""
        try:
            bound = self.spare.pop()
        except IndexError:
            bound = self._bound()
        if self.stamps:
            stamp = np.frombuffer(b"%d" % build_ms, dtype=np.uint8)
            for offset in self.stamps:
                bound.data[offset : offset + len(stamp)] = stamp
        return bound

    def release(self, bound: Bound) -> None:
        """Take back a plan that its encoder no longer uses."""
        # The next encoder must not continue where this one stopped. All other words are the same for every
        # block.
        bound.job[_STATE] = 0
        self.spare.append(bound)

    def _bound(self) -> Bound:
        # A copy with spare bytes at its end, because kernels copy constants 32 bytes at a time.
        data = buffer(len(self.constants))
        data[: len(self.constants)] = np.frombuffer(self.constants, dtype=np.uint8)
        pieces, base = self.pieces.copy(), address(data)
        pieces[:, piece_kernels.P_CONST // 8] += base
        pieces[:, piece_kernels.P_OPEN // 8] += base
        if len(self.tabled):
            pieces[self.tabled, piece_kernels.P_PARAM // 8] += base
        table, begin = np.zeros(8, dtype=np.int64), address(pieces)
        for number in (KEY, *OPERATIONS):
            table[2 * number] = begin + piece_kernels.PIECE_BYTES * self.first[number]
            table[2 * number + 1] = self.first[number + 1] - self.first[number]
        job = np.zeros(job_kernels.JOB_WORDS, dtype=np.int64)
        for word, value in (
            (job_kernels.J_PIECES, address(table)),
            (job_kernels.J_VARIABLES, address(self.variables)),
            (job_kernels.J_FIXED, address(self.fixed)),
            (job_kernels.J_MAX_ROWS, self.max_rows),
            (job_kernels.J_FRAMED, self.framed),
        ):
            job[word // 8] = value
        return Bound(job, address(job), data, (pieces, table))


_STATE: Final = slice(job_kernels.J_AT // 8, None)
"""The words of a job that a kernel changes."""


@dataclass(slots=True)
class Writer:
    """Writes the pieces of the key, then of each operation. Text is held back until a value follows it."""

    constants: bytearray = field(default_factory=bytearray)
    pieces: list[list[int]] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0])
    waiting: int = 0
    rooms: list[int] = field(default_factory=list)
    """The most bytes of each piece in addition to its constant and the bound of its form."""
    tables: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    """The offsets of the tables of names."""

    def text(self, data: bytes) -> None:
        """Add bytes that messages contain unchanged."""
        self.constants += data

    def stamp(self, digits: int) -> None:
        """Add space for the build time."""
        self.stamps.append(len(self.constants))
        self.constants += b"0" * digits

    def number(self, form: int) -> None:
        """Add a number of the row itself: MILLISECONDS, COMMIT_TS, PHYSICAL_ID; in a key also ROW_ID."""
        self._piece(form)

    def cell(self, shape: Shape, position: int, image: int, end: bytes = b"") -> None:
        """Add a column's value, or NULL; `end` is the text after either."""
        param = shape.param if shape.names is None else self._table(shape.names)
        self.constants += shape.before
        self._piece(shape.form, position, image, param)
        null = shape.null + end
        long = len(null) > text_kernels.SHORT_TEXT
        ends = [
            text_kernels.short_text(shape.behind + end),
            piece_kernels.LONG_NULL if long else text_kernels.short_text(null),
            len(shape.before),
        ]
        piece = self.pieces[-1]
        piece[piece_kernels.P_TAIL // 8 : piece_kernels.P_ONLY_CHANGED // 8] = ends
        self.rooms[-1] = shape.room + len(null)
        if long:
            # A short text has 7 bytes at most; a longer one goes to the constants.
            piece[piece_kernels.P_OPEN // 8 :] = [len(self.constants), len(null)]
            self.constants += null
            self.waiting = len(self.constants)

    def _table(self, names: tuple[bytes, ...]) -> int:
        """The offset of the table of these names, in the form that `connect_kernels.put_name` reads. Text
        that is held back is moved after a new table.
        """
        if names not in self.tables:
            waiting = self.constants[self.waiting :]
            del self.constants[self.waiting :]
            self.tables[names] = len(self.constants)
            at = 8 * len(names) + 8
            self.constants += len(names).to_bytes(8, "little")
            for name in names:
                self.constants += at.to_bytes(4, "little") + len(name).to_bytes(4, "little")
                at += len(name)
            self.constants += b"".join(names)
            self.waiting = len(self.constants)
            self.constants += waiting
        return self.tables[names]

    def checksum(self, part: int) -> None:
        """Add a part of the row's checksum (`piece_kernels.SUM_VERSION` and the like). For a row without a
        checksum the kernel leaves out the part and the text before it.
        """
        self._piece(piece_kernels.CHECKSUM, param=part)

    def promoted(self, param: int, position: int, image: int) -> None:
        """Add a number that depends on the size of a column's value; `param`: a `piece_kernels.promotion`."""
        self._piece(piece_kernels.PROMOTED, position, image, param)

    def only_changed(self, opening: bytes) -> None:
        """Make the kernel leave out the last value, with the text before it, if it did not change.

        The first byte of that text separates such values; before the first one `opening` replaces that byte.
        """
        assert self.pieces[-1][piece_kernels.P_NULL // 8] != piece_kernels.LONG_NULL, (
            "it is where the opening is"
        )
        at = len(self.constants)
        self.constants += opening
        self.waiting = len(self.constants)
        self.pieces[-1][piece_kernels.P_ONLY_CHANGED // 8 :] = [1, at, len(opening)]

    def end_group(self) -> None:
        """Add the text held back, to be written only if some value since the last group was written."""
        self._piece(piece_kernels.GROUP_END)

    def flush(self) -> None:
        """Add the text held back as a piece of its own, because the next value may be left out without it."""
        if len(self.constants) > self.waiting:
            self._piece(piece_kernels.CONSTANT)

    def end(self) -> None:
        """Finish the key, or an operation."""
        # The text held back belongs here. Otherwise the next operation would begin with it.
        self.flush()
        self.first.append(len(self.pieces))

    def _piece(self, form: int, cell: int = 0, image: int = NEW, param: int = 0) -> None:
        """Add a piece: the text held back, then a value."""
        self.rooms.append(0)
        words = [self.waiting, len(self.constants) - self.waiting, form, cell, image, param]
        self.pieces.append(words + [0] * (piece_kernels.PIECE_WORDS - len(words)))
        self.waiting = len(self.constants)

    def names(self, table: bytes) -> int:
        """Add a table that values refer to by its offset in the constants; call it before any text."""
        assert self.waiting == len(self.constants), "no text waits"
        self.constants += table
        self.waiting = len(self.constants)
        return self.waiting - len(table)

    def named(self, shape: Shape, position: int, table: int, size: int, image: int) -> None:
        """Add a column's value that consists of one or more names of a table, at most `size` bytes."""
        self.cell(shape, position, image)
        self.pieces[-1][piece_kernels.P_OPEN // 8 :] = [table, size]

    def plan(
        self,
        table: TableSchema,
        shapes: Sequence[Shape],
        *,
        framed: bool = False,
        max_rows: int = 1,
        refused: dict[int, InvalidInput] | None = None,
        utc: bool = False,
        encode: Callable[[int], int] | None = None,
        sizes: Mapping[int, int] = piece_kernels.FIXED_SIZE,
        growing: Sequence[tuple[int, int]] | None = None,
    ) -> EncodePlan:
        """The plan of everything written so far, with the shapes of all columns.

        `utc`: TIMESTAMPs are not converted to the feed's time zone. A protocol with a kernel of its own
        (`encode`) gives the `sizes` of its forms, and in `growing` (column, bytes per byte) of the columns of
        variable size.
        """
        assert len(self.first) == 2 + len(OPERATIONS), "a plan has a key and every operation"
        pieces = np.array(self.pieces, dtype=np.int64).reshape(-1, piece_kernels.PIECE_WORDS)
        parts = [pieces[self.first[number] : self.first[number + 1]] for number in (KEY, *OPERATIONS)]
        rooms = [
            sum(self.rooms[self.first[number] : self.first[number + 1]]) for number in (KEY, *OPERATIONS)
        ]
        key_bound = _fixed(parts[KEY], sizes) + rooms[KEY] + job_kernels.KEY_SLACK if len(parts[KEY]) else 0
        # The keys of batches go to a part of the buffer of their own, which `blocks` sizes by the number of
        # rows.
        own = 0 if framed else key_bound
        forms = [shape.form for shape in shapes]
        if growing is None:
            growing = _growing(parts[KEY], forms, framed=framed)
        fixed = [_fixed(part, sizes) + room + own + 128 for part, room in zip(parts, rooms, strict=True)]
        return EncodePlan(
            framed=framed,
            encode=encode or kernels.encode_rows,
            max_rows=max_rows,
            refused=refused or {},
            constants=bytes(self.constants),
            stamps=tuple(self.stamps),
            pieces=pieces,
            tabled=np.flatnonzero(np.isin(pieces[:, piece_kernels.P_FORM // 8], connect_kernels.TABLED)),
            first=tuple(self.first),
            key_bound=key_bound,
            fixed=np.array(fixed, dtype=np.int64),
            most_fixed=max(fixed),
            typical=np.array([_typical(part) + own for part in parts], dtype=np.int64),
            variables=np.array([len(growing), *(word for pair in growing for word in pair)], dtype=np.int64),
            most_growth=max((growth for _, growth in growing), default=0),
            quoted=piece_kernels.QUOTED in forms,
            start_ts=bool((pieces[:, piece_kernels.P_FORM // 8] == piece_kernels.START_TS).any()),
            row_keys=bool((pieces[:, piece_kernels.P_FORM // 8] == piece_kernels.ROW_KEY).any()),
            json_columns=piece_kernels.JSON in forms or connect_kernels.RAW_JSON in forms,
            zoned=tuple(
                i for i, column in enumerate(table.columns) if column.kind is Kind.TIMESTAMP and not utc
            ),
        )


def _growing(key: Int64s, forms: Sequence[int], *, framed: bool) -> list[tuple[int, int]]:
    """Columns of variable size, and the most bytes that each byte of their values becomes."""
    cell, form = piece_kernels.P_CELL // 8, piece_kernels.P_FORM // 8
    # A column that is also in the key is written twice.
    keyed = [int(piece[cell]) for piece in key if int(piece[form]) in piece_kernels.VALUE_FACTOR]
    assert not (framed and keyed), "keys of batches have no values of variable size"
    return [
        (i, piece_kernels.VALUE_FACTOR[form] * (1 + keyed.count(i)))
        for i, form in enumerate(forms)
        if form in piece_kernels.VALUE_FACTOR
    ]


def _constants(part: Int64s) -> int:
    lengths = part[:, piece_kernels.P_LENGTH // 8] + part[:, piece_kernels.P_OPEN_LENGTH // 8]
    return int(lengths.sum()) + text_kernels.SHORT_TEXT * len(part)


def _fixed(part: Int64s, sizes: Mapping[int, int]) -> int:
    """The bound of an operation, without the bytes that depend on values of variable size."""
    return _constants(part) + sum(sizes.get(int(form), 64) for form in part[:, piece_kernels.P_FORM // 8])


def _typical(part: Int64s) -> int:
    keys = int((part[:, piece_kernels.P_FORM // 8] == piece_kernels.ROW_KEY).sum())
    return _constants(part) + 6 * len(part) + 28 * keys + 8
