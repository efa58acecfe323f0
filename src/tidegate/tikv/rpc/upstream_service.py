"""The gRPC service `tidegate.Upstream`: commands that only this upstream has, served at PD's address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import grpc

from tidegate.errors import InvalidInput, TidegateError
from tidegate.proto import tidegate_pb2 as pb
from tidegate.tikv.faults import Faults
from tidegate.tikv.pd.operators import Operators
from tidegate.tikv.pd.placement_driver import PlacementDriver
from tidegate.tikv.pd.stores import VERSION
from tidegate.tikv.pd.tso import TsoMode
from tidegate.tikv.raft.conf_change import PeerChange, Wish
from tidegate.tikv.raft.region import Region
from tidegate.tikv.rpc.handlers import abort

_WISHES: Final = {
    pb.ChangePeersRequest.VOTER: Wish.VOTER,
    pb.ChangePeersRequest.LEARNER: Wish.LEARNER,
    pb.ChangePeersRequest.REMOVE: Wish.REMOVE,
}


class Control(Protocol):
    """The commands on stores that the service calls: `server.EmbeddedUpstream`."""

    faults: Faults
    operators: Operators

    def stop_store(self, store_id: int) -> None: ...
    def start_store(self, store_id: int) -> None: ...
    def cut_streams(self, store_id: int = 0) -> None: ...
    def congest(self, region_id: int = 0) -> None: ...
    def split_key(self, region_id: int) -> bytes: ...
    def neighbour(self, region_id: int) -> int: ...


class UpstreamService:
    """`tidegate.Upstream`."""

    def __init__(self, pd: PlacementDriver, control: Control) -> None:
        self._pd = pd
        self._control = control

    def AdvanceTso(
        self, request: pb.AdvanceTsoRequest, context: grpc.ServicerContext
    ) -> pb.AdvanceTsoResponse:
        try:
            return pb.AdvanceTsoResponse(ts=self._pd.tso.advance(request.ts))
        except InvalidInput as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    def Info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        manual = self._pd.tso.mode is TsoMode.MANUAL
        return pb.InfoResponse(
            cluster_id=self._pd.cluster_id,
            tso_mode=pb.MANUAL if manual else pb.SYSTEM,
            tso=self._pd.tso.present(),
            store_address=self._pd.stores.all()[0].address,
            regions=len(self._pd.regions.view.regions),
            version=VERSION,
            gc_safe_point=self._pd.safe_points.safe_point,
        )

    # --- regions ---

    def Split(self, request: pb.SplitRequest, context: grpc.ServicerContext) -> pb.RegionsResponse:
        operators = self._control.operators

        def order() -> Iterable[Region]:
            if not request.region_id:
                return operators.split_at(request.keys)
            at = request.keys or [self._control.split_key(request.region_id)]
            return operators.split(request.region_id, at)

        return _regions(order, context)

    def Merge(self, request: pb.MergeRequest, context: grpc.ServicerContext) -> pb.RegionsResponse:
        def order() -> Iterable[Region]:
            target = request.target_id or self._control.neighbour(request.source_id)
            return [self._control.operators.merge(request.source_id, target)]

        return _regions(order, context)

    def Transfer(self, request: pb.TransferRequest, context: grpc.ServicerContext) -> pb.RegionsResponse:
        operators = self._control.operators
        return _regions(lambda: [operators.transfer(request.region_id, request.store_id)], context)

    def Move(self, request: pb.MoveRequest, context: grpc.ServicerContext) -> pb.RegionsResponse:
        operators = self._control.operators
        return _regions(
            lambda: [operators.move(request.region_id, request.from_store, request.to_store)], context
        )

    def ChangePeers(
        self, request: pb.ChangePeersRequest, context: grpc.ServicerContext
    ) -> pb.RegionsResponse:
        operators = self._control.operators

        def order() -> Iterable[Region]:
            if not request.changes:
                return [operators.leave_joint(request.region_id)]
            changes = [PeerChange(_WISHES[each.wish], each.store_id) for each in request.changes]
            return [operators.change_peers(request.region_id, changes, request.stay)]

        return _regions(order, context)

    # --- faults ---

    def Fault(self, request: pb.FaultRequest, context: grpc.ServicerContext) -> pb.FaultResponse:
        try:
            self._set(request, request.WhichOneof("setting"))
        except TidegateError as error:
            abort(context, error)
        return pb.FaultResponse(faults=[pb.Fault(name=name, value=value) for name, value in self._lines()])

    def _set(self, request: pb.FaultRequest, setting: str | None) -> None:
        control, faults = self._control, self._control.faults
        match setting:
            case "clear":
                faults.clear()
                self._pd.tso.thaw()
                self._pd.regions.release()
                for store in self._pd.stores.all():
                    if not store.is_up:
                        control.start_store(store.id)
            case "apply_delay_ms":
                faults.delay("apply", request.apply_delay_ms)
            case "scan_delay_ms":
                faults.delay("scan", request.scan_delay_ms)
            case "snapshot_delay_ms":
                faults.delay("snapshot", request.snapshot_delay_ms)
            case "duplicate_share":
                faults.duplicate(request.duplicate_share)
            case "tso_frozen":
                (self._pd.tso.freeze if request.tso_frozen else self._pd.tso.thaw)()
            case "resolved_frozen":
                faults.resolved_frozen = request.resolved_frozen
            case "pd_stale":
                (self._pd.regions.hold if request.pd_stale else self._pd.regions.release)()
            case "stop_store":
                control.stop_store(request.stop_store)
            case "start_store":
                control.start_store(request.start_store)
            case "cut_streams":
                control.cut_streams(request.cut_streams)
            case "congest":
                control.congest(request.congest)
            case "quota_bytes":
                faults.quota_bytes = request.quota_bytes
            case "kv_error":
                faults.errors("kv", request.kv_error.name, request.kv_error.share)
            case "capture_error":
                faults.errors("capture", request.capture_error.name, request.capture_error.share)

    def _lines(self) -> list[tuple[str, str]]:
        found = self._control.faults.lines()
        if self._pd.tso.is_frozen:
            found.append(("tso", "frozen"))
        if self._pd.regions.is_held:
            found.append(("pd", "stale"))
        down = [store.id for store in self._pd.stores.all() if not store.is_up]
        return found + [("store", f"{number} is down") for number in down]


def _regions(order: Callable[[], Iterable[Region]], context: grpc.ServicerContext) -> pb.RegionsResponse:
    try:
        return pb.RegionsResponse(regions=[_status(region) for region in order()])
    except TidegateError as error:
        abort(context, error)


def _status(region: Region) -> pb.RegionStatus:
    return pb.RegionStatus(
        id=region.id,
        start_key=region.start,
        end_key=region.end,
        version=region.version,
        conf_ver=region.conf_ver,
        leader_store=region.leader,
        term=region.term,
        stores=_sorted(region.stores),
        peers=[
            pb.PeerStatus(id=peer.id, store_id=peer.store_id, role=peer.role.words)
            for peer in sorted(region.peers, key=lambda peer: peer.store_id)
        ],
    )


def _sorted(stores: Sequence[int]) -> list[int]:
    return sorted(stores)
