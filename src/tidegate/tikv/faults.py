"""Fault injection, for tests and for `tidegate upstream fault`. All faults are off at the start.

Every knob is a plain attribute, which the affected component reads. One-time actions such as cutting streams
or stopping stores are methods of `server` and not knobs.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

from tidegate.errors import InvalidInput
from tidegate.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2

DELAY_MAX_S: Final = 60.0
KV_ERRORS: Final[dict[str, Callable[[], errorpb_pb2.Error]]] = {
    "not_leader": lambda: errorpb_pb2.Error(message="injected", not_leader=errorpb_pb2.NotLeader()),
    "region_not_found": lambda: errorpb_pb2.Error(
        message="injected", region_not_found=errorpb_pb2.RegionNotFound()
    ),
    "epoch_not_match": lambda: errorpb_pb2.Error(
        message="injected", epoch_not_match=errorpb_pb2.EpochNotMatch()
    ),
    "server_is_busy": lambda: errorpb_pb2.Error(
        message="injected", server_is_busy=errorpb_pb2.ServerIsBusy(reason="injected", backoff_ms=5)
    ),
    "stale_command": lambda: errorpb_pb2.Error(message="injected", stale_command=errorpb_pb2.StaleCommand()),
    "store_not_match": lambda: errorpb_pb2.Error(
        message="injected", store_not_match=errorpb_pb2.StoreNotMatch()
    ),
    "max_timestamp_not_synced": lambda: errorpb_pb2.Error(
        message="injected", max_timestamp_not_synced=errorpb_pb2.MaxTimestampNotSynced()
    ),
}
"""The region errors that can be injected into a store's answers."""
CAPTURE_ERRORS: Final = (
    "not_leader",
    "region_not_found",
    "epoch_not_match",
    "duplicate_request",
    "server_is_busy",
    "congested",
)
"""The errors that can end a registration, except those that end a client for good."""


def capture_error(name: str, region_id: int) -> cdcpb_pb2.Error:
    """The error of a name in CAPTURE_ERRORS, for a region."""
    error = cdcpb_pb2.Error()
    field = getattr(error, name)
    # An error without members is otherwise not there at all, and the client would get none.
    field.SetInParent()
    if "region_id" in field.DESCRIPTOR.fields_by_name:
        field.region_id = region_id
    if name == "server_is_busy":
        field.reason, field.backoff_ms = "injected", 5
    return error


class Faults:
    """The knobs. Thread-safe: each attribute is a single value."""

    def __init__(self, seed: int = 0) -> None:
        self.apply_delay_s = 0.0
        """The delay before each apply round, in seconds."""
        self.scan_delay_s = 0.0
        """The delay of an incremental scan before each event, in seconds."""
        self.snapshot_delay_s = 0.0
        """The delay of an incremental scan before its snapshot is taken, in seconds."""
        self.duplicate_share = 0.0
        """The share of requests on change streams that are processed twice."""
        self.resolved_frozen = False
        """No store advances a resolved ts."""
        self.kv_errors: tuple[str, float] = ("", 0.0)
        """A region error and the share of requests that get it."""
        self.capture_errors: tuple[str, float] = ("", 0.0)
        """The same for registrations of ChangeData."""
        self.quota_bytes = 0
        """The quota of unread live events for change streams that begin from now on; 0: the default."""
        self.stores: dict[int, metapb_pb2.Store] = {}
        """Stores as PD reports them instead of the real ones, including stores that do not exist."""
        self.first_learner = 0
        """A store (for example TiFlash) with a learner of every region, which PD lists first; 0: none."""
        self.leaderless: frozenset[int] = frozenset()
        """Regions whose leader PD does not know."""
        self.unknown_calls: frozenset[str] = frozenset()
        """Calls that PD answers as an older version without them: BatchScanRegions."""
        self._random = random.Random(seed)
        self._mutex = threading.Lock()
        self.stopping = threading.Event()
        """Set when the upstream stops: delays end at once."""

    def before_apply(self) -> None:
        """Called by the apply thread before each round."""
        if self.apply_delay_s:
            self.stopping.wait(self.apply_delay_s)

    def before_scan_event(self) -> None:
        """Called by scans before each event."""
        if self.scan_delay_s:
            self.stopping.wait(self.scan_delay_s)

    def before_snapshot(self) -> None:
        """Called by scans before they request their snapshot."""
        if self.snapshot_delay_s:
            self.stopping.wait(self.snapshot_delay_s)

    def duplicates(self) -> bool:
        """Whether this request on a change stream is processed twice."""
        return self.duplicate_share > 0 and self._hits(self.duplicate_share)

    def kv_error(self) -> errorpb_pb2.Error | None:
        """The region error to return for this request; None: no error."""
        name, share = self.kv_errors
        return KV_ERRORS[name]() if name and self._hits(share) else None

    def capture_error(self, region_id: int) -> cdcpb_pb2.Error | None:
        """The error to return for this registration; None: no error."""
        name, share = self.capture_errors
        return capture_error(name, region_id) if name and self._hits(share) else None

    def _hits(self, share: float) -> bool:
        # One draw at a time, so that a seed gives one sequence of draws.
        with self._mutex:
            return self._random.random() < share

    def clear(self) -> None:
        """Turn all knobs off."""
        self.apply_delay_s = self.scan_delay_s = self.snapshot_delay_s = self.duplicate_share = 0.0
        self.resolved_frozen = False
        self.quota_bytes = 0
        self.kv_errors = self.capture_errors = ("", 0.0)
        self.stores, self.first_learner, self.leaderless = {}, 0, frozenset()
        self.unknown_calls = frozenset()

    def delay(self, name: str, milliseconds: float) -> None:
        """Set the delay `apply`, `scan` or `snapshot`. Raises InvalidInput if it is out of range."""
        seconds = milliseconds / 1000
        if not 0 <= seconds <= DELAY_MAX_S:
            raise InvalidInput(
                f"a delay of {milliseconds:g} ms is out of range", fix=f"give 0 to {DELAY_MAX_S * 1000:g} ms"
            )
        setattr(self, f"{name}_delay_s", seconds)

    def errors(self, service: str, name: str, share: float) -> None:
        """Make a share of requests (`kv`) or registrations (`capture`) fail; an empty name: none."""
        known: Any = KV_ERRORS if service == "kv" else CAPTURE_ERRORS
        if name and name not in known:
            raise InvalidInput(
                f"there is no {service} error '{name}'", fix=f"name one of these: {', '.join(known)}"
            )
        _check(share)
        if service == "kv":
            self.kv_errors = (name, share)
        else:
            self.capture_errors = (name, share)

    def duplicate(self, share: float) -> None:
        """Process this share (0 to 1) of requests on change streams twice. Raises InvalidInput."""
        _check(share)
        self.duplicate_share = share

    def lines(self) -> list[tuple[str, str]]:
        """The active knobs as (name, value)."""
        found = []
        for name in ("apply", "scan", "snapshot"):
            if delay_s := getattr(self, f"{name}_delay_s"):
                found.append((f"{name}-delay", f"{delay_s * 1000:g} ms"))
        if self.duplicate_share:
            found.append(("duplicate", f"{self.duplicate_share:.0%} of requests"))
        if self.resolved_frozen:
            found.append(("resolved-ts", "frozen"))
        if self.quota_bytes:
            found.append(("quota", f"{self.quota_bytes} bytes"))
        if self.stores:
            found.append(("stores", f"{len(self.stores)} others than there are"))
        if self.first_learner:
            found.append(("first-learner", f"store {self.first_learner}"))
        if self.leaderless:
            found.append(("leaderless", f"{len(self.leaderless)} regions"))
        for service, (name, share) in (("kv", self.kv_errors), ("capture", self.capture_errors)):
            if name and share:
                found.append((f"{service}-error", f"{name}, {share:.0%} of requests"))
        return found


def _check(share: float) -> None:
    if not 0 <= share <= 1:
        raise InvalidInput(f"a share of {share:g} is out of range", fix="give 0 to 1")
