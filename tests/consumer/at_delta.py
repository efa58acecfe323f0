"""An applier over a directory of Delta tables, as a job puts it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.delta.target import FOLDER, DeltaTarget


def applier_of(root: Path, time_zone: str = "UTC", **options: Any) -> Applier:
    """One that writes `root`; the target is its `target`."""
    return Applier(DeltaTarget(root), root / FOLDER, time_zone, **options)
