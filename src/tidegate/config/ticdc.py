"""Options that only TiCDC has: without effect here, or refused unless their value requests nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

TUNING: Final = frozenset(
    [
        "memory_quota",
        "worker_num",
        "encoder_concurrency",
        "kafka_version",
        "max_retry",
        "advance_timeout",
        "advance_timeout_in_sec",
        "send_bootstrap_interval_in_sec",
        "send_bootstrap_in_msg_count",
        "send_bootstrap_to_all_partition",
        "terminator",
        "date_separator",
        "enable_partition_separator",
        "file_index_digit",
        "enable_kafka_sink_v2",
        "csv",
        "performance_mode",
        "sql_mode",
        "large_message_only_handle_key_columns",
    ]
)
"""Options of TiCDC that tune its own machinery or belong to sinks this feed does not use: no effect here."""

TO_COME: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "enable_sync_point": (False,),
        "sync_point_interval": (),
        "sync_point_retention": (),
        "enable_table_monitor": (False,),
        "bdr_mode": (False,),
        "enable_active_active": (False,),
        "mounter": (),
        "consistent": (),
        "consistent.level": ("none", ""),
        "scheduler.region_per_span": (),
        "scheduler.write_key_threshold": (),
        "scheduler.region_count_refresh_interval": (),
        "scheduler.scheduling_task_count_per_node": (),
        "scheduler.enable_splittable_check": (),
        "scheduler.force_split": (),
        "scheduler.balance_score_threshold": (),
        "scheduler.min_traffic_percentage": (),
        "scheduler.max_traffic_percentage": (),
        "sink.transaction_atomicity": ("none", "", None),
        "sink.safe_mode": (False, None),
        "sink.send_all_bootstrap_at_start": (False,),
        "sink.mysql_config": (),
        "sink.cloud_storage_config": (),
        "sink.pulsar_config": (),
        "sink.kafka_config.glue_schema_registry_config": (None, {}),
        "sink.kafka_config.sasl_gssapi_auth_type": ("", None),
    }
)
"""Options that Tidegate does not support yet, with the values that request nothing; (): any value."""


URI_TUNING: Final = frozenset({"kafka-version", "max-retry"})
URI_TO_COME: Final = frozenset(
    [
        "sasl-gssapi-auth-type",
        "sasl-gssapi-keytab-path",
        "sasl-gssapi-kerberos-config-path",
        "sasl-gssapi-service-name",
        "sasl-gssapi-user",
        "sasl-gssapi-password",
        "sasl-gssapi-realm",
        "sasl-gssapi-disable-pafxfast",
        "transaction-atomicity",
        "safe-mode",
    ]
)
