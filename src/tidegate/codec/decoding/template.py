"""Decode templates: the form of the messages of one table, so that `codec.decode` can match them in bulk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import RowKey


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of an object, in any order. Several templates of a table may share one instance."""

    entries: list[tuple[bytes, int, int]]
    """(constant, form, cell): a constant begins with the name in quotes."""
    tail: bytes = b""
    """The text after each value."""
    partial: bool = False
    """Whether members may be missing. Then a member's value is that of the cell `shift` before its own."""
    shift: int = 0


Pieces = list[tuple[bytes, int, "int | Members"]]
"""(constant, form, cell or members); the forms are those of `template_kernels`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A table's messages: a list of pieces for the key, and three alternatives for the value."""

    key: RowKey
    lists: tuple[Pieces, ...]
    summed: bool = False
    """Whether the two cells after those of the columns hold the checksums of both images."""


@dataclass(frozen=True, slots=True)
class CellForm:
    """How messages contain the values of a column."""

    quoted: bool
    """Whether values are in quotes; otherwise they are numbers."""
    mode: int
    """The content of the quotes: TEXT, LATIN1, ... of `decode_kernels`; always TEXT for numbers."""
    decoded_as: pa.DataType | None = None
    """The type as which values are read before they are converted; None: the column's own type."""
    convert: Callable[[pa.Array, WireColumn], tuple[pa.Array, npt.NDArray[np.uint8]]] | None = None
    """Makes the column from these values, and flags rows with an invalid value by 1; None: no conversion."""


@dataclass(frozen=True, slots=True)
class Route:
    """The head of each row's message, up to the names that identify its table."""

    pieces: tuple[tuple[bytes, int], ...]
    """(constant, form): `template_kernels.STRING`, a name, or NUMBER."""
    example: Callable[[RowKey], bytes]
    """The beginning of a message of a table, longer than the text that the pieces match."""
    in_key: bool = False
    """Whether it is the head of the key; otherwise that of the value."""


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """The form in which a protocol writes rows."""

    framed: bool
    """Whether messages are batches of keys and values with lengths; otherwise a message is a row."""
    templates: Callable[[RowKey], list[Template]]
    """The templates of a table and column set that the plain decoder has decoded."""
    cells: Callable[[WireColumn], CellForm]
    """How messages contain the values of a column."""
    redefined: Callable[[Any], int] = lambda plain: 0
    """How often the plain decoder has learned a new meaning of rows that it had decoded before. When this
    number changes, templates, and rows decoded with them in the same batch, are no longer valid."""
    route: Route = Route((), lambda key: b"")
    """How the messages of one table are distinguished; without pieces all templates are tried."""
