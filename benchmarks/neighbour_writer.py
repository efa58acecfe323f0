"""Commits rows to one table from a process of its own. For `benchmarks.neighbours`.

    python -m benchmarks.neighbour_writer ADDRESS TABLE ROW_BYTES

TiDB is no part of a capture. If the writer were a thread of the capture's process, it would wait for the
interpreter between prewrite and commit while a missing part is pulled. Its locks would hold the resolved ts
back meanwhile, and the capture would count as late.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

WRITE_S: Final = 0.1
"""The pause between two transactions."""
ROWS: Final = 20
"""The rows of a transaction."""
END_S: Final = 10.0


@contextmanager
def writing(address: str, table: int, row_bytes: int = 100) -> Iterator[None]:
    """Commit to a table of the upstream at `address` during the `with` block."""
    command = [sys.executable, "-m", "benchmarks.neighbour_writer", address, str(table), str(row_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline(), "the writer ended before its first commit"
        try:
            yield
            assert process.poll() is None, "the writer ended too early"
        finally:
            process.stdin.close()
            process.wait(END_S)


def main() -> None:
    """Write until the standard input ends."""
    address, table, row_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    done = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with PdClient(address) as pd:
        number = 0
        while not done.wait(WRITE_S):
            transaction = Transaction(pd)
            for handle in range(number, number + ROWS):
                transaction.put(keys.int_record(table, handle), b"x" * row_bytes)
            transaction.commit()
            if not number:
                print("writing", flush=True)
            number += ROWS


if __name__ == "__main__":
    main()
