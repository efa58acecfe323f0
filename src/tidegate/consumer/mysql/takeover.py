"""When no DDL of an earlier consumer can come any more at TiDB: whom to end, what to wait for. Pure.

A DDL at TiDB is a job, which continues after its connection. So a taker that has raised the token, and finds
a statement noted as begun, watches the cluster:

    a session with a lower token is listed     end it, look again
    a server has not answered                  it may have such a session: look again
    a job of the consumer is not finished      look again
    nothing of it, for `QUIET_S`               settled: no statement of an earlier token comes any more

A taker that is only about to raise the token has the name of no token (`TAKING`): it has locked the row of
`progress` perhaps, but has noted nothing. The next taker that starts ends it. Nobody else minds it.

A look reads the sessions first, then the jobs: a server lists a session until its statement has handed in its
job, so whatever has left the list is among the jobs. The exception is a server that shuts down. It forgets
its sessions first, and one of them may still hand in a job, hence `QUIET_S`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 2.0
"""Seconds for which nothing of an earlier consumer may be seen."""
TAKING: Final = 0
"""The token in the name of a taker that has not raised the token yet; raised ones begin with 1."""
_NAME: Final = re.compile(r"tidegate\.(?P<digest>[0-9a-f]{40})\.(?P<token>\d+)(?:\.(?P<lane>\d+))?")


@dataclass(frozen=True, slots=True)
class Session:
    """A session of a consumer, as a server lists it."""

    number: int
    """Its connection id; unique in the cluster, because a server without `enable-global-kill` is refused."""
    server: str
    client: str
    token: int
    lane: int | None = None
    """None: it is the control connection."""

    def __str__(self) -> str:
        return f"connection {self.number} of TiDB server {self.server}, token {self.token}"


@dataclass(frozen=True, slots=True)
class Look:
    """A view of a consumer; `jobs` are read after `sessions`."""

    sessions: Sequence[Session]
    silent: Sequence[str]
    """For each server that has not answered, its error."""
    jobs: Sequence[str]
    """Its jobs that are not finished, in words."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next thing that a taker does after a look."""

    kill: tuple[Session, ...] = ()
    settled: bool = False
    waits_for: str = ""
    """In words; empty: only for `QUIET_S` to pass."""


def name_of(digest: str, token: int, lane: int | None = None) -> str:
    """The name of a session: `tidb_session_alias`, at most 64 characters."""
    name = f"tidegate.{digest}.{token}" + ("" if lane is None else f".{lane}")
    # TiDB cuts a longer one, and another token or lane would be read from it.
    assert len(name) <= 64, name
    return name


def session_of(digest: str, number: int, server: str, client: str, name: str) -> Session | None:
    """The session of this name; None: it is not one of the consumer with this digest."""
    found = _NAME.fullmatch(name)
    if found is None or found["digest"] != digest:
        return None
    lane = int(found["lane"]) if found["lane"] is not None else None
    return Session(number, server, client, int(found["token"]), lane)


class Takeover:
    """One taker's watch over a cluster."""

    def __init__(self, token: int) -> None:
        """`token`: the one that the taker has raised."""
        self._token = token
        self._quiet_since: float | None = None

    def after(self, look: Look, now: float) -> Step:
        """The next step, after a look that began at `now`, in seconds of a clock that does not go back."""
        older = tuple(one for one in look.sessions if TAKING < one.token < self._token)
        if older or look.silent or look.jobs:
            self._quiet_since = None
            return Step(older, waits_for="; ".join([*map(str, older), *look.silent, *look.jobs]))
        if self._quiet_since is None:
            self._quiet_since = now
        return Step(settled=now - self._quiet_since >= QUIET_S)


def may_end(sessions: Sequence[Session], upto: int | None) -> list[Session]:
    """The sessions to end before the token is raised: up to this token; None: all, takers too."""
    return [one for one in sessions if upto is None or TAKING < one.token <= upto]


def holder_in_words(look: Look, server: str) -> str:
    """Which connection has the target; empty: none has. Says so when it is not known."""
    found = holder_of(look.sessions)
    words = f"connection {found.number} of {server} from {found.client}" if found is not None else ""
    if not look.silent:
        return words
    unknown = f"unknown, because not all TiDB servers have answered ({'; '.join(look.silent)})"
    return f"{unknown}; of the others {words}" if words else unknown


def holder_of(sessions: Sequence[Session]) -> Session | None:
    """The control connection of the consumer that has the target: a session gets its name with its token."""
    controls = [one for one in sessions if one.lane is None and one.token > TAKING]
    return max(controls, key=lambda one: one.token, default=None)
