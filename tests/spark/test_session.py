"""What Spark must not do in a process that is driver and executor at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_no_jump_of_the_clock_lets_the_driver_take_its_executor_for_dead(spark: SparkSession) -> None:
    settings = spark.sparkContext._jsc.sc().conf()  # type: ignore[attr-defined]
    patience_ms = settings.getTimeAsMs("spark.storage.blockManagerHeartbeatTimeoutMs", "120s")
    assert patience_ms > 10 * 365 * 86_400_000
