"""The state of a ChangeData connection: its features, its registrations, its channel. Pure.

A connection is one RPC stream. As in TiKV, its features depend on the call (V2 metadata `features`) and on
`ticdc_version` in its first request.
"""

from __future__ import annotations

import itertools
from typing import Final

from tidegate.errors import InvalidInput
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.cdc.delegate import Downstream

STREAM_MULTIPLEXING: Final = "stream-multiplexing"
FEATURES_KEY: Final = "features"
_BATCH_RESOLVED_FROM: Final = (4, 0, 8)
_CLUSTER_CHECK_FROM: Final = (5, 3, 0)
_ids = itertools.count(1)


def parse_features(header: str) -> bool:
    """Whether streams are multiplexed, from the `features` header; unknown names raise InvalidInput."""
    names = {name.strip() for name in header.split(",") if name.strip()}
    unknown = sorted(names - {STREAM_MULTIPLEXING})
    if unknown:
        raise InvalidInput(f"unknown features: {', '.join(unknown)}")
    return STREAM_MULTIPLEXING in names


def parse_version(text: str) -> tuple[int, int, int]:
    """(major, minor, patch); (0, 0, 0) if the text is not a semantic version."""
    numbers = text.removeprefix("v").split("+")[0].split("-")[0].split(".")
    if len(numbers) != 3 or not all(part.isdecimal() for part in numbers):
        return (0, 0, 0)
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))


class Connection:
    """A connection. Owned by the endpoint's thread, except for the channel, which has its own lock."""

    def __init__(self, multiplexing: bool, channel: Channel | None = None) -> None:
        self.id = next(_ids)
        self.multiplexing = multiplexing
        self.channel = channel or Channel()
        self.version: tuple[int, int, int] | None = None
        self.downstreams: dict[tuple[int, int], Downstream] = {}
        """(request id, region id) -> registration."""
        self.is_open = True

    def set_client_version(self, version: str) -> None:
        """Set the version from a request's header; only the first one counts."""
        if self.version is None:
            self.version = parse_version(version)

    @property
    def batches_resolved_ts(self) -> bool:
        """Whether a resolved ts is sent once with a list of regions; otherwise as one event per region."""
        return self.version is not None and self.version >= _BATCH_RESOLVED_FROM

    @property
    def checks_cluster_id(self) -> bool:
        """Whether a request for another cluster is refused."""
        return self.version is not None and self.version >= _CLUSTER_CHECK_FROM
