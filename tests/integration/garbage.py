"""Garbage collection during a run of chaos, and the invariant that nothing registers below the safepoint.

Upstream removes versions as fast as it is allowed to, so a reader that begins before the held history
lacks deletes and DDL that nobody can give back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from tidegate.errors import TidegateError
from tidegate.model.timestamp import Timestamp
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.server import EmbeddedUpstream

STEP_S: Final = 0.1
"""Between two moves of the safepoint."""
POLL_S: Final = 0.05
"""How often upstream's collector looks whether it may remove more."""


class Garbage:
    """Moves upstream's safepoint as far as `step` says, until `join`."""

    def __init__(self, upstream: EmbeddedUpstream, step: Callable[[], Timestamp]) -> None:
        """`step` returns what the collector asks for now; upstream caps it at the least service's hold."""
        self._upstream, self._step = upstream, step
        self._stop = threading.Event()
        self.moves = 0
        self.unexpected: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def safe_point(self) -> Timestamp:
        """Versions below it may be gone."""
        return self._upstream._safe_points.safe_point

    @property
    def collected(self) -> Timestamp:
        """Versions below it are gone."""
        return self._upstream._collector.done

    def join(self) -> None:
        """The safepoint stays where it is."""
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(STEP_S):
            try:
                before, safe_points = self.safe_point, self._upstream._safe_points
                safe_points.update(self._step(), self._upstream.tso.present())
                self.moves += self.safe_point > before
            except TidegateError:
                continue  # PD's leader is another one, or time does not advance
            except BaseException as error:
                self.unexpected.append(error)
                return


@contextmanager
def registrations_checked(upstream: EmbeddedUpstream, findings: list[str]) -> Iterator[None]:
    """Every registration that upstream gets from a ts below its safepoint is a finding."""
    admit = Endpoint._admit

    def checked(endpoint: Endpoint, connection: Any, request: Any) -> Any:
        safe_point = upstream._safe_points.safe_point
        if request.checkpoint_ts < safe_point:
            findings.append(
                f"region {request.region_id} registered from {request.checkpoint_ts}, "
                f"below the safepoint {safe_point}"
            )
        return admit(endpoint, connection, request)

    with mock.patch.object(Endpoint, "_admit", checked):
        yield
