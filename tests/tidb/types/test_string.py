import zlib

import pytest

from tests.golden_folder import count, lines
from tests.tidb.stored import UNKNOWN_WEIGHTS
from tidegate.errors import InvalidInput
from tidegate.tidb.types import string, weights


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


def test_each_damaged_byte_counts_as_one_replacement_sign() -> None:
    assert string.sort_key(b"a\xe4\xb8", "utf8mb4_general_ci") == b"\0A\xff\xfd\xff\xfd"
    assert string.sort_key("a\U0001f600".encode(), "utf8mb4_unicode_ci") == b"\x0e\x33\xff\xfd"
    assert string.sort_key("中é\\".encode(), "gbk_chinese_ci").endswith(b"\x82\xc3\\")


def test_the_file_of_weights_says_what_it_was_made_of() -> None:
    general, unicode, gbk = (
        {0x61: b"\0A"},
        {0x61: b"\x0e\x33", 0: b"", 0x62: bytes(16)},
        {0x61: b"A", 0x4E2D: b"\xd1\xa7"},
    )
    found = weights.unpacked(zlib.decompress(weights.packed(general, unicode, gbk)))
    assert found["general"].key("ab") == b"\0A\0b"
    assert found["unicode"].key("a\0b中") == b"\x0e\x33" + bytes(16) + b"\xfb\x40\xce\x2d"
    assert found["gbk"].key("a中b") == b"A\xd1\xa7?"


@pytest.mark.parametrize(
    ("mysql_type", "charset", "collate", "needed"),
    [
        (15, "binary", "binary", False),
        (15, "utf8mb4", "utf8mb4_bin", True),
        (254, "utf8mb4", "utf8mb4_bin", False),
        (254, "utf8mb4", "utf8mb4_general_ci", True),
        (15, "utf8mb4", "utf8mb4_0900_bin", False),
    ],
)
def test_restored_data_is_kept_where_the_key_loses_something(
    mysql_type: int, charset: str, collate: str, needed: bool
) -> None:
    assert string.needs_restored_data(mysql_type, charset, collate) is needed
