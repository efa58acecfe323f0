"""Which partition a dispatcher chooses for decoded rows, computed from what the messages hold. Pure.

The hash is TiCDC's (`dispatcher.partitions`), over the texts in the messages. If the producer's rules are not
given, the dispatcher is guessed: by table or by the handle key, whichever fits all rows of a table so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import DecodedTable, WireColumn
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.partitions import CONFLICT
from tidegate.dispatcher.router import Router
from tidegate.model.cells import DELETE
from tidegate.model.schema import Kind
from tidegate.tidb.text import value_text

GUESSES: Final = (DispatchRule(partition="table"), DispatchRule(partition="index-value"))
ENOUGH: Final = 10_000
"""With so many rows of a table on the partition of its name, its dispatcher is by table, not by chance."""
UNKNOWN: Final = -1
"""In place of a partition: the message does not have what the dispatcher hashed."""
BROKEN: Final = "\ufffd"
"""The replacement character, in a text whose bytes were not UTF-8."""


@dataclass(slots=True)
class _Guess:
    left: list[DispatchRule] = field(default_factory=lambda: list(GUESSES))
    rows: int = 0


class Placement:
    """The placement of one topic's rows. `strict_null`: a NULL is hashed as classic TiCDC does."""

    def __init__(self, partitions: int, router: Router | None, *, strict_null: bool = True) -> None:
        self._count, self._router, self._strict_null = partitions, router, strict_null
        self._guesses: dict[str, _Guess] = {}
        self._rules: dict[str, DispatchRule] = {}
        self._by_tables: dict[str, int] = {}
        """The partition of a table's rows if the `conflict` dispatcher places that table by its name."""

    def look(self, table: DecodedTable, partition: int) -> tuple[list[tuple[int, int]], int, str]:
        """Compare rows with the partition on which they are. Returns misplaced rows with the partition where
        they belong, how many rows cannot be checked, and the rule's name. Without rules nothing is wrong: a
        guess that does not fit is discarded.
        """
        name = f"{table.schema}.{table.table}"
        if self._router is None:
            guess = self._guesses.setdefault(name, _Guess())
            guess.rows += len(table)
            guess.left = [rule for rule in guess.left if self._fits(table, rule, partition)]
            if guess.rows > ENOUGH and self._count > 1:
                # By the handle key, so many rows would not all be on the one partition that the table's name
                # gives.
                del guess.left[1:]
            return [], 0, ""
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = self._router.rule_of(table.schema, table.table)
        places = self._places(table, rule)
        if rule.partition == CONFLICT:
            by_table = self._by_tables.setdefault(name, self._by_table(table))
            if partition == by_table:
                # A table whose unique values cannot be tracked goes by table, and messages do not say which.
                places[:] = partition
        wrong = np.flatnonzero((places != partition) & (places != UNKNOWN))
        unknown = int((places == UNKNOWN).sum())
        return [(int(i), int(places[i])) for i in wrong], unknown, rule.partition

    def may_move(self, table: str, places: tuple[int, int]) -> bool:
        """Whether a table's dispatcher may put a row on one of two partitions and later on the other.

        A `conflict` dispatcher does so at a DDL after which it places the table by its name, or by its handle
        key again.
        """
        rule = self._rules.get(table)
        if rule is None:
            return False
        if rule.partition == CONFLICT:
            # Only to or from the table's own partition; between two others it would be a violation.
            return self._by_tables.get(table) in places
        return rule.partition in ("ts", "columns") or bool(rule.index)

    def words(self) -> dict[str, str]:
        """The dispatcher of each table, as given or as guessed so far, in words."""
        found = {name: f"{rule.partition}, as given" for name, rule in self._rules.items()}
        for name, guess in self._guesses.items():
            if self._count == 1:
                found[name] = "one partition"
            elif guess.left:
                found[name] = " or ".join(rule.partition for rule in guess.left) + ", as it seems"
            else:
                found[name] = "neither table nor index-value"
        return found

    def _fits(self, table: DecodedTable, rule: DispatchRule, partition: int) -> bool:
        places = self._places(table, rule)
        return bool(((places == partition) | (places == UNKNOWN)).all())

    def _places(self, table: DecodedTable, rule: DispatchRule) -> npt.NDArray[np.int64]:
        """int64[rows]: the partition of each, or UNKNOWN."""
        count, size = self._count, len(table)
        if rule.partition == "ts":
            return (table.commit_ts % np.uint64(count)).astype(np.int64)
        if rule.partition in ("table", "default"):
            return np.full(size, self._by_table(table), dtype=np.int64)
        seed = crc32((table.schema + table.table).encode())
        hashed = self._hashed(table, rule)
        if hashed is None:
            return np.full(size, UNKNOWN, dtype=np.int64)
        states = [seed] * size
        unknown = np.zeros(size, dtype=np.bool_)
        deleted = (table.op == DELETE).tolist()
        for column in hashed:
            self._add(column, table, deleted, states, unknown)
        places = np.array([state % count for state in states], dtype=np.int64)
        places[unknown] = UNKNOWN
        return places

    def _by_table(self, table: DecodedTable) -> int:
        return crc32((table.schema + table.table).encode()) % self._count

    def _hashed(self, table: DecodedTable, rule: DispatchRule) -> list[WireColumn] | None:
        """The columns whose values are hashed; None if the message does not name them, or lacks some."""
        if rule.partition == "columns":
            by_name = {column.name.lower(): column for column in table.columns}
            wanted = [by_name.get(name.lower()) for name in rule.columns]
            found = [column for column in wanted if column is not None]
            return found if len(found) == len(wanted) else None
        if rule.index:
            return None  # messages do not name indexes
        return [column for column in table.columns if column.key] or None

    def _add(
        self,
        column: WireColumn,
        table: DecodedTable,
        deleted: list[bool],
        states: list[int],
        unknown: npt.NDArray[np.bool_],
    ) -> None:
        """Fold a column into the hash of each row; mark rows whose value is not in the message as unknown."""
        new, old = _values(table.new, column.name), _values(table.old, column.name)
        name, kind = column.name.encode(), _kind(column.type)
        for i, gone in enumerate(deleted):
            values = old if gone else new
            value = values[i] if values is not None else None
            if value is None:
                unknown[i] |= values is None or not self._strict_null
                text = b"null"
            else:
                # The producer hashed the original bytes, which the message has lost.
                unknown[i] |= isinstance(value, str) and BROKEN in value
                text = value_text(kind, value)
            states[i] ^= crc32(name + text)


def _values(image: pa.RecordBatch | None, name: str) -> list[Any] | None:
    return None if image is None else image.column(name).to_pylist()


def _kind(of: pa.DataType) -> Kind:
    return Kind.FLOAT if pa.types.is_float32(of) else Kind.DOUBLE
