"""What one changefeed is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.config.fields import dump, setting
from tidegate.config.values import TABLE_MODE


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """One `[[sink.dispatchers]]` entry; the first whose matcher fits a table wins."""

    matcher: tuple[str, ...] = ("*.*",)
    partition: str = setting("default", older="dispatcher")
    """`dispatcher` is TiCDC's older name of it."""
    index: str = ""
    columns: tuple[str, ...] = ()
    topic: str = ""
    """Topic expression with {schema} and {table}; empty: the URI's topic."""


@dataclass(frozen=True, slots=True)
class EventFilterRule:
    """One `[[filter.event-filters]]` entry: what of the tables it matches is left out (docs/filters.md)."""

    matcher: tuple[str, ...] = ()
    ignore_event: tuple[str, ...] = ()
    ignore_sql: tuple[str, ...] = ()
    """RE2 expressions, without case; a DDL whose text holds a match is not sent."""
    ignore_insert_value_expr: str = ""
    ignore_update_new_value_expr: str = ""
    ignore_update_old_value_expr: str = ""
    ignore_delete_value_expr: str = ""
    ignore_update_only_columns: tuple[str, ...] = ()
    """An update that changes no other column, and no key, is not sent."""


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """`[filter]`: which tables, transactions, DDLs and rows pass."""

    rules: tuple[str, ...] = ("*.*",)
    ignore_txn_start_ts: tuple[int, ...] = ()
    event_filters: tuple[EventFilterRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnSelector:
    """One `[[sink.column-selectors]]` entry; the first that matches a table says which columns travel."""

    matcher: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Patterns as in table rules, the last that matches wins; a column that none matches does not travel."""


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """`[sink.kafka-config.codec-config]`."""

    enable_tidb_extension: bool = False
    max_batch_size: int = 16
    """Rows in one message at most, for protocols that batch."""
    encoding_format: str = "json"
    """What simple's messages are written in; the registry says what there is."""
    avro_enable_watermark: bool = False
    avro_decimal_handling_mode: str = "precise"
    """precise, or string."""
    avro_bigint_unsigned_handling_mode: str = "long"
    """long, or string."""
    avro_include_before_value: bool = False
    """Avro, flavour new: updates and deletes have the old row."""
    output_row_key: bool = False
    """Canal-JSON, flavour new: `_tidb` has the row's key in TiKV."""


@dataclass(frozen=True, slots=True)
class LargeMessageConfig:
    """`[sink.kafka-config.large-message-handle]`: docs/formats/large-messages.md."""

    large_message_handle_option: str = "none"
    """What becomes of a row that does not fit max-message-bytes: none (the changefeed stops),
    handle-key-only, or claim-check."""
    large_message_handle_compression: str = "none"
    """Of every message's value: none, snappy or lz4."""
    claim_check_storage_uri: str = setting("", "secret")
    """Where claim-check puts such rows; with its credentials, if it has any."""
    claim_check_raw_value: bool = False
    """The storage holds the bare value, not a JSON object of key and value."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`[sink.kafka-config]` and the URI's parameters."""

    partition_num: int = 0
    """0: the topic's own count, or 3 for a topic we create."""
    replication_factor: int = 1
    max_message_bytes: int = 10_485_760
    compression: str = "none"
    kafka_client_id: str = ""
    auto_create_topic: bool = True
    dial_timeout: float = setting(10.0, "duration text")
    """Seconds to reach a broker."""
    write_timeout: float = setting(10.0, "duration text")
    """Seconds for one request."""
    read_timeout: float = setting(10.0, "duration text")
    required_acks: int = -1
    """Only -1 (all): a transactional producer knows no other."""
    enable_tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure_skip_verify: bool = False
    sasl_user: str = ""
    sasl_password: str = setting("", "secret")
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN when only a user is given."""
    output_raw_change_event: bool = False
    """False: an update of a unique key is split into delete and insert (facts 7.3)."""
    codec_config: CodecConfig = CodecConfig()
    large_message_handle: LargeMessageConfig = LargeMessageConfig()


@dataclass(frozen=True, slots=True)
class OpenConfig:
    """`[sink.open]`."""

    output_old_value: bool = True


@dataclass(frozen=True, slots=True)
class DebeziumConfig:
    """`[sink.debezium]`."""

    output_old_value: bool = True
    include_start_ts: bool = False
    """Flavour new: rows have the start ts of their transaction."""


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """`[sink]`."""

    protocol: str = ""
    """What messages look like; `codec.registry.settled` checks it and gives it its one name."""
    dispatchers: tuple[DispatchRule, ...] = ()
    column_selectors: tuple[ColumnSelector, ...] = ()
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    content_compatible: bool = False
    """Canal-JSON as Alibaba's canal writes it."""
    debezium_disable_schema: bool = False
    """Debezium: payloads only. Tidegate's consumer cannot read them."""
    schema_registry: str = setting("", "secret")
    """The URL of a registry, with its credentials, for protocols whose messages name schemas."""
    open: OpenConfig = OpenConfig()
    debezium: DebeziumConfig = DebeziumConfig()
    kafka_config: KafkaConfig = KafkaConfig()


@dataclass(frozen=True, slots=True)
class IntegrityConfig:
    """`[integrity]`: what is compared on the way of a row, and what a mismatch does.

    TiDB writes checksums while `tidb_enable_row_level_checksum` is on; rows without one pass unchecked.
    """

    integrity_check_level: str = "none"
    """none, or correctness: every image of every row that carries a checksum is compared."""
    corruption_handle_level: str = "warn"
    """warn: the row goes on, counted, and into quarantine; error: and the changefeed stops before it."""
    verify_encoded: bool = False
    """Ours: whether every message is decoded again and compared with its row before it is sent."""

    @property
    def checks(self) -> bool:
        """Whether rows are compared."""
        return self.integrity_check_level == "correctness"

    @property
    def stops(self) -> bool:
        """Whether a damaged row stops the changefeed."""
        return self.checks and self.corruption_handle_level == "error"

    @property
    def stops_at_misencoded(self) -> bool:
        """Whether a message that is not what its row is stops the changefeed."""
        return self.verify_encoded and self.corruption_handle_level == "error"


@dataclass(frozen=True, slots=True)
class SyncedStatusConfig:
    """`[synced-status]`: when GET /changefeeds/ID/synced says that everything is downstream. In seconds."""

    synced_check_interval: int = 300
    """No row must have come for so long."""
    checkpoint_interval: int = 15
    """And the checkpoint must be no further behind upstream's time."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`[scheduler]`: when a large table is delivered in pieces (docs/stripes.md).

    TiCDC's other settings there are about its own scheduler, and have no effect here.
    """

    enable_table_across_nodes: bool = False
    region_threshold: int = 100_000
    """A table of more regions is cut into pieces."""
    region_count_per_span: int = 100
    """Of so many regions each, as far as the number of pieces allows."""


@dataclass(frozen=True, slots=True)
class TidegateConfig:
    """`[tidegate]`: what TiCDC has no word for."""

    flavour: str = "classic"
    """Whose bytes where TiCDC's two architectures differ: classic or new."""
    time_zone: str = "UTC"
    slots: int = 0
    """Transactional producers of the feed at most; 0: as many as Spark's task slots."""
    max_batch_bytes: int = 256 << 20
    """Raw bytes one batch takes at most, over all spans."""
    ids_per_stripe: int = 0
    """So many neighbouring table ids are pulled, kept and delivered as one; 1: each table by itself. 0:
    chosen when the changefeed is created, 1 up to 1,000 tables (docs/stripes.md)."""
    table_cuts: tuple[str, ...] = ()
    """Hex, ascending; record keys at which one piece of a table ends and the next begins. Left out: chosen by
    `[scheduler]` when the changefeed is created, or when that is changed."""
    retention: float = setting(0.0, "duration")
    """Seconds that delivered segments are kept for replay."""
    resolved_interval: float = setting(0.1, "duration")
    """Seconds between two Resolved messages at least."""
    stall_timeout: float = setting(60.0, "duration")
    """With work waiting, and nothing done for so long, the pipeline is killed and started again."""
    start_timeout: float = setting(300.0, "duration")
    """The same while it starts: Spark, its workers and compiled kernels take longer than a batch."""
    initial_load: bool = False
    """True: the feed begins with the rows, or keys, there are at its start-ts (docs/initial-load.md)."""
    load_rows_per_second: int = 0
    """The initial load reads no faster, over all tasks; 0: as fast as it can."""
    load_bytes_per_second: int = 0
    """The same in bytes of keys and values."""
    kv_mode: str = TABLE_MODE
    """tidb: tables; txnkv, rawkv: committed keys without tables (docs/key-value.md)."""
    keyspace_id: int = -1
    """Of the keys; -1: the default keyspace for rawkv, keys as they are (API V1) for txnkv."""
    keyspace: str = ""
    """Its name, which PD knows; the id is looked up when the changefeed is created."""
    start_key: str = ""
    """Hex, without mode and keyspace; the first key that is followed."""
    end_key: str = ""
    """Hex; the first key that is not followed; empty: none."""
    key_prefix: str = ""
    """Hex; instead of the two: all keys that begin with it."""

    @property
    def has_stripes(self) -> bool:
        """Whether several tables may share a span."""
        return self.ids_per_stripe > 1

    @property
    def cuts(self) -> tuple[bytes, ...]:
        """`table_cuts` as keys."""
        return tuple(map(bytes.fromhex, self.table_cuts))


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One changefeed's settings: TOML, JSON and URI merged, checked once."""

    case_sensitive: bool = False
    force_replicate: bool = False
    """True: tables without a usable key are replicated too; a consumer compares their rows whole."""
    ignore_ineligible_table: bool = False
    """True: tables without a usable key are left out; False: they forbid creating the feed."""
    check_gc_safe_point: bool = True
    error_stuck_s: float = setting(1800.0, "duration", "changefeed_error_stuck_duration")
    """Seconds without progress after which a failing feed becomes `failed`."""
    filter: FilterConfig = FilterConfig()
    sink: SinkConfig = SinkConfig()
    integrity: IntegrityConfig = IntegrityConfig()
    synced_status: SyncedStatusConfig = SyncedStatusConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    tidegate: TidegateConfig = TidegateConfig()

    def to_json(self, *, redact: bool = False) -> dict[str, Any]:
        """As TiCDC's API writes it (snake_case, durations in nanoseconds); `redact` hides secrets."""
        return dump(self, redact)

    @property
    def splits_updates(self) -> bool:
        """Whether an update of a unique key goes out as a delete and an insert."""
        return not self.sink.kafka_config.output_raw_change_event

    @property
    def has_tables(self) -> bool:
        """Whether the feed follows tables, not keys."""
        return self.tidegate.kv_mode == TABLE_MODE

    def codec_settings(self) -> dict[str, str | int | bool]:
        """The options of the protocol, as `codec.registry.codec_options` takes them."""
        sink, kafka = self.sink, self.sink.kafka_config
        avro, large = kafka.codec_config, kafka.large_message_handle
        return {
            "protocol": sink.protocol,
            "flavour": self.tidegate.flavour,
            "enable-tidb-extension": kafka.codec_config.enable_tidb_extension,
            "max-message-bytes": kafka.max_message_bytes,
            "max-batch-size": kafka.codec_config.max_batch_size,
            "encoding-format": kafka.codec_config.encoding_format or "json",
            "integrity-check-level": self.integrity.integrity_check_level,
            "avro-enable-watermark": avro.avro_enable_watermark,
            "avro-decimal-handling-mode": avro.avro_decimal_handling_mode or "precise",
            "avro-bigint-unsigned-handling-mode": avro.avro_bigint_unsigned_handling_mode or "long",
            "avro-include-before-value": avro.avro_include_before_value,
            "output-row-key": avro.output_row_key,
            "only-output-updated-columns": sink.only_output_updated_columns,
            "delete-only-output-handle-key-columns": sink.delete_only_output_handle_key_columns,
            "output-old-value": sink.open.output_old_value,
            "content-compatible": sink.content_compatible,
            "debezium-disable-schema": sink.debezium_disable_schema,
            "debezium-output-old-value": sink.debezium.output_old_value,
            "debezium-include-start-ts": sink.debezium.include_start_ts,
            "large-message-handle-option": large.large_message_handle_option,
            "large-message-handle-compression": large.large_message_handle_compression,
            "claim-check-raw-value": large.claim_check_raw_value,
            "time-zone": self.tidegate.time_zone,
        }
