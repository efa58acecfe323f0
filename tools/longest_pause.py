"""The longest time for which a checkpoint did not advance, from repeated looks at it."""

from __future__ import annotations


class LongestPause:
    """Begins at `now`, in seconds of a monotonic clock. `seconds`: the longest pause that was seen."""

    def __init__(self, now: float) -> None:
        self._highest, self._rose_at, self.seconds = 0, now, 0.0

    def see(self, checkpoint: int, now: float) -> None:
        """Count a look. `checkpoint`: 0 if it could not be read."""
        # Before the comparison, because the pause that ends with this look counts as well.
        self.seconds = max(self.seconds, now - self._rose_at)
        if checkpoint > self._highest:
            self._highest, self._rose_at = checkpoint, now
