"""Scripts of a registration: `testdata/region_feed/*.txt`. A command is an event of `RegionFeed`.

    range                                  a range without a past
    register region=4                      it is registered, with what it has been through so far
    patience live=300                      for how many seconds it may be silent
    initialized, stream-lost, silent
    violated prewrite-missing commit-ts=7  also in seconds of physical time: commit-ts=61s
    not-leader [store=9], epoch-not-match, region-not-found, congested, server-is-busy [backoff-ms=7000],
    duplicate-request, compatibility needs=9.9.9, cluster-id-mismatch current=1, unknown
    rounds=3 congested                     register and fail, so many times

Each prints the effects. Pauses are random, so the shortest and the longest are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from random import Random

from tests.scripts import Command
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import metapb_pb2 as metapb
from tidegate.puller.match.matcher import Violation
from tidegate.puller.region_feed import (
    Deregister,
    Effect,
    Event,
    Failed,
    History,
    Initialized,
    RegionFeed,
    Relocate,
    Silent,
    Stop,
    StreamLost,
    Violated,
)


class _Always(Random):
    """It always draws the same: an end of what is possible."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self._drawn = drawn

    def random(self) -> float:
        return self._drawn


class RegionFeedScript:
    """A range, and its registration as it is with the shortest and with the longest pauses."""

    def __init__(self) -> None:
        self._history = History()
        self._feeds: tuple[RegionFeed, RegionFeed] | None = None
        self._region = 0

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        match command.name:
            case "range":
                self._history, self._feeds = History(), None
            case "register":
                self._register(command.number("region"))
            case "patience":
                assert self._feeds is not None, "nothing is registered"
                return f"region {self._region}: {self._feeds[0].patience_s(command.number('live')):g} s"
            case _ if command.name.startswith("rounds="):
                name, *words = command.words
                event, found = _event(replace(command, name=name, words=tuple(words))), []
                for _ in range(int(command.name.removeprefix("rounds="))):
                    self._register(self._region)
                    found.append(self._step(event))
                return "\n".join(_counted(found))
            case _:
                return self._step(_event(command))
        return ""

    def _register(self, region: int) -> None:
        self._region, info = region, RegionInfo(region, b"", b"", 2, 1, 41, 1)
        shortest, longest = (
            RegionFeed(Span(b"a", b"z"), info, self._history, _Always(end)) for end in (0.0, 1.0)
        )
        self._feeds = shortest, longest

    def _step(self, event: Event) -> str:
        assert self._feeds is not None, "nothing is registered"
        early, late = (feed.step(event) for feed in self._feeds)
        reported = [_text(*pair) for pair in zip(early, late, strict=True)]
        self._history = next((e.history for e in late if isinstance(e, Relocate)), self._history)
        return f"region {self._region} {self._feeds[0].state}: {', '.join(reported) or 'nothing to do'}"


def _counted(lines: list[str]) -> Iterator[str]:
    """Lines that are the same one after the other, once."""
    for line, same in groupby(lines):
        times = len(list(same))
        yield line if times == 1 else f"{line}, {times} times"


def _text(early: Effect, late: Effect) -> str:
    match early, late:
        case Deregister(), Deregister():
            return "deregister"
        case Relocate(reason, shortest, _, leader), Relocate(_, longest):
            assert late == replace(early, after_s=longest), "only the pauses differ"
            ends = (
                f"{shortest * 1000:g}"
                if shortest == longest
                else f"{shortest * 1000:g} to {longest * 1000:g}"
            )
            place = f"at store {leader}" if leader else "through PD"
            return f"locate again after {ends} ms {place} ({reason})"
        case Stop(error), Stop():
            assert error.fix
            return f"stop, {error.what} ({error.where}): {error.why}"
    raise AssertionError("both feeds do the same")


def _event(command: Command) -> Event:
    store = command.number("store", 0)
    leader = metapb.Peer(id=5, store_id=store) if store else None
    match command.name, command.words:
        case "initialized", ():
            return Initialized()
        case "stream-lost", ():
            return StreamLost("gone")
        case "silent", ():
            return Silent()
        case "violated", (rule,):
            return Violated(Violation[rule.upper().replace("-", "_")], _ts(command.options["commit-ts"]))
        case "not-leader", ():
            return Failed(cdcpb.Error(not_leader=errorpb.NotLeader(leader=leader)))
        case "epoch-not-match", ():
            return Failed(cdcpb.Error(epoch_not_match=errorpb.EpochNotMatch()))
        case "region-not-found", ():
            return Failed(cdcpb.Error(region_not_found=errorpb.RegionNotFound()))
        case "congested", ():
            return Failed(cdcpb.Error(congested=cdcpb.Congested()))
        case "server-is-busy", ():
            busy = errorpb.ServerIsBusy(backoff_ms=command.number("backoff-ms", 0))
            return Failed(cdcpb.Error(server_is_busy=busy))
        case "duplicate-request", ():
            return Failed(cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest()))
        case "compatibility", ():
            needs = cdcpb.Compatibility(required_version=command.options["needs"])
            return Failed(cdcpb.Error(compatibility=needs))
        case "cluster-id-mismatch", ():
            other = cdcpb.ClusterIDMismatch(current=command.number("current"), request=2)
            return Failed(cdcpb.Error(cluster_id_mismatch=other))
        case "unknown", ():
            return Failed(cdcpb.Error())
    raise ValueError(f"{command.where}: a registration does not know '{command.name}'")


def _ts(text: str) -> int:
    return int(text[:-1]) * 1000 << 18 if text.endswith("s") else int(text)
