"""The faults of the demo with several captures: when each happens, and the table of their consequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Kinds of faults. The value is the name in the table."""

    KILLED = "killed"
    DRAINED = "drained"


@dataclass(slots=True)
class Fault:
    """One fault, and what came of it. `MainPath` fills it in."""

    kind: Kind
    capture: str
    was_owner: bool
    at_s: float
    """When it happened: seconds after everything was live."""
    before: Mapping[str, int]
    """The ranges of each capture right before."""
    after: Mapping[str, int] = field(default_factory=dict)
    pause_s: float | None = None
    """How long the checkpoint did not advance. None: it has not advanced since."""

    @property
    def name(self) -> str:
        """The capture, and its fault."""
        return f"{self.capture}{' (owner)' if self.was_owner else ''} {self.kind}"

    @property
    def paused(self) -> str:
        """How long the checkpoint paused."""
        return f"{self.pause_s:.1f} s" if self.pause_s is not None else "until the end"


def plan(captures: int, seconds: float) -> list[tuple[float, Kind]]:
    """When each fault happens, in seconds after everything is live. At least one capture is left at the end."""
    kinds = (Kind.KILLED, Kind.DRAINED)[: max(0, captures - 1)]
    return [(seconds * number / (len(kinds) + 1), kind) for number, kind in enumerate(kinds, 1)]


def ranges_of(feed: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, int]:
    """The number of ranges that each capture delivers. `feed`: the API's answer about the changefeed;
    `addresses`: those of the captures, by name.
    """
    found = Counter(one["address"] for one in feed.get("tidegate", {}).get("captures", []) if one["running"])
    return {name: found[address] for name, address in addresses.items()}


def has_left(address: str, feed: Mapping[str, Any]) -> bool:
    """Whether other captures deliver all ranges, and the one at this address none."""
    found = feed.get("tidegate", {}).get("captures", [])
    return bool(found) and all(one["running"] and one["address"] != address for one in found)


def head_of(captures: Sequence[str]) -> list[str]:
    """The heading of `rows_of`."""
    return ["event", "at", "checkpoint paused", *captures]


def rows_of(faults: Sequence[Fault], captures: Sequence[str]) -> list[list[str]]:
    """A row for each fault, with the ranges of each capture `before → after`; `-`: it was gone already."""
    return [
        [one.name, f"{one.at_s:.0f} s", one.paused, *(_change(one, name) for name in captures)]
        for one in faults
    ]


def _change(fault: Fault, name: str) -> str:
    if name not in fault.before:
        return "-"
    if fault.kind is Kind.KILLED and name == fault.capture:
        return f"{fault.before[name]} → gone"
    return f"{fault.before[name]} → {fault.after.get(name, '?')}"
