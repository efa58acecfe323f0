"""The errors of ChangeData for region errors, and for regions that change under a capture."""

from __future__ import annotations

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.proto import errorpb_pb2
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import CommandKind, RegionChange
from tidegate.tikv.raft.region_table import not_leader


def ended_by(change: RegionChange, region: Region, store_id: int) -> pb.Error | None:
    """The error that ends the downstreams of a region at a store when it changes; None: they continue."""
    match change.kind:
        case CommandKind.SPLIT:
            current = [each.message for each in change.now]
            return pb.Error(epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=current))
        case CommandKind.COMMIT_MERGE if region in change.gone:
            return pb.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=region.id))
        case CommandKind.PREPARE_MERGE | CommandKind.COMMIT_MERGE | CommandKind.ROLLBACK_MERGE:
            return pb.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())
        case CommandKind.TRANSFER:
            (now,) = change.now
            return None if now.leader == store_id else as_capture_error(not_leader(now))
        # Leader and keys stay, so the registration serves the same rows as before.
        case CommandKind.CHANGE_PEERS | CommandKind.PREPARE_FLASHBACK | CommandKind.FINISH_FLASHBACK:
            return None


def as_capture_error(error: errorpb_pb2.Error) -> pb.Error:
    """A region error as ChangeData sends it."""
    if error.HasField("not_leader"):
        return pb.Error(not_leader=error.not_leader)
    if error.HasField("epoch_not_match"):
        return pb.Error(epoch_not_match=error.epoch_not_match)
    if error.HasField("flashback_in_progress"):  # TiKV sends it for every error without a form of its own
        missing = errorpb_pb2.RegionNotFound(region_id=error.flashback_in_progress.region_id)
        return pb.Error(region_not_found=missing)
    return pb.Error(region_not_found=error.region_not_found)
