"""Carries messages between the owners of feeds and their processors: here, those of one capture.

As bytes and into bounded boxes, as between machines: neither side ever holds an object of the other's, and a
message may be lost when its receiver does not come to read. Both say everything again now and then.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.control.messages import FromOwner, FromProcessor, Message, to_json

BOX_MAX: Final = 256
"""Messages that wait for one receiver; the oldest goes when there are more."""


class Box:
    """Messages for one receiver."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[bytes] = deque(maxlen=BOX_MAX)

    def put(self, message: bytes) -> None:
        """One more."""
        self._waiting.append(message)
        self._wake()

    def take(self) -> list[bytes]:
        """All that wait, in the order in which they came."""
        found = list(self._waiting)
        self._waiting.clear()
        return found


class Post:
    """The boxes of a capture, by feed."""

    def __init__(self, begins: Callable[[str], None] = lambda changefeed: None) -> None:
        """`begins` is told when an owner speaks to a processor that is not there; it may open one."""
        self._begins = begins
        self.owners: dict[str, Box] = {}
        self.processors: dict[str, Box] = {}

    def to_processor(self, message: FromOwner) -> None:
        """To the capture that the header names: this one."""
        name = message.header.changefeed
        if name not in self.processors:
            self._begins(name)
        _put(self.processors.get(name), message)

    def to_owner(self, message: FromProcessor) -> None:
        """To whoever owns the feed."""
        _put(self.owners.get(message.header.changefeed), message)


def _put(box: Box | None, message: Message) -> None:
    if box is not None:
        box.put(json.dumps(to_json(message), separators=(",", ":")).encode())
