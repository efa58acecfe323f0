"""Whether memory that was freed is used again without the kernel."""

from __future__ import annotations

import subprocess
import sys

BATCHES = """
import resource, sys, threading
from tidegate.heap import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    for number in range(5):
        if number == 2:  # by now the heap is as large as it gets
            begun.append(faults())
        held = [b"m" * (1 << 20) for _ in range(8)]
        del held

begun = []
keep_freed(*map(int, sys.argv[1:]))
# Not the main thread, whose heap is another kind.
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(faults() - begun[0])
"""


def faults(*arguments: int) -> int:
    """Page faults of three batches of 8 MB, after two others in the same thread."""
    command = [sys.executable, "-c", BATCHES, *map(str, arguments)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def test_memory_that_was_freed_is_used_again_without_new_pages() -> None:
    pages = 3 * (8 << 20) // 4096
    assert faults(32 << 20, 8 << 20) < pages / 20
    assert faults(32 << 20) < pages / 20


def test_what_is_beyond_the_bounds_goes_back() -> None:
    pages = 3 * (8 << 20) // 4096
    assert faults(1 << 20, 8 << 20) > pages / 2  # no more is kept than was asked for
    assert faults(32 << 20, 512 << 10) > pages / 2  # these have memory of their own
