"""A helper of kernels is only linked: what is compiled with it, and how often it is in a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import pytest
from numba import types

from tidegate.kernel import inline, kernel, shared
from tidegate.kernel_linking import HelperLibrary


@inline
def twice(number: int) -> int:
    """A helper that a helper calls."""
    return min(2 * number, 1000)


@shared
def summed(number: int) -> int:
    """A helper that both calls of a kernel share. LLVM would inline a much smaller one."""
    total = number
    for i in range(number):
        total ^= twice(total) << 3
        for k in range(total & 7):
            if total % 3 == 1:
                total += twice(k) * 7
            elif total % 5 == 2:
                total -= twice(i) * 11
            elif total % 7 == 3:
                total ^= i * 13
            else:
                total += k * 17
        while total > 1000:
            total //= 3
    for i in range(total & 15):
        if total % 11 == i:
            total += twice(i)
        elif total % 13 == i:
            total -= i * 5
        total = (total << 2) ^ (total >> 5)
    return total


@inline
def inner(number: int) -> int:
    """Makes numba compile a shared helper while it compiles one that is always inlined."""
    return summed(number) + twice(number)


@pytest.fixture
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel that calls all of them."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @kernel
    def both(number: int) -> int:
        return inner(number) + inner(number + 1)

    assert both(3) == plain(3) + plain(4)
    return both


def plain(number: int) -> int:
    """`inner`, called from Python."""
    return int(inner(number))


def defined(library: Any) -> list[str]:
    """The names of the functions in a library."""
    return [function.name for function in library.get_defined_functions()]


def of(compiled: Any) -> Any:
    """The library of what was compiled for one integer."""
    return compiled.overloads[(types.int64,)].library


def test_a_helper_is_alone_in_its_library_and_has_no_machine_code(outer: Any) -> None:
    for helper in (inner, summed, twice):
        library = of(helper)
        assert isinstance(library, HelperLibrary)
        assert len(defined(library)) == 1, "neither a wrapper nor what it calls"
    for helper in (inner, twice):  # a kernel has machine code of the shared one
        library = of(helper)
        assert not library.codegen._engine.is_symbol_defined(defined(library)[0])


def test_a_shared_helper_is_not_inlined_although_its_caller_is(outer: Any) -> None:
    """numba would take the option from the helper for whose call it compiles this one."""

    def inlined(compiled: Any) -> bool:
        (function,) = of(compiled).get_defined_functions()
        return b"alwaysinline" in list(function.attributes)

    assert [inlined(helper) for helper in (inner, twice, summed)] == [True, True, False]


def test_a_kernel_has_a_shared_helper_once_and_none_that_is_inlined(outer: Any) -> None:
    names = defined(of(outer))
    assert any("both" in name for name in names)
    assert not any(word in name for name in names for word in ("5inner", "5twice"))
    assert sum("6summed" in name for name in names) == 1, "both calls share it"


def test_a_helper_can_be_called_from_python() -> None:
    assert twice(5) == 10
    assert twice(5000) == 1000
