"""The quarantine of bytes that cannot be decoded: JSON lines with where, why and the bytes in base64.

Captures and consumers use the same form. A line is on disk when `append` returns. The file is bounded: when
`LIMIT_BYTES` is reached, the next line is refused with Fatal and the feed stops, because continuing would
drop data silently. To continue, move the file away and restart. `entries` reads one line at a time, so a file
at its limit needs little memory.

If the disk is full, the lines of the failed call are removed as a whole. A writer that is killed may leave a
torn line. The next writer ends it with a line feed, so that later lines can be read; readers report a torn
line and continue. No data is lost with it: `append` had not returned, so the same entry is appended again.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.disk import FEEDS_WAIT, writing
from tidegate.errors import Fatal
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)
LIMIT_BYTES: Final = 1 << 30


class Quarantine:
    """Appends to one quarantine file. Several processes may append to the same file."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES, *, fix: str = FEEDS_WAIT) -> None:
        """`fix`: of the error when the disk is full, because its reader is a capture's or a consumer's."""
        self._path, self._limit, self._fix = path, limit_bytes, fix

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def append(self, entries: Iterable[Mapping[str, Any]]) -> int:
        """Write entries durably and return their number; values of type bytes become {"base64": ..}.

        Raises Fatal if the file would exceed its limit, and DiskFull; then none of the entries is written.
        """
        lines = [json.dumps(to_json(entry), separators=(",", ":")) + "\n" for entry in entries]
        if not lines:
            return 0
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # One append may need several calls of write: no other process's line may come between them.
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._append(handle, "".join(lines).encode(), len(lines))
        finally:
            os.close(handle)
        return len(lines)

    def _append(self, handle: int, data: bytes, count: int) -> None:
        size = os.fstat(handle).st_size
        if size + len(data) > self._limit:
            raise Fatal(
                "the quarantine is full",
                where=str(self._path),
                why=f"{count} more undecodable entries would pass {self._limit} bytes",
                fix="look into it with `tidegate quarantine list`, move the file away, and resume the "
                "changefeed or restart the consumer",
            )
        if size and os.pread(handle, 1, size - 1) != b"\n":
            event(LOG, logging.WARNING, "torn quarantine line ended", file=str(self._path), at_byte=size)
            data = b"\n" + data
        with writing(self._path, keep=True, fix=self._fix):
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                # docs/guarantees.md#bad-bytes-neither-stop-a-changefeed-nor-vanish: before anything after the
                # entry goes out.
                os.fsync(handle)
            except OSError:
                # Under the lock, so nothing of another process is behind these bytes.
                os.ftruncate(handle, size)
                raise


@dataclass(frozen=True, slots=True)
class QuarantineLine:
    """One line of a quarantine file."""

    number: int
    """Counted from 1, torn lines included. The file only grows at its end, so a line keeps its number."""
    size: int
    """The size of the line in bytes."""
    entry: dict[str, Any] | None
    """The entry that was appended, with its bytes restored; None: the line is torn."""
    why: str = ""
    """Why it is torn."""


@dataclass(frozen=True, slots=True)
class DecodeOutcome:
    """The result of decoding an entry again."""

    good: bool
    what: str
    """Why it still cannot be decoded; otherwise facts that its rows do not show. Holds texts of the entry, so
    escape it before printing."""
    rows: tuple[dict[str, Any], ...] = ()
    """As `codec.base.describe` makes them: kind, schema, table, commit_ts, new, old."""


def still_bad(why: str) -> DecodeOutcome:
    """The outcome of an entry that cannot be decoded for this reason."""
    return DecodeOutcome(False, why)


def entries(path: Path) -> Iterator[QuarantineLine]:
    """Yield the lines of a quarantine file, one in memory at a time; none if there is no file."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        # No line is longer than the file may be. The bound is for a file that is none of ours.
        for number, line in enumerate(iter(lambda: lines.readline(LIMIT_BYTES), b""), 1):
            try:
                found = from_json(json.loads(line))
                if not isinstance(found, dict) or not isinstance(found.get("where"), dict):
                    raise ValueError("it is not an entry")
            except (ValueError, RecursionError) as error:
                yield QuarantineLine(number, len(line), None, str(error))
            else:
                yield QuarantineLine(number, len(line), found)


def sound_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a quarantine file; skip a torn line, with a warning that says where it is."""
    for kept in entries(path):
        if kept.entry is None:
            where = f"{path}, line {kept.number}"
            event(LOG, logging.WARNING, "torn quarantine line left out", where=where, why=kept.why)
        else:
            yield kept.entry


def read(path: Path) -> list[dict[str, Any]]:
    """All of `sound_entries`, in memory at once; [] if there is no file."""
    return list(sound_entries(path))


def to_json(value: Any) -> Any:
    """An entry, or a part of it, as a JSON value."""
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
