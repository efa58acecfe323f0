import zlib

import pytest

from tests.golden_folder import count, lines
from tests.tidb.stored import UNKNOWN_WEIGHTS
from tidegate.errors import InvalidInput
from tidegate.tidb.types import collation, string, weights


@pytest.mark.golden
def test_golden_sort_keys_are_tidbs() -> None:
    for case in lines("keys/collation"):
        data = bytes.fromhex(case["hex"])
        assert case["text"] == (data.decode() if isinstance(case["text"], str) else {"hex": case["hex"]})
        for collate, theirs in case["sort_key"].items():
            if collate in UNKNOWN_WEIGHTS:
                count("keys", f"sort keys not compared, no weights: {collate}")
                continue
            assert string.sort_key(data, collate).hex() == theirs, (collate, case["text"])
            count("keys", f"sort keys, {collate}")


@pytest.mark.parametrize("collate", UNKNOWN_WEIGHTS)
def test_collations_whose_weights_are_not_here_are_refused(collate: str) -> None:
    with pytest.raises(InvalidInput, match=collate):
        string.sort_key(b"a", collate)


@pytest.mark.parametrize("collate", sorted(weights.KNOWN))
def test_a_key_ends_where_its_text_is_damaged(collate: str) -> None:
    assert string.sort_key(b"a\xe4\xb8b", collate) == string.sort_key(b"a", collate) != b""


def test_signs_beyond_the_first_plane_have_one_weight_but_under_0900() -> None:
    assert string.sort_key("a\U0001f600".encode(), "utf8mb4_unicode_ci") == b"\x0e\x33\xff\xfd"
    assert string.sort_key("a\U0001f600".encode(), "utf8mb4_0900_ai_ci") == b"\x1c\x47\x15\xfb"
    assert string.sort_key("中é\\".encode(), "gbk_chinese_ci").endswith(b"\x82\xc3\\")


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (0x9FD5, "fb419fd5"),  # Han of Unicode 9
        (0x9FD6, "fbc19fd6"),  # not yet
        (0xFA0E, "fb41fa0e"),
        (0x2B81D, "fb85b81d"),
        (0x2CEA1, "fbc5cea1"),  # where TiDB's table ends
        (0x2F800, "fbc5f800"),
        (0x17001, "fb008001"),  # Tangut
        (0xD7A3, "3c073c873ceb"),  # a syllable: its letters
        (0xFFFD, "fffd"),
        (0x301, ""),
    ],
)
def test_signs_that_the_table_of_0900_does_not_list_have_implicit_weights(code: int, key: str) -> None:
    assert string.sort_key(chr(code).encode(), "utf8mb4_0900_ai_ci").hex() == key


def test_the_file_of_weights_says_what_it_was_made_of() -> None:
    general, unicode, gbk, unicode_9 = (
        {0x61: b"\0A"},
        {0x61: b"\x0e\x33", 0: b"", 0x62: bytes(16)},
        {0x61: b"A", 0x4E2D: b"\xd1\xa7"},
        {0x61: b"\x1c\x47", 0: b"", 0x1100: b"\x3c\0", 0x1161: b"\x3d\0", 0x11A8: b"\x3e\0"},
    )
    found = weights.unpacked(zlib.decompress(weights.packed(general, unicode, gbk, unicode_9)))
    assert found["general"].key(b"ab") == b"\0A\0b"
    assert found["unicode"].key("a\0b中".encode()) == b"\x0e\x33" + bytes(16) + b"\xfb\x40\xce\x2d"
    assert found["gbk"].key("a中b".encode()) == b"A\xd1\xa7?"
    assert found["unicode 9"].key("a\0각가".encode()) == b"\x1c\x47\x3c\0\x3d\0\x3e\0\x3c\0\x3d\0"


@pytest.mark.parametrize(
    ("mysql_type", "charset", "collate", "needed"),
    [
        (15, "binary", "binary", False),
        (15, "utf8mb4", "utf8mb4_bin", True),
        (254, "utf8mb4", "utf8mb4_bin", False),
        (254, "utf8mb4", "utf8mb4_general_ci", True),
        (15, "utf8mb4", "utf8mb4_0900_bin", False),
        (254, "gbk", "gbk_bin", True),
        (254, "utf8mb4", "utf8mb4_0900_ai_ci", True),
    ],
)
def test_restored_data_is_kept_where_the_key_loses_something(
    mysql_type: int, charset: str, collate: str, needed: bool
) -> None:
    assert string.needs_restored_data(mysql_type, charset, collate) is needed


def test_gbk_bin_has_the_characters_that_pythons_gbk_lacks() -> None:
    """Two bytes of GB 18030: 80 characters, but not the euro sign nor the private use area."""
    found = {}
    for code in range(0x10000):
        sign = chr(code)
        if not 0xD800 <= code < 0xE000 and not sign.encode("gbk", "ignore"):
            key = string.sort_key(b"x" + sign.encode(), "gbk_bin")
            assert (
                key == string.encoded(f"x{sign}", "gbk_bin") == collation.key(b"x" + sign.encode(), "gbk_bin")
            )
            if key != b"x?":
                found[sign] = key[1:]
    assert len(found) == 80
    assert found["\u01f9"] == b"\xa8\xbf"
    assert {sign.encode("gb18030") for sign in found} == set(found.values())
    assert string.sort_key("€\ue000\U0001f600".encode(), "gbk_bin") == b"???"
    assert string.sort_key("€".encode(), "gb18030_bin") == b"\xa2\xe3"
