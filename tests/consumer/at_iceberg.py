"""An applier over a directory of Iceberg tables, as a job puts it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.iceberg.target import IcebergTarget
from tidegate.consumer.lakehouse.directory_lock import OWN


def applier_of(root: Path, time_zone: str = "UTC", **options: Any) -> Applier:
    """One that writes `root`; the target is its `target`."""
    return Applier(IcebergTarget(root), root / OWN, time_zone, **options)
