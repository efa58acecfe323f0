"""A consumer's own folder on this machine, where its target is elsewhere: one consumer uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.errors import InvalidInput

MARK: Final = "consumer"
"""The file that says whose the folder is."""


def mark_folder(folder: Path, consumer: str) -> None:
    """Make the folder this consumer's own; InvalidInput if it is another's, or cannot be used.

    Another consumer would remove rows that are on their way to this one's target.
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
