"""Changes for tests: few keys and timestamps, so that ties and duplicates are common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from tidegate.eventstore.order import Entry
from tidegate.model.block import OP_DELETE, OP_PUT

FALLING: Final = ("idu" * 3, "ddduuuiii", "iiiuuuddd", "uiduid", "diddi")
"""Kinds of changes (insert, delete, update) over falling keys. In some of them the order by class of
operation and the order by key agree, in some they are opposite, in some neither."""


def entries(max_ts: int = 40, max_size: int = 120) -> st.SearchStrategy[list[Entry]]:
    """Lists of changes in any order."""
    keys = st.one_of(
        st.binary(min_size=0, max_size=3), st.sampled_from([b"t" * 30, b"t" * 30 + b"x", b"t" * 7])
    )
    return st.lists(
        st.builds(
            Entry,
            commit_ts=st.integers(1, max_ts),
            start_ts=st.integers(1, 4),
            op=st.sampled_from([1, 1, 2]),
            key=keys,
            value=st.sampled_from([b"", b"v", b"value" * 9]),
            old_value=st.sampled_from([b"", b"old" * 13]),
        ),
        max_size=max_size,
    )


def falling(kinds: Sequence[str], commit_ts: int = 100, start_ts: int = 90) -> list[Entry]:
    """A transaction with puts and deletes, in the order in which it was written: each key is below the last.

    Every second update changes the first letter of its value, as one of a unique key does.
    """
    found = []
    for number, kind in enumerate(kinds):
        key = b"key-%02d" % (len(kinds) - number)
        old = b"" if kind == "i" else (b"a0", b"b0")[number % 2]
        value = b"" if kind == "d" else b"a1"
        found.append(Entry(commit_ts, start_ts, OP_DELETE if kind == "d" else OP_PUT, key, value, old))
    return found
