"""Counts the compilation of kernels as work.

A worker whose kernels are not compiled yet (a new version without `make setup`) compiles those that its first
piece calls. That takes longer than `stall-timeout` if several workers share few cores. Without beats the
worker would be killed in the midst of it, and so would the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from numba.core import event

KINDS: Final = ("numba:compile", "numba:run_pass")
"""numba reports the begin and end of each function, and of each of its passes. One kernel takes up to 20 s,
one pass a few.
"""


class _Beating(event.Listener):
    """Calls a function at each event."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat

    def on_start(self, event: Any) -> None:
        """A function or a pass begins."""
        self._beat()

    def on_end(self, event: Any) -> None:
        """A function or a pass has ended."""
        self._beat()


@contextmanager
def compiling_counts(beat: Callable[[], None]) -> Iterator[None]:
    """Call `beat` whenever a step of compiling a kernel begins or ends in this process."""
    listener = _Beating(beat)
    for kind in KINDS:
        event.register(kind, listener)
    try:
        yield
    finally:
        for kind in KINDS:
            event.unregister(kind, listener)
