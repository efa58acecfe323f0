"""Changes for tests: few keys and timestamps, so that ties and duplicates are common."""

from __future__ import annotations

from hypothesis import strategies as st

from tidegate.eventstore.order import Entry


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
