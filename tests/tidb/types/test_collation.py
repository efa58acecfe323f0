"""Keys of texts against those recorded from TiDB's collators."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tidegate.tidb.types import collation, string, weights

RECORDED = list(lines("keys/collation"))
NAMES = sorted({name for record in RECORDED for name in record["sort_key"]})


@pytest.mark.golden
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_equal_and_ordered_as_in_tidb(name: str) -> None:
    """The order is compared only where one is promised."""
    assert name in collation.KNOWN
    ours = [collation.key(bytes.fromhex(record["hex"]), name) for record in RECORDED]
    theirs = [bytes.fromhex(record["sort_key"][name]) for record in RECORDED]
    count("keys", "collation keys", len(ours))
    if collation.is_ordered(name):
        assert ours == theirs
    for i, (one, wanted) in enumerate(zip(ours, theirs, strict=True)):
        same = [other == one for other in ours[:i]]
        assert same == [other == wanted for other in theirs[:i]], RECORDED[i]["text"]


def test_general_ci_leaves_case_and_accents_of_living_letters_out() -> None:
    def key(text: str) -> bytes:
        return collation.key(text.encode(), "utf8mb4_general_ci")

    assert key("Ünïcödé ÀÇ") == key("unicode ac")
    assert key("Ёлка") == key("елка")
    assert key("йод") != key("иод")
    assert key("Ἀθῆναι") == key("ΑΘΗΝΑΙ")
    assert key("straße") == key("strase")
    assert key("😀") == key("🎉")


def test_text_that_is_not_utf8_is_its_own_key() -> None:
    assert collation.key(b"\xff\xfe", "utf8mb4_general_ci") == b"\xff\xfe"


@given(st.text(max_size=12), st.sampled_from(sorted(weights.KNOWN)))
@settings(deadline=None)
def test_texts_are_compared_by_the_keys_that_tidb_stores(text: str, name: str) -> None:
    assert collation.key(text.encode(), name) == string.sort_key(text.encode(), name)


def test_letters_of_any_script_are_equal_where_tidb_says_so() -> None:
    def key(text: str, name: str) -> bytes:
        return collation.key(text.encode(), name)

    assert key("ⅷ", "utf8mb4_unicode_ci") == key("VIII", "utf8mb4_unicode_ci")
    assert key("𝔸", "utf8mb4_0900_ai_ci") == key("a", "utf8mb4_0900_ai_ci")
    assert key("각", "utf8mb4_0900_ai_ci") != key("가", "utf8mb4_0900_ai_ci")
