import pytest

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import enum

ELEMS = ("x", "y", "Z")


def test_indices_and_names() -> None:
    assert [enum.enum_name(i, ELEMS) for i in range(4)] == ["", "x", "y", "Z"]
    assert [enum.enum_index(name, ELEMS) for name in ("", "x", "Y", "Z")] == [0, 1, 2, 3]


def test_masks_and_names() -> None:
    assert enum.set_names(0b101, ELEMS) == "x,Z"
    assert enum.set_mask("Z,x", ELEMS) == 0b101
    assert enum.set_mask("", ELEMS) == 0


def test_what_is_not_an_element_is_refused() -> None:
    with pytest.raises(Undecodable):
        enum.enum_name(4, ELEMS)
    with pytest.raises(Undecodable):
        enum.set_names(8, ELEMS)
    with pytest.raises(InvalidInput):
        enum.enum_index("w", ELEMS)
