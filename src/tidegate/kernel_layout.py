"""Layouts of the memory that kernels share with Python: declared once, by name, type, unit and meaning.

A layout is a run of fields without gaps. It gives the constants that kernels use, the accessors of a table of
such records, and a section of docs/internals/layouts.md.

    REG = Layout("registration", "R_", "A registration.", state=word("its state"), region=word("its region"))
    R_STATE, R_REGION = REG.words()                   # word numbers, for accessors
    reg_word, put_reg_word = REG.accessors()          # reg_word(registrations, number, R_STATE)

    JOB = Layout("job", "J_", "The input of a kernel.", rows=signed("rows"), data=pointer("where they are"))
    J_ROWS, J_DATA = JOB.offsets()                    # bytes, for load_i64(job + J_ROWS)

Kernels cannot read attributes of a layout, because numba does not know the class. numba compiles module
constants into the code instead, which costs nothing. A test proves that each constant has its field's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import inline, load_u64, store_u64

_SIZES: Final = {"u8": 1, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "address": 8, "run": 16}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its type, what it means, and its unit ("" for a plain number)."""

    type: str
    about: str
    unit: str = ""


def word(about: str, unit: str = "") -> Field:
    """An unsigned word."""
    return Field("u64", about, unit)


def signed(about: str, unit: str = "") -> Field:
    """A signed word."""
    return Field("i64", about, unit)


def half(about: str, unit: str = "") -> Field:
    """An unsigned half word."""
    return Field("u32", about, unit)


def pointer(about: str, unit: str = "") -> Field:
    """A word that has an address; 0 means none if the field allows it."""
    return Field("address", about, unit)


def run(about: str, unit: str = "") -> Field:
    """An address, and how much is there: two words."""
    return Field("run", about, unit)


class Layout:
    """A record of fixed size, little-endian, its fields one after the other in the order given."""

    def __init__(self, name: str, prefix: str, about: str, /, **fields: Field) -> None:
        """`prefix`: comes before a field's name in its constant. A field named `from_` is `FROM` there."""
        self.name, self.prefix, self.about = name, prefix, about
        self.fields: Final = {field.rstrip("_"): kind for field, kind in fields.items()}
        sizes = [_SIZES[field.type] for field in self.fields.values()]
        places = [sum(sizes[:i]) for i in range(len(sizes))]
        assert all(place % min(size, 8) == 0 for place, size in zip(places, sizes, strict=True)), (
            f"{name}: alignment"
        )
        self._offsets: Final = tuple(places)
        self.size: Final = sum(sizes)
        """Bytes of a record."""

    def offsets(self) -> tuple[int, ...]:
        """Where each field begins, in bytes from the record's address."""
        return self._offsets

    def words(self) -> tuple[int, ...]:
        """The number of each field's word; for records of words only."""
        assert self.size == 8 * len(self.fields), f"{self.name} has fields that are no words"
        return tuple(range(len(self.fields)))

    def constant(self, field: str) -> str:
        """The name of the constant of a field."""
        return self.prefix + field.upper()

    def accessors(self) -> tuple[Callable[[int, int, int], Any], Callable[[int, int, int, Any], None]]:
        """(read, write) of a word of record `number` of a table, compiled inline: u64, unchecked."""
        words = len(self.words())

        @inline
        def read(table: int, number: int, word: int) -> Any:
            return load_u64(table + 8 * (words * number + word))

        @inline
        def write(table: int, number: int, word: int, value: Any) -> None:
            store_u64(table + 8 * (words * number + word), value)

        return read, write

    def record(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """A record of words with these values, in the order of the fields."""
        assert len(values) == len(self.words()), f"{self.name} has {len(self.words())} words"
        return np.array(values, dtype=np.int64)
