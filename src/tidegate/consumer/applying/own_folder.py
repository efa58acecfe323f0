"""A consumer's own folder on this machine, if its target is elsewhere. Only one consumer may use it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.errors import InvalidInput

MARK: Final = "consumer"
"""The file that names the consumer to which the folder belongs."""


def mark_folder(folder: Path, consumer: str) -> None:
    """Mark the folder as this consumer's; InvalidInput if it is another's, or cannot be used.

    A second consumer in the same folder would remove staged rows that the first has not written yet.
    """
    mark = folder / MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(consumer)
        whose = mark.read_text()
    except OSError as error:
        raise InvalidInput(
            "the consumer's folder cannot be used",
            where=str(folder),
            why=error.strerror or str(error),
            fix="choose a --folder that can be made and written",
        ) from error
    if whose != consumer:
        raise InvalidInput(
            "the folder is another consumer's",
            where=str(folder),
            why=f"it is of {whose}, and this is {consumer}",
            fix="choose another --folder",
        )
