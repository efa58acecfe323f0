"""A feed's slots at its sink, shared by the worker processes of one machine through files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tidegate.errors import Retryable, TidegateError
from tidegate.pipeline.feed import FeedSpec
from tidegate.sink.base import Sink, Writer


class Slot:
    """One of the feed's slots: locked for a task, its writer kept between tasks.

    The lock file holds the name of the process that used the slot last. As long as that is us, our writer
    is still the rightful one; else another process has taken it since, and we must do so again.
    """

    def __init__(self, spec: FeedSpec, sink: Sink, alive: Callable[[], None] = lambda: None) -> None:
        """`alive` is called when the sink has taken something."""
        self._spec, self._sink, self._alive = spec, sink, alive
        self._folder = spec.feed_dir / "slots"
        self._folder.mkdir(exist_ok=True)
        self._me = f"{spec.token[0]}.{spec.token[1]}.{spec.incarnation}.{os.getpid()}"
        self._writers: dict[int, Writer] = {}
        self.granted = spec.ranges
        """What this incarnation might write when this process last proved itself."""

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """The writer of a slot, ours until the block ends: our last one, else an unused, else a free one."""
        number, file = self._take()
        with file:
            if not self._is_mine(number):
                lost = self._writers.pop(number, None)
                if lost is not None:
                    lost.close()
                self._writers[number] = self._open(number)
                file.truncate(0)
                file.write(self._me)
                file.flush()
            writer = self._writers[number]
            try:
                yield writer
            except BaseException:
                # Committed readers would wait for the rest of the transaction until the sink gives it up.
                with suppress(TidegateError):
                    writer.abort()
                raise

    def close(self) -> None:
        """Let go of all writers. They know this slot, and it them: nothing else would free them soon."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _take(self) -> tuple[int, IO[str]]:
        for number in sorted(range(self._spec.slots), key=self._rank):
            file = self._path(number).open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return number, file
        raise Retryable(
            f"All {self._spec.slots} slots of {self._spec.changefeed} are taken.", where=str(self._folder)
        )

    def _open(self, number: int) -> Writer:
        return self._sink.writer(number, self._prove, self._alive)

    def _prove(self) -> None:
        self.granted = self._spec.granted()

    def _path(self, number: int) -> Path:
        return self._folder / str(number)

    def _is_mine(self, number: int) -> bool:
        return number in self._writers and self._path(number).read_text() == self._me

    def _rank(self, number: int) -> tuple[int, int]:
        if not self._path(number).exists():
            return 1, number
        if self._is_mine(number):
            return 0, number
        used_now = self._path(number).read_text().rpartition(".")[0] == self._me.rpartition(".")[0]
        return (2 if used_now else 1), number
