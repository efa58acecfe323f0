"""Encoded messages for a queue: single ones, and blocks of many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A `key` or `value` of None is null, which is not the same as empty."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Many row messages in one buffer: message i is `data[start:start+length]` for key and for value.

    Messages of one partition keep the order of their rows. `key_length[i] < 0` means a null key,
    `value_length[i] < 0` a null value.
    """

    data: npt.NDArray[np.uint8]
    key_start: npt.NDArray[np.int64]
    key_length: npt.NDArray[np.int64]
    value_start: npt.NDArray[np.int64]
    value_length: npt.NDArray[np.int64]
    partition: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    """The number of row changes in each message."""
    topic: str = ""
    """Empty: the changefeed's own topic."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """The headers of every message."""

    def __len__(self) -> int:
        return len(self.partition)
