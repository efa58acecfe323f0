"""Whose quarantine is meant, and which of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.errors import InvalidInput

if TYPE_CHECKING:
    from tidegate.consumer.applying.target import Address
    from tidegate.sink.quarantine import QuarantineLine


FILE: Final = "quarantine.jsonl"


@dataclass(frozen=True, slots=True)
class Place:
    """A quarantine file, and what is known about its owner."""

    file: Path
    address: Address | None
    """The target of the consumer; None: a changefeed's quarantine, or only the consumer's folder is known."""
    data_dir: Path | None
    """The data folder of the changefeed's capture."""


def place_of(
    data_dir: Path | None, changefeed: str, namespace: str, target: str, name: str, folder: Path | None
) -> Place:
    """The quarantine that the options name. Raises InvalidInput if they name none, or two."""
    if (data_dir is not None) == bool(target or folder):
        raise InvalidInput(
            "no quarantine is named",
            fix="give --data-dir and --changefeed-id of a changefeed, or --target (with --name, if it is a "
            "database) or --folder of a consumer",
        )
    if data_dir is not None:
        from tidegate.pipeline.worker.replay import quarantine_of

        if not changefeed:
            raise InvalidInput("no changefeed is named", fix="give --changefeed-id")
        return Place(quarantine_of(data_dir, namespace, changefeed), None, data_dir)
    if not target:
        assert folder is not None
        return Place(_in(folder), None, None)
    from tidegate.consumer.lakehouse.upkeep import Upkeep
    from tidegate.consumer.targets import DatabaseSettings, address_of

    address = address_of(target, Upkeep(), DatabaseSettings(name, folder))
    return Place(_in(address.folder), address, None)


def _in(folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidInput(
            "there is no such folder",
            where=str(folder),
            why="a consumer keeps in its folder what it sets aside",
            fix="give the --target, --name and --folder that the consumer runs with",
        )
    return folder / FILE


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects entries by table, topic or number."""

    table: str = ""
    topic: str = ""
    numbers: frozenset[int] = frozenset()
    """Empty: any."""

    def __call__(self, kept: QuarantineLine) -> bool:
        """Whether an entry is selected; a torn line is, unless a table or a topic is asked for."""
        if self.numbers:
            return kept.number in self.numbers
        where = kept.entry["where"] if kept.entry is not None else {}
        return all(
            not asked or where.get(name) == asked
            for name, asked in (("table", self.table), ("topic", self.topic))
        )
