r"""The registration of one range at one region, as a state machine, and the reaction to each failure.

```
            Initialized             Failed, Violated, StreamLost, Stopped
 SCANNING ---------------> LIVE ------------------------------------------> ENDED
     \____________________________________________________________________/
```

A registration is used once. When it fails, its range is unlocked at the ts that it has reached, and located
again after a pause: at the leader that the error named, otherwise through PD, which knows about splits and
merges. Pauses grow for each range, continue to grow across region changes, and start over at Initialized.
Errors by kind: TiKV `components/cdc` and ticdc `logservice/logpuller`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

from tidegate.errors import Fatal, TidegateError
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.model.timestamp import physical_ms
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.match.matcher import Violation


class State(StrEnum):
    """The state of a registration."""

    SCANNING = "scanning"
    LIVE = "live"
    ENDED = "ended"


class Reason(StrEnum):
    """The reason why a range must be registered again."""

    NOT_LEADER = "not_leader"
    EPOCH = "epoch_not_match"
    REGION_NOT_FOUND = "region_not_found"
    CONGESTED = "congested"
    BUSY = "server_is_busy"
    DUPLICATE = "duplicate_request"
    VIOLATION = "violation"
    STREAM = "stream_lost"
    PD = "pd_unreachable"
    HELD = "range_held"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pause:
    """base_ms * 2^n, at most cap_ms, half of it random."""

    base_ms: int
    cap_ms: int


PAUSES: Final[dict[Reason, Pause]] = {
    Reason.NOT_LEADER: Pause(5, 500),
    Reason.EPOCH: Pause(5, 500),
    Reason.REGION_NOT_FOUND: Pause(20, 1_000),
    Reason.CONGESTED: Pause(50, 2_000),
    Reason.BUSY: Pause(50, 2_000),
    Reason.DUPLICATE: Pause(100, 5_000),
    Reason.VIOLATION: Pause(100, 5_000),
    Reason.STREAM: Pause(50, 1_000),
    Reason.PD: Pause(100, 2_000),
    Reason.HELD: Pause(10, 200),
    Reason.SILENT: Pause(100, 2_000),
    Reason.UNKNOWN: Pause(100, 2_000),
}

BUSY_CAP_MS: Final = 600_000
"""The longest pause that a store's `server_is_busy` error can request."""

VIOLATIONS_MAX: Final = 10
"""The puller stops when a range breaks the contract more often than this in a row."""
SETTLED_MS: Final = 60_000
"""If a range works for this long (in commit time) after a violation, its count of violations starts over."""


PATIENCE_DOUBLINGS: Final = 4
HINTS_MAX: Final = 3
"""The leader that a store names is used at most this often in a row; then PD is asked, because two stores may
name each other."""


@dataclass(frozen=True, slots=True)
class History:
    """The failed attempts and violations of a range since it last worked."""

    attempts: int = 0
    violations: int = 0
    violated_ts: int = 0
    """The commit_ts of the row that last broke the contract."""


# Events


@dataclass(frozen=True, slots=True)
class Initialized:
    """The incremental scan has ended."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The store sent an error for this registration."""

    error: cdcpb.Error


@dataclass(frozen=True, slots=True)
class Violated:
    """The matcher found a row that violates the contract."""

    violation: Violation
    commit_ts: int


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream ended, and with it all its registrations."""

    why: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing has arrived for this registration for long, on a live stream (tiflow#6914, tiflow#10157)."""


Event = Initialized | Failed | Violated | StreamLost | Silent


# Effects


@dataclass(frozen=True, slots=True)
class Deregister:
    """Ask the store to end the registration, because it may still send events for it."""


@dataclass(frozen=True, slots=True)
class Relocate:
    """Unlock the range and locate it again after `after_s` seconds; `leader_store` 0: through PD."""

    reason: Reason
    after_s: float
    history: History
    leader_store: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the puller, because a person must act."""

    error: TidegateError


Effect = Deregister | Relocate | Stop


def pause_s(reason: Reason, attempts: int, random: Random, at_least_ms: int = 0) -> float:
    """The seconds to wait before attempt number `attempts` + 1."""
    pause = PAUSES[reason]
    # The shift is bounded, because attempts are not.
    flat = min(pause.cap_ms, pause.base_ms << min(attempts, 20))
    return max(min(at_least_ms, BUSY_CAP_MS), flat * (0.5 + 0.5 * random.random())) / 1000


class RegionFeed:
    """One registration of `bounds` (raw keys) at `region`."""

    def __init__(self, bounds: Span, region: RegionInfo, history: History, random: Random) -> None:
        self.bounds, self.region = bounds, region
        self.state = State.SCANNING
        self._history, self._random = history, random

    def patience_s(self, live_s: float) -> float:
        """How long the registration may be silent, in seconds.

        `live_s` once it is live; during a scan it doubles with each attempt. A store scans only a few regions
        at a time, and a region that waits for its scan is as silent as one that the store has forgotten.
        """
        tries = self._history.attempts if self.state is State.SCANNING else 0
        return live_s * (1 << min(tries, PATIENCE_DOUBLINGS))

    def step(self, event: Event) -> list[Effect]:
        """The effects of an event; none after ENDED."""
        if self.state is State.ENDED:
            return []
        match event:
            case Initialized():
                self.state = State.LIVE
                # Violations stay: a range may pass each scan and then break the contract again.
                self._history = replace(self._history, attempts=0)
                return []
            case Failed(error):
                return self._failed(error)
            case Violated(violation, commit_ts):
                return self._violated(violation, commit_ts)
            case StreamLost():
                return [self._again(Reason.STREAM)]
            case Silent():
                return [Deregister(), self._again(Reason.SILENT)]

    def _failed(self, error: cdcpb.Error) -> list[Effect]:
        # No retry helps: every region of this store would give the same answer.
        if error.HasField("compatibility") or error.HasField("cluster_id_mismatch"):
            self.state = State.ENDED
            return [Stop(_refused(error, self.region))]
        if error.HasField("not_leader"):
            store = int(error.not_leader.leader.store_id)
            # A store may know no more than we do, and two such stores could name each other for ever. Then PD
            # decides.
            trusted = self._history.attempts < HINTS_MAX
            return [self._again(Reason.NOT_LEADER, leader_store=store if trusted else 0)]
        if error.HasField("server_is_busy"):
            return [self._again(Reason.BUSY, at_least_ms=int(error.server_is_busy.backoff_ms))]
        # The store still has the last registration under this request id.
        if error.HasField("duplicate_request"):
            return [Deregister(), self._again(Reason.DUPLICATE)]
        kinds = (Reason.EPOCH, Reason.REGION_NOT_FOUND, Reason.CONGESTED)
        reason = next((r for r in kinds if error.HasField(r.value)), Reason.UNKNOWN)
        return [self._again(reason)]

    def _violated(self, violation: Violation, commit_ts: int) -> list[Effect]:
        # In commit time, so a slow catch-up does not look like a long time without violations.
        settled = physical_ms(commit_ts) - physical_ms(self._history.violated_ts) > SETTLED_MS
        count = 1 if settled else self._history.violations + 1
        if count > VIOLATIONS_MAX:
            self.state = State.ENDED
            return [Deregister(), Stop(_broken(violation, commit_ts, self.region))]
        self._history = History(self._history.attempts, count, commit_ts)
        return [Deregister(), self._again(Reason.VIOLATION)]

    def _again(self, reason: Reason, *, at_least_ms: int = 0, leader_store: int = 0) -> Relocate:
        self.state = State.ENDED
        after = pause_s(reason, self._history.attempts, self._random, at_least_ms)
        history = replace(self._history, attempts=self._history.attempts + 1)
        return Relocate(reason, after, history, leader_store)


def _refused(error: cdcpb.Error, region: RegionInfo) -> Fatal:
    if error.HasField("cluster_id_mismatch"):
        return Fatal(
            "the store belongs to another cluster",
            where=f"store {region.leader_store_id}",
            why=f"it is cluster {error.cluster_id_mismatch.current}",
            fix="check the PD address; the event store's folder names the cluster it was made for",
        )
    return Fatal(
        "the store does not serve this kind of change feed",
        where=f"store {region.leader_store_id}",
        why=f"it needs version {error.compatibility.required_version}",
        fix="upgrade the cluster, or use the kv mode it supports",
    )


def _broken(violation: Violation, commit_ts: int, region: RegionInfo) -> Fatal:
    return Fatal(
        "a region keeps breaking the change feed's contract",
        where=f"region {region.id} at store {region.leader_store_id}, commit_ts {commit_ts}",
        why=f"{violation.name.lower().replace('_', ' ')}, {VIOLATIONS_MAX} registrations in a row",
        fix="compare source and target; report it with the store's log",
    )
