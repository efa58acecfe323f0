import pytest

from tests.codec.golden import lines
from tidegate.errors import InvalidInput
from tidegate.tidb.types import string

KNOWN = ["ascii_bin", "binary", "latin1_bin", "utf8_bin", "utf8mb4_bin", "utf8mb4_0900_bin"]


def test_golden_sort_keys_of_the_binary_collations() -> None:
    for case in lines("keys/collation"):
        data = bytes.fromhex(case["hex"])
        for collate in KNOWN:
            assert string.sort_key(data, collate).hex() == case["sort_key"][collate]


def test_collations_with_weights_are_refused() -> None:
    with pytest.raises(InvalidInput, match="utf8mb4_general_ci"):
        string.sort_key(b"a", "utf8mb4_general_ci")


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
