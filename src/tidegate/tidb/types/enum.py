"""Enum and set: a 1-based index (0 = the invalid value), and a bit mask over the elements."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.errors import InvalidInput, Undecodable


def enum_name(index: int, elems: Sequence[str]) -> str:
    """The element's name; 0 is the empty string."""
    if not 0 <= index <= len(elems):
        raise Undecodable("an enum has no such element", why=f"index {index} of {len(elems)}")
    return elems[index - 1] if index else ""


def enum_index(name: str, elems: Sequence[str]) -> int:
    """The index of an element, by its exact name, otherwise without case; 0 for the empty string."""
    # Exact names first: under a case-sensitive collation elements may differ only in case.
    if name in elems:
        return list(elems).index(name) + 1
    folded = [elem.casefold() for elem in elems]
    if name.casefold() in folded:
        return folded.index(name.casefold()) + 1
    # After the search, because an element may have an empty name.
    if name == "":
        return 0
    raise InvalidInput(f"{name!r} is not an element of the enum", why=f"elements: {', '.join(elems)}")


def set_names(mask: int, elems: Sequence[str]) -> str:
    """The names of the set bits, joined by commas in the order of the elements."""
    if mask < 0 or mask >> len(elems):
        raise Undecodable("a set has no such element", why=f"mask {mask:#x} of {len(elems)}")
    return ",".join(elem for bit, elem in enumerate(elems) if mask >> bit & 1)


def set_mask(names: str, elems: Sequence[str]) -> int:
    """The mask of comma-separated names."""
    mask = 0
    for name in names.split(",") if names else []:
        mask |= 1 << enum_index(name, elems) - 1
    return mask
