"""Where bytes go that nobody can decode: JSON lines with where, why and the bytes in base64.

One form for capture and consumer. A line is on disk when `append` returns. The file is bounded: at
`LIMIT_BYTES` the next line is refused with Fatal and the feed stops, since going on would drop data
silently; move the file away and resume.

Lines for which there was no room are taken back whole. A writer that is killed may leave part of a line: the
next one ends it, so that what follows can be read, and readers name it and go on. Nothing is lost with it:
`append` had not returned, so the entry comes again.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tidegate.disk import writing
from tidegate.errors import Fatal
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)
LIMIT_BYTES: Final = 1 << 30


class Quarantine:
    """Appends to one quarantine file. Several processes may append to the same file."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path, self._limit = path, limit_bytes

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def append(self, entries: Iterable[Mapping[str, Any]]) -> int:
        """Write entries durably and return how many; values of type bytes become {"base64": ..}.

        Raises Fatal when the file has reached its limit, and DiskFull; then none of them is there.
        """
        lines = [json.dumps(to_json(entry), separators=(",", ":")) + "\n" for entry in entries]
        if not lines:
            return 0
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # A write may be cut short and go on in a second one: no other process's line may come between.
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._append(handle, "".join(lines).encode(), len(lines))
        finally:
            os.close(handle)
        return len(lines)

    def _append(self, handle: int, data: bytes, count: int) -> None:
        size = os.fstat(handle).st_size
        if size + len(data) > self._limit:
            raise Fatal(
                "The quarantine is full.",
                where=str(self._path),
                why=f"{count} more undecodable entries would pass {self._limit} bytes",
                fix="find out why, move the file away, and resume the changefeed",
            )
        if size and os.pread(handle, 1, size - 1) != b"\n":
            event(LOG, logging.WARNING, "torn quarantine line ended", file=str(self._path), at_byte=size)
            data = b"\n" + data
        with writing(self._path, keep=True):
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise


def read(path: Path) -> list[dict[str, Any]]:
    """All entries of a quarantine file, bytes restored; [] when there is none.

    A line that is torn is left out, with a warning that says where it is.
    """
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = from_json(json.loads(line))
            except ValueError as error:
                where = f"{path}, line {number}"
                event(LOG, logging.WARNING, "torn quarantine line left out", where=where, why=str(error))
                continue
            found.append(entry)
    return found


def to_json(value: Any) -> Any:
    """An entry, or a part of it, as JSON has it."""
    if isinstance(value, Mapping):
        return {key: to_json(inner) for key, inner in value.items()}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: from_json(inner) for key, inner in value.items()}
    return value
