"""Carries messages between the owners of changefeeds and their processors, on one capture or several.

    owner --> MessageRouter --> processor's box                                     on the same capture
    owner --> MessageRouter --> MessageClient ~~HTTP~~> MessageRouter --> box       on another one

Messages are bytes in bounded boxes, even on one capture, so neither side ever holds an object of the other. A
message may be lost, come twice or overtake another one. Both sides repeat what is still true every few
seconds.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, assert_never

import orjson

from tidegate import __version__
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    FromOwner,
    FromProcessor,
    Header,
    Message,
    Sync,
    parse,
    to_json,
)
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

BOX_MAX: Final = 256
"""The most messages that wait for one receiver; then the oldest one is dropped."""


class Box:
    """The messages for one receiver."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[bytes] = deque(maxlen=BOX_MAX)

    def put(self, message: bytes) -> None:
        """Add a message, and wake the receiver."""
        self._waiting.append(message)
        self._wake()

    @property
    def is_empty(self) -> bool:
        """Whether no message waits."""
        return not self._waiting

    def take(self) -> list[bytes]:
        """Take all waiting messages, in the order of arrival."""
        found = list(self._waiting)
        self._waiting.clear()
        return found


Send = Callable[[str, bytes], None]
"""Sends a message to another capture, by its name in grants."""


def nowhere(capture: str, message: bytes) -> None:
    """Drops the message, because there is no other capture."""


class MessageRouter:
    """The boxes of a capture, by changefeed."""

    def __init__(
        self,
        begins: Callable[[str], None] = lambda changefeed: None,
        capture: str = "",
        send: Send = nowhere,
    ) -> None:
        """`begins` is called for a message to a processor that does not run yet; it may start one.

        `capture`: this one's name if there are other captures; `send` sends messages to those.
        """
        self._begins, self._capture, self._send = begins, capture, send
        self.owners: dict[str, Box] = {}
        self.processors: dict[str, Box] = {}
        self._owned_by: dict[str, tuple[int, str]] = {}
        """By changefeed: the greatest owner revision in a message to us, and the capture that sent it."""
        self._owner_version = __version__
        """The version in the last Announce of another capture."""

    def to_processor(self, message: FromOwner) -> None:
        """Send to the processor on the capture that the header names."""
        capture, name = message.header.capture, message.header.changefeed
        if self._capture and capture != self._capture:
            self._send(capture, _encoded(message))
        else:
            self._put_to_processor(name, _encoded(message))

    def to_owner(self, message: FromProcessor) -> None:
        """Send to the owner of the changefeed: on this capture if it is here, otherwise where it last was."""
        name = message.header.changefeed
        if (box := self.owners.get(name)) is not None:
            box.put(_encoded(message))
        elif name in self._owned_by:
            self._send(self._owned_by[name][1], _encoded(message))

    def deliver(self, sender: str, message: bytes) -> None:
        """Deliver a message from another capture. Raises ValueError if it is not valid."""
        parsed: Message = parse(orjson.loads(message), (*FROM_OWNER, *FROM_PROCESSOR))
        match parsed:
            case Announce():
                if self._deliver_to_processor(sender, parsed.header, message):
                    self._note_version(sender, parsed.owner_version)
            case Dispatch():
                self._deliver_to_processor(sender, parsed.header, message)
            case Sync() | DispatchResponse() | Checkpoint():
                if (box := self.owners.get(parsed.header.changefeed)) is not None:
                    box.put(message)
            case _:
                assert_never(parsed)

    def _note_version(self, owner: str, version: str) -> None:
        """Log why this capture gets no ranges, once for each version of an owner that differs."""
        if self._owner_version != version != __version__:
            why = f"the owner, {owner}, runs Tidegate {version}, and this capture {__version__}"
            event(LOG, logging.WARNING, "capture gets no ranges while others can have them", why=why)
        self._owner_version = version

    def _deliver_to_processor(self, sender: str, header: Header, message: bytes) -> bool:
        """Returns whether it is of the newest owner that is known."""
        if header.capture != self._capture:
            return False  # it was meant for a capture that had this address earlier
        # A message of an earlier owner may be late. Answers to it must not go to that owner.
        is_newest = header.owner_rev >= self._owned_by.get(header.changefeed, (0, ""))[0]
        if is_newest:
            self._owned_by[header.changefeed] = header.owner_rev, sender
        self._put_to_processor(header.changefeed, message)
        return is_newest

    def _put_to_processor(self, changefeed: str, message: bytes) -> None:
        # `begins` may refuse, so the box is looked up again.
        if changefeed not in self.processors:
            self._begins(changefeed)
        if (box := self.processors.get(changefeed)) is not None:
            box.put(message)


def _encoded(message: Message) -> bytes:
    form = to_json(message)
    try:
        return orjson.dumps(form)
    except TypeError:
        # A text that is not UTF-8: an error may name a file whose name is not. It must be sent nevertheless,
        # because the owner would otherwise never learn of the failure.
        return json.dumps(form, ensure_ascii=False).encode("utf-8", "replace")
