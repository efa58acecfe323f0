"""Kernels are compiled by several processes; here by modules that only note who calls their `warm`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import pytest

from tidegate import kernel

MODULE = """
import os, time
from pathlib import Path

NOTES = Path(os.environ["NOTES"])

def processes():
    return {line.split()[1] for line in NOTES.read_text().splitlines()}

def warm():
    with NOTES.open("a") as notes:
        notes.write(f"{__name__} {os.getpid()}\\n")
"""
MEET = """
    end = time.monotonic() + 60
    while len(processes()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
"""
"""Until another process is at work, too."""
DIE = """
    if str(os.getpid()) != os.environ["CALLER"]:
        os._exit(1)
"""
"""Unless this is the process that called `kernel.warm`."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], list[str]]:
    """A function that puts so many modules in the place of those with kernels, on a machine of two cores."""
    source = Path(kernel.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(source))))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("CALLER", str(os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache" / "kernels-now"))
    monkeypatch.setattr(kernel, "usable", lambda: 2)

    def make(count: int, action: str) -> list[str]:
        names = [f"noted_{number}" for number in range(count)]
        for name in names:
            (tmp_path / f"{name}.py").write_text(MODULE + action)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(kernel, "KERNEL_MODULES", tuple(names))
        return names

    return make


def calls(tmp_path: Path) -> list[tuple[str, bool]]:
    """Each call of `warm`: the module, and whether this process made it."""
    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    return [(name, process == str(os.getpid())) for name, process in lines]


def test_two_processes_compile_at_once_and_no_module_twice(
    modules: Callable[[int, str], list[str]], tmp_path: Path
) -> None:
    names = modules(4, MEET)
    kernel.warm()
    assert sorted(name for name, _ in calls(tmp_path)[:4]) == names
    assert len({here for _, here in calls(tmp_path)[:4]}) == 2
    assert calls(tmp_path)[4:] == [(name, True) for name in names], "at last the caller loads all of them"
    assert kernel.is_compiled()


def test_the_caller_compiles_what_a_process_left_when_it_died(
    modules: Callable[[int, str], list[str]], tmp_path: Path
) -> None:
    names = modules(2, MEET + DIE)
    kernel.warm()
    assert [name for name, here in calls(tmp_path)[:2] if not here], "it had one"
    assert calls(tmp_path)[2:] == [(name, True) for name in names]
    assert kernel.is_compiled()


def test_kernels_that_are_compiled_are_only_loaded(
    modules: Callable[[int, str], list[str]], tmp_path: Path
) -> None:
    names = modules(2, "")
    kernel.warm()
    before = len(calls(tmp_path))
    kernel.warm()
    assert calls(tmp_path)[before:] == [(name, True) for name in names]


def test_kernels_of_a_checkout_that_was_moved_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba looks for them under the path of their source."""
    package = Path(kernel.__file__).parent
    before = kernel._state()
    moved = tmp_path / package.name
    shutil.copytree(package, moved, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernel, "__file__", str(moved / "kernel.py"))
    assert len(kernel._kernel_sources()) > 10
    assert kernel._state() != before
