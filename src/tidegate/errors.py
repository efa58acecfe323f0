"""The one tree of exceptions, by what the caller should do about it.

Every message says what happened, where, why, and what to do. Text given to these classes must never
hold a secret: pass URIs through `tidegate.log.redact` or `shown` first.
"""

from __future__ import annotations

import re

PART_MAX = 2_000
"""Whoever sends a value of megabytes does not get it back, nor into the log."""
_QUERY = re.compile("[?#]")


def cut(text: str) -> str:
    """At most PART_MAX characters of a text, and how many there were."""
    text = str(text)  # one that hides itself stays hidden
    return text if len(text) <= PART_MAX else f"{text[:PART_MAX]}... ({len(text):,} characters)"


class TidegateError(Exception):
    """Base of all errors raised on purpose.

    `what` is one sentence; `where` names a file, table, position or address; `why` is the cause as far
    as it is known; `fix` says what the user can do.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.render())

    def render(self) -> str:
        """The message as a person reads it, one line per part, each cut to PART_MAX characters."""
        parts = [cut(self.what)]
        parts += [f"  where: {cut(self.where)}"] if self.where else []
        parts += [f"  why:   {cut(self.why)}"] if self.why else []
        parts += [f"  to do: {cut(self.fix)}"] if self.fix else []
        return "\n".join(parts)


class InvalidInput(TidegateError):
    """The request, the configuration or a file is wrong: fix it; a retry cannot help."""

    exit_code = 2


class Undecodable(InvalidInput):
    """Bytes that are not what their format says: quarantine them with their position and go on."""


class Retryable(TidegateError):
    """Something outside is unavailable or busy: try again after a back-off."""


class Fenced(TidegateError):
    """A newer incarnation holds the grant: stop writing at once, never retry under the old token."""


class Fatal(TidegateError):
    """Going on would lose or corrupt data: stop and let a person decide."""


def shown(address: str) -> str:
    """What a person may see of an address: without user, password and query. A path stays as it is."""
    scheme, found, rest = address.partition("://")
    if not found:
        return address
    place = _QUERY.split(rest, maxsplit=1)
    if "@" in "".join(place[1:]):  # a password that is not encoded may hold these signs
        return f"{scheme}://..."
    return f"{scheme}://{place[0].rpartition('@')[2]}"
