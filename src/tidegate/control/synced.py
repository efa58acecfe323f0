"""Whether a changefeed is synced: as far as can be known, all upstream changes are downstream. Pure.

The rule is that of TiCDC's GET /changefeeds/ID/synced (tiflow `cdc/api/v2/changefeed.go`), which people use
before they switch over to the target: no row was delivered for a while, and the checkpoint follows upstream's
time.
"""

from __future__ import annotations

from tidegate.model.timestamp import physical_ms


def synced(
    checkpoint: int, resolved: int, last_synced: int, now: int, check_s: int, checkpoint_s: int
) -> tuple[bool, str]:
    """(verdict, why in words). The first four are timestamps; `last_synced` 0: no row was delivered yet."""
    if _between_s(last_synced, now) <= check_s:
        return False, f"rows were delivered within the last {check_s} s: not synced yet"
    if _between_s(checkpoint, now) < checkpoint_s:
        return True, "synced: the checkpoint follows upstream's time and no row is on its way"
    if _between_s(checkpoint, resolved) < checkpoint_s:
        return False, (
            "everything received is delivered, but upstream's resolved ts does not advance: check that PD "
            "and all regions of TiKV are available; if they are not, all that could be read is downstream"
        )
    return False, "the checkpoint is behind what was received: not synced yet"


def _between_s(earlier: int, later: int) -> float:
    return (physical_ms(later) - physical_ms(earlier)) / 1000
