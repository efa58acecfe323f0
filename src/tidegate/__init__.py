"""Change data capture for TiDB and TiKV, with its data pipeline on Spark."""

__version__ = "0.1.0"
