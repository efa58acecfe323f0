"""Which entries a quarantine file has already: exact, and small."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.consumer.applying import known_places
from tidegate.consumer.applying.known_places import BadPlace, KnownPlaces

PLACES = st.lists(
    st.tuples(st.sampled_from(["", "a"]), st.integers(0, 1), st.integers(0, 4), st.integers(-1, 2))
)


def entry(place: BadPlace) -> dict[str, Any]:
    topic, partition, offset, seq = place
    where = {"topic": topic} if topic else {}
    return {"where": where | {"partition": partition, "offset": offset} | ({"seq": seq} if seq >= 0 else {})}


@given(PLACES, st.lists(PLACES, max_size=4), PLACES, st.integers(0, 4))
@settings(deadline=None)
def test_it_is_a_set(read: Any, added: Any, asked: Any, fresh: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_places, "FRESH_MAX", fresh)
        known, oracle = KnownPlaces(map(entry, read)), set(read)
        for places in added:
            known.add(iter(places))
            oracle.update(places)
            assert len(known) == len(oracle)
        assert {place for place in asked if place in known} == oracle & set(asked)


def test_an_entry_takes_few_bytes() -> None:
    """A file at its limit of 1 GiB has millions of them."""
    count = 200_000

    def entries() -> Iterator[dict[str, Any]]:
        return (entry(("t", at % 3, at, 0)) for at in range(count))

    tracemalloc.start()
    known = KnownPlaces(entries())
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(known) == count
    assert held < 16 * count
    assert peak < 80 * count
