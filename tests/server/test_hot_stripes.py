"""How even a division is if 1 % of the tables get 90 % of the bytes: the figures of docs/captures.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pytest

from tidegate.control.share import Piece, load_of, share
from tidegate.model.span import Span
from tidegate.server.catalogue.stripes import Stripes, chosen_width, ids_of, table_task

ALL: Final = Span(b"", b"")
TABLES: Final = range(1000, 21_000, 2)
"""10,000 tables as TiDB numbers them: each second id."""


def greatest(width: int, hot: Collection[int], captures: int) -> float:
    """The greatest load of a capture by the mean, if the `hot` tables have 90 % of the bytes."""
    tasks = Stripes(width).begin([table_task(table, 1) for table in TABLES])
    cold = 0.1 / (len(TABLES) - len(hot))
    loads = dict.fromkeys(TABLES, cold) | dict.fromkeys(hot, 0.9 / len(hot))
    tasks = tuple(sorted(tasks, key=lambda task: task.span.start))
    pieces = [Piece(task.span, 1e9 * sum(loads[table] for table in ids_of(task))) for task in tasks]
    names = [f"c{at}" for at in range(captures)]
    found = load_of(share(ALL, pieces, names, {}), pieces)
    return max(found.values()) * captures / sum(found.values())


@pytest.mark.parametrize(
    ("captures", "scattered", "neighbours", "apart"),
    [(3, 1.02, 2.70, 1.01), (10, 1.09, 9.02, 1.06), (100, 2.96, 90.16, 1.19)],
)
def test_one_hot_stripe_bounds_how_even_a_division_gets(
    captures: int, scattered: float, neighbours: float, apart: float
) -> None:
    width = chosen_width(TABLES)
    assert (width, len(Stripes(width).begin([table_task(table, 1) for table in TABLES]))) == (512, 41)
    far, near = TABLES[::100], [table for table in TABLES if 4096 <= table < 4296]
    assert len(far) == len(near) == len(TABLES) // 100
    found = [greatest(*each, captures) for each in ((width, far), (width, near), (1, near))]
    assert [round(one, 2) for one in found] == [scattered, neighbours, apart]
