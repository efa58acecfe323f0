import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.grants import (
    Grant,
    GrantedRange,
    raised,
    settled,
    shared_out,
    writers_of,
)
from tidegate.control.metadata import (
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    feed_key,
    feed_of_key,
    grant_key,
)
from tidegate.errors import InvalidInput
from tidegate.model.span import Span


def test_values_survive_the_store() -> None:
    ranges = (GrantedRange(Span(b"", b"t"), (7, 2)), GrantedRange(Span(b"t", b""), (7, 3)))
    grant = Grant("f00d", (7, 3), 12, 4, ranges, {"c2": 6})
    assert Grant.from_bytes(grant.to_bytes()) == grant
    gone = settled(Grant("f00d", (7, 3), 12, 4))
    assert gone.fenced
    assert Grant.from_bytes(gone.to_bytes()) == gone
    status = FeedStatus(5, 9)
    assert FeedStatus.from_bytes(status.to_bytes()) == status
    error = FeedError("broken", "CDC:ErrX", 17, "127.0.0.1:8300")
    info = FeedInfo("kafka://a/b", {"filter": {}}, 1, 2, 3, "warning", "5f0c", error)
    assert FeedInfo.from_bytes(info.to_bytes()) == info


def test_keys_name_their_feed() -> None:
    feed = FeedId("default", "one")
    assert grant_key(42, feed, "c1") == "/tidegate/42/default/changefeed/grant/one/c1"
    assert feed_of_key(feed_key(42, feed, "info")) == (feed, "info")
    assert feed_of_key("/tidegate/42/owner") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"token":[1],"incarnation":1,"slots":1}'])
def test_a_damaged_grant_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        Grant.from_bytes(data)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a--b", "a_b", "a" * 129, "a/../b"])
def test_names_ticdc_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        FeedId.checked("default", name)


ALL, LOW, HIGH = Span(b"", b""), Span(b"", b"m"), Span(b"m", b"")


def test_a_grant_takes_ranges_and_names_their_giver_until_its_next_grant() -> None:
    stored: dict[str, Grant] = {}

    def grant(capture: str, seq: int, *ranges: Span, slots: int = 4) -> None:
        stored.update(raised(stored, capture, "i", (1, seq), ranges, slots))

    def held(capture: str) -> list[tuple[Span, int]]:
        return [(one.id, one.token[1]) for one in stored[capture].ranges]

    grant("a", 1, ALL)
    grant("b", 2, slots=2)
    assert (held("a"), held("b"), stored["b"].givers) == ([(ALL, 1)], [], {})
    grant("b", 3, HIGH)
    assert (held("a"), held("b"), dict(stored["b"].givers)) == ([], [(HIGH, 3)], {"a": 4})
    grant("a", 4, LOW, slots=2)
    assert (held("a"), held("b")) == ([(LOW, 4)], [(HIGH, 3)])
    assert (stored["a"].incarnation, stored["a"].slots) == (2, 4), "ids there ever were"
    assert stored["b"].givers == {}, "its next incarnation has fenced all that was a's"
    grant("b", 5, ALL)
    assert (held("a"), dict(stored["b"].givers)) == ([], {"a": 4})
    grant("b", 6, ALL)
    assert dict(stored["b"].givers) == {"a": 4}, "the incarnation before may not have come to it"
    assert stored["b"].incarnation == 4


def test_who_takes_from_one_that_had_not_fenced_its_givers_yet_fences_them() -> None:
    """`a` may still write: `b` has died between its grant and its first fence."""
    stored: dict[str, Grant] = {}
    for seq, (capture, slots) in enumerate([("a", 4), ("b", 2), ("c", 3)], 1):
        stored.update(raised(stored, capture, "i", (seq, 1), [ALL], slots))
    assert dict(stored["c"].givers) == {"a": 4, "b": 2}
    stored.update(raised(stored, "a", "i", (4, 1), [ALL], 1))
    assert dict(stored["a"].givers) == {"b": 2, "c": 3}, "and its own slots, which it fences anyway"
    assert stored["a"].slots == 4


def test_a_part_of_a_range_that_is_taken_takes_all_of_it() -> None:
    stored = {"a": Grant("i", (1, 1), 1, 4, (GrantedRange(LOW, (1, 1)), GrantedRange(HIGH, (1, 1))))}
    changed = raised(stored, "b", "i", (1, 2), [Span(b"c", b"d")], 4)
    assert [one.id for one in changed["a"].ranges] == [HIGH]


A, B, C = Span(b"", b"h"), Span(b"h", b"p"), Span(b"p", b"")


def shared(stored: dict[str, Grant], seq: int, **shares: list[Span]) -> dict[str, Grant]:
    """Return the grants that are stored after a round, before its givers are fenced."""
    return stored | shared_out(stored, "i", (1, seq), shares, dict.fromkeys(shares, 4))


def test_captures_that_exchange_ranges_name_each_other() -> None:
    stored = shared({}, 1, a=[A], b=[B, C])
    assert all(not one.givers for one in stored.values()), "nobody had anything"
    stored = shared(stored, 2, a=[B, C], b=[A])
    assert (stored["a"].givers, stored["b"].givers) == ({"b": 4}, {"a": 4})
    assert {one.token for one in stored.values()} == {(1, 2)}
    assert (stored["a"].incarnation, stored["b"].incarnation) == (2, 2)
    assert [one.id for one in stored["a"].ranges] == [B, C]


def test_the_next_round_names_again_whom_an_owner_did_not_come_to_fence() -> None:
    stored = shared({}, 1, a=[A, B, C])
    stored = shared(stored, 2, b=[A, B, C])  # and the owner dies before it has fenced a
    stored = shared(stored, 3, b=[A], c=[B, C])
    assert stored["b"].givers == {"a": 4}
    assert stored["c"].givers == {"a": 4, "b": 4}
    stored |= {name: settled(one) for name, one in stored.items()}
    stored = shared(stored, 4, b=[A], c=[B, C])
    assert all(not one.givers for one in stored.values()), "they were fenced, and nothing has moved"


def test_a_capture_without_a_share_has_no_proof() -> None:
    stored = shared({}, 1, a=[A], b=[B], c=[C])
    before = stored["c"]
    stored = shared(stored, 2, a=[A], b=[B, C])
    assert not before.is_proven_by(stored["c"])
    assert stored["c"].ranges == ()
    assert not stored["a"].givers, "it keeps what it had"
    assert stored["b"].givers == {"c": 4}
    grants = raised(stored, "c", "i", (1, 3), [A, B, C], 2)
    assert grants["c"].givers == {"a": 4, "b": 4}
    assert grants["c"].slots == 4, "ids that were used once are fenced for ever"


def test_a_dead_capture_is_fenced_once_and_again_only_after_it_returned() -> None:
    """Else an owner would fence all captures that there ever were whenever the key space is divided."""
    stored = shared({}, 1, a=[A], b=[B], c=[C])
    stored = shared(stored, 2, a=[A, B], b=[C])
    assert writers_of(stored) == {"a": 4, "b": 4, "c": 4}
    stored = {name: settled(one) for name, one in stored.items()}
    assert writers_of(stored) == {"a": 4, "b": 4}, "those with ranges may have left transactions open"
    stored = shared(stored, 3, a=[A], b=[B], c=[C])
    assert writers_of(stored) == {"a": 4, "b": 4, "c": 4}
    stored |= raised(stored, "a", "i", (1, 4), [A, B, C], 4)  # which is to fence b and c by itself
    assert writers_of(stored) == {"a": 4, "b": 4, "c": 4}
    stored |= raised(stored, "d", "i", (1, 5), [A, B, C], 4)  # a has not come to it
    stored = {name: settled(one) for name, one in shared(stored, 6, b=[A], d=[B, C]).items()}
    assert writers_of(stored) == {"b": 4, "d": 4}


KEYS = st.integers(0, 12).map(lambda number: bytes([number]) if number else b"")
EDGES = st.tuples(KEYS, KEYS).filter(lambda edges: not edges[1] or edges[0] < edges[1])
SPANS = st.lists(EDGES.map(lambda edges: Span(*edges)), max_size=4)


@given(st.dictionaries(st.sampled_from("abc"), SPANS), SPANS)
def test_givers_have_a_key_of_the_new_ranges(held: dict[str, list[Span]], new: list[Span]) -> None:
    """Also if ranges overlap."""
    stored = {
        name: Grant("i", (1, 1), 1, 4, tuple(GrantedRange(one, (1, 1)) for one in spans))
        for name, spans in held.items()
    }
    taken = shared_out(stored, "i", (1, 2), {"d": new}, {"d": 4})["d"]
    plain = {name for name, spans in held.items() if any(a.intersect(b) for a in spans for b in new)}
    assert taken.givers.keys() == plain
