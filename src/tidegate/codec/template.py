"""Decode templates: what the messages of one table look like, for `codec.decode` to match in bulk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.assemble import RowKey
from tidegate.codec.base import WireColumn


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of an object, in any order; one instance may stand in several templates of a table."""

    entries: list[tuple[bytes, int, int]]
    """(constant, form, cell): a constant begins with the name in quotes."""
    tail: bytes = b""
    """What stands behind each value."""
    partial: bool = False
    """Whether some may be missing; a missing one's value is that of the cell `shift` before its own."""
    shift: int = 0


Pieces = list[tuple[bytes, int, "int | Members"]]
"""(constant, form, cell or members); the forms are those of `match_kernels`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A table's messages: the list of pieces of the key, and three alternatives for the value."""

    key: RowKey
    lists: tuple[Pieces, ...]
    summed: bool = False
    """Whether the checksums of both images stand in the two cells behind those of the columns."""


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the values of a column stand in messages."""

    quoted: bool
    """In quotes; False: bare numbers."""
    mode: int
    """What the quotes hold: TEXT, LATIN1, ... of `decode_kernels`; of numbers always TEXT."""
    stands_as: pa.DataType | None = None
    """What the values are taken as before they are converted; None: the column's own type."""
    convert: Callable[[pa.Array, WireColumn], tuple[pa.Array, npt.NDArray[np.uint8]]] | None = None
    """Makes the column of them, and tells by 1 the rows that hold none of its values; None: they are it."""


@dataclass(frozen=True, slots=True)
class Route:
    """What stands at the head of each row's message, up to the names that tell its table."""

    pieces: tuple[tuple[bytes, int], ...]
    """(constant, form): `match_kernels.STRING`, a name, or NUMBER."""
    example: Callable[[RowKey], bytes]
    """The head of a message of a table, a little more than the pieces take."""
    in_key: bool = False
    """Of the key; False: of the value."""


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """A protocol's way of writing rows."""

    framed: bool
    """Messages are batches of keys and values with lengths; False: a message is a row."""
    templates: Callable[[RowKey], list[Template]]
    """The templates of a table and column set that the plain decoder has met."""
    cells: Callable[[WireColumn], CellForm]
    """How the values of a column stand in messages."""
    redefined: Callable[[Any], int] = lambda plain: 0
    """How often the plain decoder has learned that rows mean something else than those before: then what was
    learned of those, and decoded by it in the same batch, does not hold."""
    route: Route = Route((), lambda key: b"")
    """How messages of one table are told from those of others; without pieces all templates are tried."""
