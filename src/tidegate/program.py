"""The interpreter of a process of our own: what it leaves out when it starts and when it ends.

    python -m tidegate.program MODULE [ARGUMENT...]

imports MODULE and calls its `main`. A process imports several hundred modules, whose objects live as long as
it does. The collector would walk through them again and again while they are imported, and the interpreter
would take them apart one by one at the end: together up to a third of the CPU of a short command. Only our
own processes call these functions, never a user's process that imports Tidegate.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

SELDOM: Final = 50_000
"""New objects between two collections until `loaded`. Imports make about ten times as many, and nearly all of
them stay. The collector is not switched off: a command that never calls `loaded` must stay bounded, too."""
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy starts a thread for each core, which spins for a while, and we multiply no matrices."""
_DEFAULT: Final = gc.get_threshold()


def command(module: str, *arguments: str | Path) -> list[str]:
    """The command line that runs `module` so."""
    return [sys.executable, "-m", __name__, module, *map(str, arguments)]


def starting() -> None:
    """Collect seldom from now on; before the first heavy import. Child processes inherit `ONE_THREAD`."""
    gc.set_threshold(SELDOM)
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def loaded() -> None:
    """All is imported: collect as usual from now on, without what exists by now.

    A full collection of a running process is shorter by what was imported, for example 0.1 s in a capture.
    """
    gc.freeze()
    gc.set_threshold(*_DEFAULT)


class QuickEnd:
    """Ends the process after all handlers of `atexit`, without taking the interpreter apart.

    To be made before anything else registers a handler, because the first one runs last. By then other
    threads have ended, unless they are daemons. Only for an end with a known exit code: an error or a signal
    that ends the process is left to the interpreter.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._end)

    def with_code(self, code: str | int | None) -> None:
        """Take the code of a SystemExit. A text, which the interpreter prints, is left to it."""
        if code is None or isinstance(code, int):
            self._code = code or 0

    def _end(self) -> None:
        if self._code is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            return  # the interpreter flushes again, and says what is wrong in its own way
        os._exit(self._code & 0xFF)


def main(given: Sequence[str]) -> None:
    """Run a module's `main` with `sys.argv` as if the module had been started itself."""
    starting()
    module = import_module(given[0])
    sys.argv[:] = [str(module.__file__), *given[1:]]
    loaded()
    module.main()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(f"usage: python -m {__spec__.name} MODULE [ARGUMENT...]")
    main(sys.argv[1:])
