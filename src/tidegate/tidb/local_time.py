"""Converts TIMESTAMP cells from UTC to a feed's zone, by column: kernels then print them like DATETIME."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidegate.model.cells import Image
from tidegate.tidb.types import temporal


def localised(image: Image, columns: Sequence[int], valid: npt.NDArray[np.bool_], time_zone: str) -> Image:
    """The image with these TIMESTAMP columns in a zone; the same object if there is nothing to convert.

    `valid` marks the rows that have this image. Each distinct value is converted once, with plain Python.
    """
    if time_zone == "UTC" or not columns:
        return image
    local, zone = image.words.copy(), temporal.zone(time_zone)
    for column in columns:
        shown = valid & (image.sizes[:, column] >= 0)
        packed, inverse = np.unique(image.words[shown, column], return_inverse=True)
        moved = [temporal.pack(temporal.in_zone(int(word), zone)) for word in packed]
        local[shown, column] = np.array(moved, dtype=np.int64)[inverse]
    return Image(local, image.sizes)
