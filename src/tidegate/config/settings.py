"""The settings of one changefeed, by section of its file: docs/reference/settings.md is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.config.fields import dump, setting
from tidegate.config.values import TABLE_MODE


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """One `[[sink.dispatchers]]` entry; the first whose matcher fits a table counts (docs/dispatchers.md)."""

    matcher: tuple[str, ...] = ("*.*",)
    """Table rules: the entry is for the tables that they let pass."""
    partition: str = setting("default", older="dispatcher")
    """How rows are spread over the topic's partitions: default, table, ts, index-value, rowid, columns or
    conflict."""
    index: str = ""
    """With index-value: the unique index whose columns are hashed; empty: the handle key."""
    columns: tuple[str, ...] = ()
    """With columns: the columns that are hashed."""
    topic: str = ""
    """The tables' topic, in which {schema} and {table} are replaced; empty: the URI's topic."""


@dataclass(frozen=True, slots=True)
class EventFilterRule:
    """One `[[filter.event-filters]]` entry: changes of some tables that are not sent (docs/filters.md)."""

    matcher: tuple[str, ...] = ()
    """Table rules: the entry is for the tables that they let pass."""
    ignore_event: tuple[str, ...] = ()
    """Kinds of change that are not sent: insert, drop table, all ddl, and so on."""
    ignore_sql: tuple[str, ...] = ()
    """RE2 expressions, without case; a DDL whose text holds a match is not sent."""
    ignore_insert_value_expr: str = ""
    """A SQL condition; an insert whose row fulfils it is not sent."""
    ignore_update_new_value_expr: str = ""
    """A SQL condition; an update whose new row fulfils it is not sent."""
    ignore_update_old_value_expr: str = ""
    """A SQL condition; an update whose old row fulfils it is not sent."""
    ignore_delete_value_expr: str = ""
    """A SQL condition; a delete whose row fulfils it is not sent."""
    ignore_update_only_columns: tuple[str, ...] = ()
    """An update that changes no other column, and no key, is not sent."""


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """`[filter]`: which tables, transactions, DDLs and rows pass (docs/filters.md)."""

    rules: tuple[str, ...] = ("*.*",)
    """Table rules; the last one that matches a table decides."""
    ignore_txn_start_ts: tuple[int, ...] = ()
    """Start ts of transactions whose rows and DDLs are not sent."""
    event_filters: tuple[EventFilterRule, ...] = ()
    """See below."""


@dataclass(frozen=True, slots=True)
class ColumnSelector:
    """One `[[sink.column-selectors]]` entry; the first that matches a table says which columns are sent."""

    matcher: tuple[str, ...] = ()
    """Table rules: the entry is for the tables that they let pass."""
    columns: tuple[str, ...] = ()
    """Patterns as in table rules; the last that matches decides; a column that none matches is not sent."""


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """`[sink.kafka-config.codec-config]`: options of single protocols (docs/formats/protocols.md)."""

    enable_tidb_extension: bool = False
    """Canal-JSON, Avro and Debezium: messages have TiDB's own members, such as the commit ts."""
    max_batch_size: int = setting(16, unit="rows")
    """The most rows in one message, for protocols that batch."""
    encoding_format: str = "json"
    """Simple: how its messages are written, json or avro."""
    avro_enable_watermark: bool = False
    """Avro: Resolved is sent too."""
    avro_decimal_handling_mode: str = "precise"
    """Avro: precise, or string."""
    avro_bigint_unsigned_handling_mode: str = "long"
    """Avro: long, or string."""
    avro_include_before_value: bool = False
    """Avro, flavour new: updates and deletes have the old row."""
    output_row_key: bool = False
    """Canal-JSON, flavour new: `_tidb` has the row's key in TiKV."""


@dataclass(frozen=True, slots=True)
class LargeMessageConfig:
    """`[sink.kafka-config.large-message-handle]`: rows that no message can hold, and compression
    (docs/formats/large-messages.md).
    """

    large_message_handle_option: str = "none"
    """A row that does not fit max-message-bytes: none (the changefeed stops), handle-key-only, or
    claim-check."""
    large_message_handle_compression: str = "none"
    """How every message's value is compressed: none, snappy or lz4."""
    claim_check_storage_uri: str = setting("", "secret")
    """Where claim-check puts such rows, a file:// or s3:// URI; with its credentials, if it has any."""
    claim_check_raw_value: bool = False
    """The storage holds the bare value, not a JSON object of key and value."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`[sink.kafka-config]`: the topic, and how its brokers are reached."""

    partition_num: int = setting(0, unit="partitions")
    """Partitions that rows are spread over. 0: the topic's own count, or 3 for a topic that is created."""
    replication_factor: int = setting(1, unit="replicas")
    """Replicas of a topic that is created."""
    max_message_bytes: int = setting(10_485_760, unit="bytes")
    """The largest message; a larger row is handled by large-message-handle."""
    compression: str = "none"
    """How the producer compresses batches: none, gzip, snappy, lz4 or zstd."""
    kafka_client_id: str = ""
    """The client id that brokers see; empty: the client library's own."""
    auto_create_topic: bool = True
    """False: a topic that does not exist is an error."""
    dial_timeout: float = setting(10.0, "duration text")
    """How long connecting to a broker may take."""
    write_timeout: float = setting(10.0, "duration text")
    """How long one request to a broker may take with its answer, if read-timeout is not longer. At most 10 s
    for a producer, whose transactions end then."""
    read_timeout: float = setting(10.0, "duration text")
    """The same, if write-timeout is not longer."""
    required_acks: int = -1
    """Only -1 (all): a transactional producer knows no other."""
    enable_tls: bool = False
    """Connect with TLS; the scheme kafka+ssl turns it on."""
    ca: str = ""
    """File with the CA's certificate; empty: the CAs that the system trusts."""
    cert: str = ""
    """File with the client's certificate."""
    key: str = ""
    """File with the client's private key."""
    insecure_skip_verify: bool = False
    """Do not check the brokers' certificates."""
    sasl_user: str = ""
    """User; empty: no SASL."""
    sasl_password: str = setting("", "secret")
    """The user's password."""
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN when only a user is given."""
    output_raw_change_event: bool = False
    """False: an update of a unique key is split into a delete and an insert
    (docs/formats/contract.md#split-updates)."""
    codec_config: CodecConfig = CodecConfig()
    large_message_handle: LargeMessageConfig = LargeMessageConfig()


@dataclass(frozen=True, slots=True)
class OpenConfig:
    """`[sink.open]`: options of open-protocol."""

    output_old_value: bool = True
    """Updates have the old row."""


@dataclass(frozen=True, slots=True)
class DebeziumConfig:
    """`[sink.debezium]`: options of debezium."""

    output_old_value: bool = True
    """Updates have the old row."""
    include_start_ts: bool = False
    """Flavour new: rows have the start ts of their transaction."""


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """`[sink]`: the protocol, and how tables are laid out on topics."""

    protocol: str = ""
    """The protocol of the messages (docs/formats/protocols.md). Required."""
    dispatchers: tuple[DispatchRule, ...] = ()
    """See below."""
    column_selectors: tuple[ColumnSelector, ...] = ()
    """See below."""
    only_output_updated_columns: bool = False
    """An update's old row has only the columns that the update changed."""
    delete_only_output_handle_key_columns: bool = False
    """A delete has only the columns of the handle key."""
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
    """`[integrity]`: which checks a row passes, and what a mismatch does (docs/integrity.md).

    TiDB writes checksums while `tidb_enable_row_level_checksum` is on; rows without one pass unchecked.
    """

    integrity_check_level: str = "none"
    """none, or correctness: every image of every row that carries a checksum is compared."""
    corruption_handle_level: str = "warn"
    """warn: the row is sent, counted, and copied into quarantine; error: the changefeed stops before it."""
    verify_encoded: bool = setting(False, ours=True)
    """Every message is decoded again and compared with its row before it is sent."""

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
    """`[synced-status]`: when GET /changefeeds/{name}/synced answers that everything is downstream."""

    synced_check_interval: int = setting(300, unit="seconds")
    """The time for which no row has come."""
    checkpoint_interval: int = setting(15, unit="seconds")
    """The most that the checkpoint is behind upstream's time."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`[scheduler]`: when a large table is delivered in pieces (docs/stripes.md).

    TiCDC's other settings there are about its own scheduler, and have no effect here.
    """

    enable_table_across_nodes: bool = False
    """Large tables may be cut into pieces; with several captures hot ones are, too."""
    region_threshold: int = setting(100_000, unit="regions")
    """A table of more regions is cut into pieces."""
    region_count_per_span: int = setting(100, unit="regions")
    """The regions of one piece, as far as the number of pieces allows."""


@dataclass(frozen=True, slots=True)
class TidegateConfig:
    """`[tidegate]`: settings that TiCDC does not have."""

    flavour: str = "classic"
    """Which of TiCDC's two architectures the messages follow where they differ: classic or new."""
    time_zone: str = "UTC"
    """The zone of TIMESTAMP texts in messages."""
    slots: int = setting(0, unit="producers")
    """The most transactional producers of the changefeed; 0: as many as Spark has task slots."""
    max_batch_bytes: int = setting(256 << 20, unit="bytes")
    """The most raw bytes that one batch takes, over all spans."""
    ids_per_stripe: int = setting(0, unit="table ids")
    """How many neighbouring table ids are pulled, kept and delivered as one. 1: each table by itself. 0:
    chosen when the changefeed is created, 1 up to 100 tables (docs/stripes.md)."""
    table_cuts: tuple[str, ...] = ()
    """Record keys in hex, ascending, at which one piece of a table ends and the next begins. Left out: chosen
    by `[scheduler]` when the changefeed is created, or when that is changed; and by load."""
    cut_hot_tables: bool = True
    """With `enable-table-across-nodes`: a table that is too hot for one of several captures is cut while the
    changefeed runs (docs/stripes.md)."""
    retention: float = setting(0.0, "duration")
    """How long delivered segments are kept for replay."""
    resolved_interval: float = setting(0.1, "duration")
    """The shortest time between two Resolved messages."""
    stall_timeout: float = setting(60.0, "duration")
    """The pipeline is killed and restarted if work waits and nothing is done for this time."""
    start_timeout: float = setting(300.0, "duration")
    """The same while the pipeline starts: Spark, its workers and kernels take longer than a batch."""
    initial_load: bool = False
    """The changefeed begins with the rows, or keys, that exist at its start-ts (docs/initial-load.md)."""
    load_rows_per_second: int = setting(0, unit="rows a second")
    """The initial load reads no faster, over all tasks; 0: as fast as it can."""
    load_bytes_per_second: int = setting(0, unit="bytes a second")
    """The same for bytes of keys and values."""
    kv_mode: str = TABLE_MODE
    """tidb: tables; txnkv: committed keys without tables; rawkv: raw keys (docs/key-value.md)."""
    keyspace_id: int = -1
    """The keyspace of the keys; -1: the default keyspace for rawkv, keys as they are (API V1) for txnkv."""
    keyspace: str = ""
    """The name of the keyspace; PD is asked for its id when the changefeed is created."""
    start_key: str = ""
    """The first key that is followed, in hex, without mode and keyspace."""
    end_key: str = ""
    """The first key that is not followed, in hex; empty: none."""
    key_prefix: str = ""
    """In place of the two: all keys that begin with it, in hex."""

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
    """Table rules and matchers distinguish upper and lower case."""
    force_replicate: bool = False
    """Tables without a usable key are replicated too; a consumer compares their rows whole."""
    ignore_ineligible_table: bool = False
    """True: tables without a usable key are left out. False: with such tables a changefeed is not created."""
    check_gc_safe_point: bool = True
    """A start-ts, or a checkpoint, that upstream's GC has passed is refused."""
    error_stuck_s: float = setting(1800.0, "duration", "changefeed_error_stuck_duration")
    """A changefeed that keeps failing without progress becomes `failed` after this time."""
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
    def partition_num(self) -> int:
        """Partitions of a topic that rows are spread over; 0: the topic's own count, or the default."""
        return self.sink.kafka_config.partition_num

    @property
    def claim_check_storage_uri(self) -> str:
        """Where messages go that are too large for a topic, with credentials; empty: nowhere."""
        return self.sink.kafka_config.large_message_handle.claim_check_storage_uri

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
