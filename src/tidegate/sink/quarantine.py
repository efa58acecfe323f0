"""Where bytes go that nobody can decode: JSON lines with where, why and the bytes in base64.

One form for capture and consumer. A line is on disk when `append` returns. The file is bounded: at
`LIMIT_BYTES` the next line is refused with Fatal and the feed stops, since going on would drop data
silently; move the file away and resume.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tidegate.errors import Fatal

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

        Raises Fatal when the file has reached its limit.
        """
        lines = [json.dumps(_plain(entry), separators=(",", ":")) + "\n" for entry in entries]
        if not lines:
            return 0
        data = "".join(lines).encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size + len(data) > self._limit:
                raise Fatal(
                    "The quarantine is full.",
                    where=str(self._path),
                    why=f"{len(lines)} more undecodable entries would pass {self._limit} bytes",
                    fix="find out why, move the file away, and resume the changefeed",
                )
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        return len(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """All entries of a quarantine file, bytes restored; [] when there is none."""
    if not path.exists():
        return []
    return [_bytes(json.loads(line)) for line in path.read_text().splitlines()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _bytes(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: _bytes(inner) for key, inner in value.items()}
    return value
