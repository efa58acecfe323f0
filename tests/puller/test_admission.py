"""Scans of a store are bounded, urgent ones go first, and nothing that left the line comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.puller.admission import Admission


def test_urgent_ones_go_first_each_in_order_of_arrival() -> None:
    admission = Admission[str](2)
    for name, urgent in (("a", False), ("b", True), ("c", False), ("d", True)):
        admission.wait(1, name, urgent)
    assert [admission.next(1), admission.next(1), admission.next(1)] == ["b", "d", None]
    admission.done(1, "b")
    assert [admission.next(1), admission.next(1)] == ["a", None]
    assert admission.next(2) is None
    assert admission.drop(1) == ["c"]
    admission.done(1, "d")
    assert admission.next(1) is None


@given(st.data())
def test_never_more_than_the_limit_and_everybody_in_the_end(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 4))
    admission = Admission[int](limit)
    names = list(range(data.draw(st.integers(1, 20))))
    left = data.draw(st.sets(st.sampled_from(names)))
    scanning: list[int] = []
    seen: list[int] = []
    for name in names:
        admission.wait(7, name, data.draw(st.booleans()))
        if name in left:
            admission.done(7, name)
        while (found := admission.next(7)) is not None:
            scanning.append(found)
        assert len(scanning) <= limit
        if scanning and data.draw(st.booleans()):
            seen.append(scanning.pop(0))
            admission.done(7, seen[-1])
    while scanning or (found := admission.next(7)) is not None:
        if not scanning:
            assert found is not None
            scanning.append(found)
        seen.append(scanning.pop(0))
        admission.done(7, seen[-1])
        while (found := admission.next(7)) is not None:
            scanning.append(found)
    assert sorted(seen) == [name for name in names if name not in left]
