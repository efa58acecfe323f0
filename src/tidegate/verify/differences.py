"""Finds how two small sets of rows differ, by key, exactly. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidegate.consumer.applying.net_effect import factorize
from tidegate.consumer.comparison import canonical

Row = dict[str, Any]
DifferenceKind = Literal["changed", "missing", "extra"]


@dataclass(frozen=True, slots=True)
class Difference:
    """All rows of one key for which the two sides differ.

    In a table without a key: one content, which the sides have a different number of times.
    """

    key: Row
    source: tuple[Row, ...]
    target: tuple[Row, ...]

    @property
    def kind(self) -> DifferenceKind:
        """missing: only the source has it; extra: only the target; changed: both, but not the same."""
        if not self.target:
            return "missing"
        return "changed" if self.source else "extra"

    @property
    def columns(self) -> list[str]:
        """The columns that differ, if each side has one row; otherwise none."""
        if len(self.source) != 1 or len(self.target) != 1:
            return []
        one, other = self.source[0], self.target[0]
        return [name for name in one if one[name] != other[name]]


def differences(source: pa.Table, target: pa.Table, key: Sequence[str]) -> list[Difference]:
    """The differences, sorted by key. The tables have the same schema, and all rows of each key they have."""
    both = pa.concat_tables([canonical(source, source.schema), canonical(target, source.schema)])
    if not both.num_rows:
        return []
    here = np.arange(both.num_rows) < source.num_rows
    # Numbered together, so that equal rows of the two sides have the same number.
    content = factorize(both)
    size = int(content.max()) + 1
    # Counted, not compared as sets: a table without a key may have equal rows.
    balance = np.bincount(content[here], minlength=size) - np.bincount(content[~here], minlength=size)
    named = factorize(both.select(key)) if key else content
    # All rows of such a key, also those that both sides have, because a repair replaces the whole key.
    differing = np.isin(named, named[balance[content] != 0])
    rows = both.take(np.flatnonzero(differing)).to_pylist()
    groups: dict[int, tuple[list[Row], list[Row]]] = {}
    for row, of, at_source in zip(rows, named[differing].tolist(), here[differing].tolist(), strict=True):
        groups.setdefault(of, ([], []))[0 if at_source else 1].append(row)
    names = list(key) or both.column_names
    found = [
        Difference({name: (one or other)[0][name] for name in names}, tuple(one), tuple(other))
        for one, other in groups.values()
    ]
    return sorted(found, key=lambda difference: _sortable(difference.key))


def _sortable(key: Row) -> tuple[tuple[bool, Any], ...]:
    """NULL first; vectors, which have no order of their own, by their text."""
    return tuple(
        (value is not None, str(value) if isinstance(value, list) else value if value is not None else 0)
        for value in key.values()
    )
