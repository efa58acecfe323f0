"""The schemes of Iceberg targets. Needs no pyiceberg."""

from __future__ import annotations

from typing import Final

SCHEME: Final = "iceberg"
"""A directory: `iceberg:///directory`."""
BUCKETS: Final = "iceberg+s3"
"""A prefix of a bucket: `iceberg+s3://bucket/prefix`."""
