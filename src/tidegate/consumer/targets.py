"""Which targets there are: the one list that names them."""

from __future__ import annotations

from pathlib import Path

from tidegate.consumer.delta.maintenance import Upkeep
from tidegate.consumer.delta.target import DeltaAddress
from tidegate.consumer.snapshots import target_directory
from tidegate.consumer.target import Address


def address_of(target: str | Path, upkeep: Upkeep) -> Address:
    """What `--target` means: `delta:///directory` or a plain path; InvalidInput for anything else."""
    return DeltaAddress(target_directory(target), upkeep)
