"""Records the decisions of a capture's machines in files: `tidegate server --record FOLDER`.

Each machine has a segment (`control.trace`), which is a file `NUMBER-MACHINE-CHANGEFEED.jsonl`. When a
segment is large, the next one begins with the complete state of the machine, so every file can be replayed
alone. When all files together are too large, the oldest are removed. Numbers continue after a restart.

Records are for finding defects. A full disk or a folder that is not writable ends the recording, and nothing
else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from tidegate.control.owner import Owner
from tidegate.control.processor import Processor
from tidegate.control.trace import MachineKind, Record, Tap
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 8 << 20
"""The next segment begins after the event that makes a segment larger than this."""
TOTAL_BYTES: Final = 256 << 20
"""The most bytes in the folder, not counting one segment of each machine."""
SUFFIX: Final = ".jsonl"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that the name of a file has a dot for."""
Follow = Callable[[MachineKind, str, Owner | Processor], None]
"""Called with a machine just after it is made, and with the name of its changefeed."""


def follow_nothing(kind: MachineKind, name: str, machine: Owner | Processor) -> None:
    """Used when nothing is recorded."""


class Recorder:
    """Writes segments into a folder. All events of a machine come from one thread."""

    def __init__(
        self, folder: Path, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES
    ) -> None:
        self.folder, self.segment_bytes, self._total_bytes = folder, segment_bytes, total_bytes
        self._ended = False
        """Whether writing has failed."""
        self._number = 0

    def follow(self, kind: MachineKind, name: str, machine: Owner | Processor) -> None:
        """Record a machine from now on."""
        _Tape(self, kind, name, machine)

    def begin(self, kind: MachineKind, name: str, head: Record) -> Path | None:
        """Begin a segment with its first line; None: recording has ended."""
        if self._ended:
            return None
        try:
            self._number = self._number or self._last_number()
            self._number += 1
            path = self.folder / f"{self._number:08d}-{kind.name}-{_NO_NAME.sub('.', name)}{SUFFIX}"
            with path.open("xb") as file:  # fails if another capture uses the same folder
                file.write(orjson.dumps(head) + b"\n")
            self._remove_oldest(path)
        except OSError as error:
            self.give_up(error)
            return None
        return path

    def give_up(self, error: OSError) -> None:
        """End the recording, because writing has failed."""
        if not self._ended:
            self._ended = True
            event(LOG, logging.WARNING, "recording ended", folder=str(self.folder), error=str(error))

    def _last_number(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        return max((int(path.name.partition("-")[0]) for path in segments(self.folder)), default=0)

    def _remove_oldest(self, newest: Path) -> None:
        found = [(path, path.stat().st_size) for path in segments(self.folder)]
        total = sum(size for _, size in found)
        for path, size in found:
            # Never the newest: its machine is about to write its first events.
            if total <= self._total_bytes or path == newest:
                return
            path.unlink()
            total -= size


class _Tape:
    """The segments of one machine."""

    def __init__(self, recorder: Recorder, kind: MachineKind, name: str, machine: Owner | Processor) -> None:
        self._recorder, self._kind, self._name = recorder, kind, name
        self._tap = Tap(kind, name, machine, self._write)
        self._size = 0
        self._path: Path | None = None
        self._begin()

    def _begin(self) -> None:
        self._path, self._size = self._recorder.begin(self._kind, self._name, self._tap.head()), 0

    def _write(self, record: Record) -> None:
        if self._path is None:
            return
        line = orjson.dumps(record) + b"\n"
        try:
            _append(self._path, line)
        except FileNotFoundError:
            # It was removed as the oldest one, of a machine with few events. A file without its head could
            # not be replayed, so a new segment begins.
            self._begin()
            return
        except OSError as error:
            self._recorder.give_up(error)
            self._path = None
            return
        self._size += len(line)
        if self._size > self._recorder.segment_bytes:
            self._begin()


def _append(path: Path, line: bytes) -> None:
    """Append a line to an existing file.

    The file is opened for each line, because a capture may have more machines than it may have files open.
    """
    target = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        if os.write(target, line) < len(line):
            raise OSError("the disk took a part of an event")
    finally:
        os.close(target)


def segments(folder: Path) -> list[Path]:
    """The segments in a folder, the oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.name.partition("-")[0].isdigit())
