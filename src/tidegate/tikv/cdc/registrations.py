"""The registrations of a store: which downstream follows which region, and for which stream.

A downstream is listed at its connection, by request id and region, and at the delegate of its region. Both
lists change together, and only on the endpoint's thread. A region is observed while it has a downstream.
"""

from __future__ import annotations

import logging
from typing import Final

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.proto import errorpb_pb2
from tidegate.tikv.cdc.capture_errors import as_capture_error, ended_by
from tidegate.tikv.cdc.delegate import Announced, Delegate, Downstream
from tidegate.tikv.cdc.observer import CdcObserver
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import CommandKind, RegionChange
from tidegate.tikv.raft.region_table import RegionTable

REGISTRATIONS_MAX: Final = 1 << 18
"""Registrations of all streams of a store: each takes some KB, even if nothing happens in its region."""

_log = logging.getLogger(__name__)
_SILENCE: Final = Announced([b""], [[]])


class Registrations:
    """The streams and downstreams of one store."""

    def __init__(self, regions: RegionTable, observer: CdcObserver, store_id: int, *, raw: bool) -> None:
        """`raw`: whether raw keys can be captured (API V2)."""
        self._regions, self._observer, self._store_id, self._raw = regions, observer, store_id, raw
        self.delegates: dict[int, Delegate] = {}
        """By region; each has at least one downstream."""
        self.connections: dict[int, Connection] = {}

    @property
    def are_full(self) -> bool:
        """Whether no more downstreams may be added."""
        return sum(len(one.downstreams) for one in self.connections.values()) >= REGISTRATIONS_MAX

    def leads(self, region_id: int, version: int) -> Region | pb.Error:
        """The region, if the store leads this version of it; otherwise the error. Any thread may call it."""
        region = self._regions.check_capture(region_id, version, self._store_id)
        return region if isinstance(region, Region) else as_capture_error(region)

    def announced(self, region_id: int) -> Announced:
        """The messages sent to the region's present downstreams, by key. Any thread may call it."""
        delegate = self.delegates.get(region_id)
        return _SILENCE if delegate is None else delegate.announced

    def add(self, connection: Connection, downstream: Downstream) -> None:
        """Register a downstream; from now on its region is observed."""
        region = downstream.region
        downstream.home = connection.downstreams
        downstream.home[downstream.request_id, region.id] = downstream
        self.delegates.setdefault(region.id, Delegate(region, self._raw)).add(downstream)
        # Before the scan takes its snapshot: a command that is neither observed nor in the snapshot would be
        # lost.
        self._observer.observe(region.id)

    def drop(self, downstream: Downstream, error: pb.Error | None) -> None:
        """Forget a downstream; `error` is its last event."""
        # First, so that nothing more is sent for a downstream that is about to disappear from the lists.
        downstream.channel.fail(downstream, None if error is None else downstream.error(error))
        region_id = downstream.region.id
        # By identity: a scan that failed drops its downstream once more, and the client may have registered
        # again by then.
        if downstream.home.get((downstream.request_id, region_id)) is downstream:
            del downstream.home[downstream.request_id, region_id]
        delegate = self.delegates.get(region_id)
        if delegate is not None and downstream in delegate.downstreams:
            delegate.remove(downstream)
            if not delegate.downstreams:
                del self.delegates[region_id]
                self._observer.ignore(region_id)

    def deregister(self, connection: Connection, request_id: int, region_id: int) -> None:
        """End the downstreams of a request at a region; 0: at all regions."""
        for (asked, region), downstream in list(connection.downstreams.items()):
            if asked == request_id and region_id in (0, region):
                missing = errorpb_pb2.RegionNotFound(region_id=region)
                self.drop(downstream, pb.Error(region_not_found=missing))

    def congest(self, downstream: Downstream) -> None:
        """End a downstream with Congested."""
        self.drop(downstream, pb.Error(congested=pb.Congested(region_id=downstream.region.id)))

    def congest_region(self, region_id: int) -> None:
        """End all downstreams of a region with Congested; 0: of all regions."""
        for number, delegate in list(self.delegates.items()):
            if region_id in (0, number):
                for downstream in list(delegate.downstreams):
                    self.congest(downstream)

    def change(self, change: RegionChange) -> None:
        """A region has changed: end the downstreams of what it was, with an error."""
        for region in change.before:
            delegate = self.delegates.get(region.id)
            if delegate is not None and change.kind in (
                CommandKind.PREPARE_FLASHBACK,
                CommandKind.FINISH_FLASHBACK,
            ):
                delegate.flashback = change.now[0].flashback
            error = ended_by(change, region, self._store_id)
            if delegate is not None and error is not None:
                for downstream in list(delegate.downstreams):
                    self.drop(downstream, error)

    def end_version(self, region: Region, error: pb.Error) -> None:
        """End the downstreams that were registered at this version of a region."""
        delegate = self.delegates.get(region.id)
        for each in list(delegate.downstreams) if delegate is not None else ():
            if each.region.version == region.version:
                self.drop(each, error)

    def close(self, connection: Connection) -> None:
        """Forget a stream; its downstreams end without an error."""
        for downstream in list(connection.downstreams.values()):
            self.drop(downstream, None)
        self.connections.pop(connection.id, None)

    def close_all(self) -> None:
        """End all streams."""
        for connection in list(self.connections.values()):
            connection.channel.close()
            self.close(connection)

    def end_stuck(self, idle_s: float) -> None:
        """End the streams that are full and have sent nothing for `idle_s`: their clients read nothing."""
        for connection in list(self.connections.values()):
            if connection.channel.is_stuck(idle_s):
                _log.warning("cdc stream is stuck and is ended", extra={"connection": connection.id})
                self.close(connection)
                connection.channel.cancel("connection cancelled")
