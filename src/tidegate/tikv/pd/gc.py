"""GC safepoints: which services need old versions, and from which timestamp on. Durable.

A service (a changefeed's capture, a backup) holds a safepoint for a time to live, measured in PD's time.
`gc_worker` is the service of the collector itself: it always exists, never expires, and begins at 0. The
smallest safepoint limits the collection; a service cannot set a smaller one. (PD: server/grpc_service.go
`UpdateServiceGCSafePoint`.)
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from typing import Final

from tidegate.model import timestamp
from tidegate.tikv.engine import META, Engine

SERVICES_KEY: Final = b"gc/services"
SAFE_POINT_KEY: Final = b"gc/safe_point"
GC_WORKER: Final = "gc_worker"
_FOREVER_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ServiceSafePoint:
    """The safepoint of one service. `expires_ms`: a physical time of PD's."""

    service_id: str
    safe_point: int
    expires_ms: int

    def ttl_s(self, now_ts: int) -> int:
        """The seconds left at PD's time `now_ts`."""
        return max(0, self.expires_ms - timestamp.physical_ms(now_ts)) // 1000


class SafePoints:
    """The table of service safepoints and the cluster's own. Thread-safe."""

    def __init__(self, engine: Engine, scope: bytes = b"") -> None:
        """`scope`: identifies a keyspace with its own GC; empty for the rest of the cluster."""
        self._engine = engine
        self._mutex = threading.Lock()
        self._services_key, self._point_key = SERVICES_KEY + scope, SAFE_POINT_KEY + scope
        stored = json.loads(engine.get(META, self._services_key) or b"[]")
        self._services = {each["service_id"]: ServiceSafePoint(**each) for each in stored}
        self._services.setdefault(GC_WORKER, ServiceSafePoint(GC_WORKER, 0, _FOREVER_MS))
        self._safe_point = int.from_bytes(engine.get(META, self._point_key) or b"", "big")

    @property
    def safe_point(self) -> int:
        """Versions that are not visible at this ts may have been removed."""
        return self._safe_point

    @property
    def txn_safe_point(self) -> int:
        """No transaction may read below this ts, because the collector has announced it."""
        return max(self._safe_point, self._services[GC_WORKER].safe_point)

    def services(self, now_ts: int) -> list[ServiceSafePoint]:
        """The services that have not expired, the smallest safepoint first."""
        with self._mutex:
            return self._alive(now_ts)

    def update_service(self, service_id: str, ttl_s: int, safe_point: int, now_ts: int) -> ServiceSafePoint:
        """Set, renew or (ttl_s <= 0) remove a service's safepoint; returns the smallest one afterwards.

        A request below the current smallest safepoint changes nothing; the caller sees this in the answer.
        """
        with self._mutex:
            alive = self._alive(now_ts)
            if ttl_s <= 0 and service_id != GC_WORKER:
                self._services.pop(service_id, None)
                self._store()
            elif safe_point >= alive[0].safe_point:
                ends = min(timestamp.physical_ms(now_ts) + ttl_s * 1000, _FOREVER_MS)
                # As in PD: the safepoint of TiDB's own GC never expires.
                expires = _FOREVER_MS if service_id == GC_WORKER else ends
                self._services[service_id] = ServiceSafePoint(service_id, safe_point, expires)
                self._store()
            return self._alive(now_ts)[0]

    def set_barrier(self, barrier_id: str, ttl_s: int, ts: int, now_ts: int) -> ServiceSafePoint | None:
        """Set or renew a named safepoint (a GC barrier of newer clients); None if `ts` is too old.

        It may be below the safepoints of other services, but not below `txn_safe_point`.
        """
        with self._mutex:
            # Expired services are forgotten first, so that they neither stay stored nor hold anything.
            self._alive(now_ts)
            if ts < self.txn_safe_point:
                return None
            ends = min(timestamp.physical_ms(now_ts) + ttl_s * 1000, _FOREVER_MS)
            held = self._services[barrier_id] = ServiceSafePoint(barrier_id, ts, ends)
            self._store()
            return held

    def delete_barrier(self, barrier_id: str, now_ts: int) -> ServiceSafePoint | None:
        """Remove a safepoint and return it; None if there was none."""
        with self._mutex:
            self._alive(now_ts)
            held = None if barrier_id == GC_WORKER else self._services.pop(barrier_id, None)
            if held is not None:
                self._store()
            return held

    def update(self, safe_point: int, now_ts: int) -> int:
        """Raise the cluster's safepoint as far as `safe_point` and services allow; returns the new one."""
        with self._mutex:
            others = [each.safe_point for each in self._alive(now_ts) if each.service_id != GC_WORKER]
            allowed = min([safe_point, *others])
            if allowed > self._safe_point:
                self._safe_point = allowed
                # The collector's own safepoint follows, so that no service can be set below what may be
                # removed now.
                worker = self._services[GC_WORKER]
                kept = ServiceSafePoint(GC_WORKER, max(worker.safe_point, allowed), _FOREVER_MS)
                self._services[GC_WORKER] = kept
                self._store()
            return self._safe_point

    def _alive(self, now_ts: int) -> list[ServiceSafePoint]:
        now_ms = timestamp.physical_ms(now_ts)
        self._services = {name: each for name, each in self._services.items() if each.expires_ms >= now_ms}
        return sorted(self._services.values(), key=lambda each: (each.safe_point, each.service_id))

    def _store(self) -> None:
        services = json.dumps([asdict(each) for each in self._services.values()]).encode()
        point = self._safe_point.to_bytes(8, "big")
        self._engine.write([(META, self._services_key, services), (META, self._point_key, point)])
        # Durable before the answer: from it on, the caller relies on the history that it holds.
        self._engine.sync()
