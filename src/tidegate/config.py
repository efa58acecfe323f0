"""Every setting of a changefeed: frozen dataclasses read once from a sink URI and a TOML file or JSON body.

The names are TiCDC's (facts, wire formats 10): kebab-case in TOML and URIs, snake_case in JSON. A value
in the URI wins over one in the file. Whatever is wrong is refused here, at the door: an unknown scheme,
protocol or option is answered with the nearest valid name; an option that TiCDC has and Tidegate does not
carry out yet is accepted only at TiCDC's default, so that nothing is silently ignored. Options that only
tune TiCDC's own worker pools are accepted and have no effect.

Used by the API and the CLI (validation), by the pipeline and the owner's sink (`spec.json` holds
`ReplicaConfig.to_json`), and by whoever opens a topic by URI.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args, get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate.errors import InvalidInput

REDACTED: Final = "xxxxx"
"""What stands in the place of a secret, as TiCDC writes it."""

SCHEMES: Final = ("kafka", "kafka+ssl")
SCHEMES_TO_COME: Final = frozenset(
    [
        "mysql",
        "mysql+ssl",
        "tidb",
        "tidb+ssl",
        "s3",
        "gcs",
        "gs",
        "azure",
        "azblob",
        "file",
        "nfs",
        "pulsar",
        "pulsar+ssl",
        "tikv",
        "delta",
        "blackhole",
    ]
)
PROTOCOLS: Final = ("open-protocol", "canal-json")
PROTOCOL_ALIASES: Final = MappingProxyType({"default": "open-protocol", "open": "open-protocol"})
PROTOCOLS_TO_COME: Final = frozenset(
    ["canal", "avro", "simple", "debezium", "debezium-avro", "maxwell", "craft", "csv"]
)
FLAVOURS: Final = ("classic", "new")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PARTITION_RULES: Final = ("default", "table", "ts", "index-value", "rowid", "columns")
INTEGRITY_LEVELS: Final = ("none", "correctness")
CORRUPTION_LEVELS: Final = ("warn", "error")

URI_FORM: Final = "write kafka://HOST:PORT[,HOST:PORT]/TOPIC?protocol=open-protocol"
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
DURATION_UNITS: Final = MappingProxyType(
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
)
DURATION_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def _setting(default: Any, kind: str = "", key: str = "") -> Any:
    """A field with a kind other than its type's (`duration`, `secret`) or another name in the file."""
    return field(default=default, metadata={"kind": kind, "key": key})


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """One `[[sink.dispatchers]]` entry; the first whose matcher fits a table wins."""

    matcher: tuple[str, ...] = ("*.*",)
    partition: str = "default"
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
    """Rows in one open-protocol message at most."""


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
    dial_timeout: float = _setting(10.0, "duration")
    """Seconds to reach a broker."""
    write_timeout: float = _setting(10.0, "duration")
    """Seconds for one request."""
    read_timeout: float = _setting(10.0, "duration")
    required_acks: int = -1
    """Only -1 (all): a transactional producer knows no other."""
    enable_tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure_skip_verify: bool = False
    sasl_user: str = ""
    sasl_password: str = _setting("", "secret")
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN when only a user is given."""
    output_raw_change_event: bool = False
    """False: an update of a unique key is split into delete and insert (facts 7.3)."""
    codec_config: CodecConfig = CodecConfig()


@dataclass(frozen=True, slots=True)
class OpenConfig:
    """`[sink.open]`."""

    output_old_value: bool = True


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """`[sink]`."""

    protocol: str = ""
    dispatchers: tuple[DispatchRule, ...] = ()
    column_selectors: tuple[ColumnSelector, ...] = ()
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    content_compatible: bool = False
    """Canal-JSON as Alibaba's canal writes it."""
    open: OpenConfig = OpenConfig()
    kafka_config: KafkaConfig = KafkaConfig()


@dataclass(frozen=True, slots=True)
class IntegrityConfig:
    """`[integrity]`: whether rows are compared with the checksums TiDB wrote, and what a mismatch does.

    TiDB writes them while `tidb_enable_row_level_checksum` is on; rows without one pass unchecked.
    """

    integrity_check_level: str = "none"
    """none, or correctness: every image of every row that carries a checksum is compared."""
    corruption_handle_level: str = "warn"
    """warn: the row goes on, counted, and into quarantine; error: and the changefeed stops before it."""

    @property
    def checks(self) -> bool:
        """Whether rows are compared."""
        return self.integrity_check_level == "correctness"

    @property
    def stops(self) -> bool:
        """Whether a damaged row stops the changefeed."""
        return self.checks and self.corruption_handle_level == "error"


@dataclass(frozen=True, slots=True)
class TidegateConfig:
    """`[tidegate]`: what TiCDC has no word for."""

    flavour: str = "classic"
    """Whose bytes where TiCDC's two architectures differ: classic or new."""
    time_zone: str = "UTC"
    slots: int = 0
    """Transactional producers of the feed at most; 0: as many as Spark's task slots."""
    spark_master: str = "local[*]"
    max_batch_bytes: int = 256 << 20
    """Raw bytes one micro-batch takes at most, over all spans."""
    retention: float = _setting(0.0, "duration")
    """Seconds that delivered segments are kept for replay."""
    resolved_interval: float = _setting(0.1, "duration")
    """Seconds between two Resolved messages at least."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One changefeed's settings: TOML, JSON and URI merged, checked once."""

    case_sensitive: bool = False
    force_replicate: bool = False
    """True: tables without a usable key are replicated too; a consumer compares their rows whole."""
    ignore_ineligible_table: bool = False
    """True: tables without a usable key are left out; False: they forbid creating the feed."""
    check_gc_safe_point: bool = True
    error_stuck_s: float = _setting(1800.0, "duration", "changefeed_error_stuck_duration")
    """Seconds without progress after which a failing feed becomes `failed`."""
    filter: FilterConfig = FilterConfig()
    sink: SinkConfig = SinkConfig()
    integrity: IntegrityConfig = IntegrityConfig()
    tidegate: TidegateConfig = TidegateConfig()

    def to_json(self, *, redact: bool = False) -> dict[str, Any]:
        """As TiCDC's API writes it (snake_case, durations in nanoseconds); `redact` hides secrets."""
        return _dump(self, redact)

    @property
    def carries_watermarks(self) -> bool:
        """Whether a reader of the topic can know up to when it is complete."""
        extended = self.sink.kafka_config.codec_config.enable_tidb_extension
        return self.sink.protocol != "canal-json" or extended

    def codec_settings(self) -> dict[str, str | int | bool]:
        """The options of the protocol, as `codec.registry.codec_options` takes them."""
        sink, kafka = self.sink, self.sink.kafka_config
        return {
            "protocol": sink.protocol,
            "flavour": self.tidegate.flavour,
            "enable-tidb-extension": kafka.codec_config.enable_tidb_extension,
            "max-message-bytes": kafka.max_message_bytes,
            "max-batch-size": kafka.codec_config.max_batch_size,
            "only-output-updated-columns": sink.only_output_updated_columns,
            "delete-only-output-handle-key-columns": sink.delete_only_output_handle_key_columns,
            "output-old-value": sink.open.output_old_value,
            "content-compatible": sink.content_compatible,
            "time-zone": self.tidegate.time_zone,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplicaConfig:
        """From `to_json` or an API body; raises InvalidInput naming the option."""
        config: ReplicaConfig = _load(cls, data, "")
        config = _canonical(config)
        _check(config)
        return config


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
        "synced_status",
        "csv",
        "debezium",
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
        "scheduler": (),
        "scheduler.enable_table_across_nodes": (False,),
        "sink.transaction_atomicity": ("none", "", None),
        "sink.schema_registry": ("", None),
        "sink.safe_mode": (False, None),
        "sink.send_all_bootstrap_at_start": (False,),
        "sink.debezium_disable_schema": (False,),
        "sink.mysql_config": (),
        "sink.cloud_storage_config": (),
        "sink.pulsar_config": (),
        "sink.kafka_config.large_message_handle": (None, {}),
        "sink.kafka_config.glue_schema_registry_config": (None, {}),
        "sink.kafka_config.sasl_gssapi_auth_type": ("", None),
        "sink.kafka_config.codec_config.avro_enable_watermark": (False,),
        "sink.kafka_config.codec_config.avro_decimal_handling_mode": (),
        "sink.kafka_config.codec_config.avro_bigint_unsigned_handling_mode": (),
        "sink.kafka_config.codec_config.encoding_format": ("json", ""),
    }
)
"""Options TiCDC has and Tidegate does not carry out yet, with the values that ask for nothing; (): any."""

_KAFKA: Final = ("sink", "kafka_config")
URI_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "protocol": ("sink", "protocol"),
        "only-output-updated-columns": ("sink", "only_output_updated_columns"),
        "content-compatible": ("sink", "content_compatible"),
        "enable-tidb-extension": (*_KAFKA, "codec_config", "enable_tidb_extension"),
        "max-batch-size": (*_KAFKA, "codec_config", "max_batch_size"),
    }
    | {
        f.name.replace("_", "-"): (*_KAFKA, f.name)
        for f in dataclasses.fields(KafkaConfig)
        if f.name not in ("codec_config", "output_raw_change_event")
    }
)
"""Where each parameter of a Kafka URI goes."""

URI_TUNING: Final = frozenset({"kafka-version", "max-retry"})
URI_TO_COME: Final = frozenset(
    [
        "schema-registry",
        "avro-decimal-handling-mode",
        "avro-bigint-unsigned-handling-mode",
        "avro-enable-watermark",
        "debezium-disable-schema",
        "encoding-format",
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
SECRET_OPTIONS: Final = frozenset({"sasl-password", "sasl-gssapi-password"})


@dataclass(frozen=True, slots=True)
class SinkUri:
    """A sink URI taken apart: `kafka://host:port[,host:port]/topic?option=value&...`."""

    scheme: str
    hosts: tuple[str, ...]
    """`host:port` each."""
    topic: str
    options: tuple[tuple[str, str], ...]
    """As given, in order, checked against `URI_OPTIONS`."""

    @property
    def bootstrap(self) -> str:
        """The brokers as Kafka clients take them."""
        return ",".join(self.hosts)

    def option(self, name: str, default: str = "") -> str:
        """The value of an option, the last one when given twice."""
        return dict(self.options).get(name, default)

    def render(self, *, redact: bool = True) -> str:
        """The URI again, by default with secrets hidden."""
        pairs = ((k, REDACTED if redact and k in SECRET_OPTIONS else v) for k, v in self.options)
        query = "&".join(f"{k}={quote(v, safe='')}" for k, v in pairs)
        return f"{self.scheme}://{self.bootstrap}/{quote(self.topic, safe='')}" + (
            f"?{query}" if query else ""
        )

    def __str__(self) -> str:
        return self.render()


def nearest(name: str, valid: Iterable[str], *, label: str = "valid") -> str:
    """`did you mean X?` when one is near, and the list of what is valid."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}{label}: {', '.join(names)}"


def parse_sink_uri(uri: str) -> SinkUri:
    """Take a sink URI apart and check it; raises InvalidInput. Never repeats the URI in the message."""
    parts = urlsplit(uri.strip())
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        _refuse_scheme(scheme)
    if "@" in parts.netloc:
        raise InvalidInput(
            "A Kafka URI holds no user before the host.",
            where="sink URI",
            fix="give sasl-user, sasl-password and sasl-mechanism as parameters",
        )
    hosts = tuple(_host(h) for h in parts.netloc.split(",")) if parts.netloc else ()
    topic = unquote(parts.path).strip("/")
    if not hosts or not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidInput(
            "The URI names no broker." if not hosts else f"'{topic}' is not a Kafka topic name.",
            where="sink URI",
            fix=f"{URI_FORM}; a topic has 1 to 249 of A-Z a-z 0-9 . _ -",
        )
    options = tuple((k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True))
    for name, _ in options:
        _check_uri_option(name)
    return SinkUri(scheme, hosts, topic, options)


def _refuse_scheme(scheme: str) -> None:
    if not scheme:
        raise InvalidInput("The URI has no scheme.", where="sink URI", fix=URI_FORM)
    known = scheme in SCHEMES_TO_COME
    raise InvalidInput(
        f"Scheme '{scheme}' is not supported yet." if known else f"Unknown scheme '{scheme}'.",
        where="sink URI",
        fix=nearest(scheme, SCHEMES, label="supported"),
    )


def _host(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host, port = text.strip(), "9092"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"'{text}' is not a broker address.",
            where="sink URI",
            fix="write HOST:PORT, port 1 to 65535",
        )
    return f"{host}:{port}"


def _check_uri_option(name: str) -> None:
    if name in URI_OPTIONS or name in URI_TUNING:
        return
    if name in URI_TO_COME:
        raise InvalidInput(
            f"Option '{name}' is TiCDC's and not supported here yet.",
            where="sink URI",
            fix="leave it out",
        )
    raise InvalidInput(
        f"Unknown option '{name}'.",
        where="sink URI",
        fix=nearest(name, URI_OPTIONS, label="options"),
    )


def load_config(path: Path | None, sink_uri: SinkUri) -> ReplicaConfig:
    """The settings of a feed from its TOML file (None: defaults) and its sink URI; raises InvalidInput."""
    return merge_config(read_toml(path) if path is not None else {}, sink_uri)


def read_toml(path: Path) -> dict[str, Any]:
    """A changefeed file as nested dicts, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            "Cannot read the changefeed configuration.",
            where=str(path),
            why=os.strerror(error.errno or 0),
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "The changefeed configuration is not TOML.",
            where=str(path),
            why=str(error),
            fix="mend the file",
        ) from error


def merge_config(data: Mapping[str, Any], sink_uri: SinkUri) -> ReplicaConfig:
    """The settings from file or API body `data` with the URI's parameters laid over them."""
    merged = _snake(data)
    for name, text in sink_uri.options:
        if name in URI_TUNING:
            continue
        *sections, leaf = URI_OPTIONS[name]
        node, owner = merged, ReplicaConfig
        for section in sections:
            owner = get_type_hints(owner)[section]
            child = node.setdefault(section, {})
            if not isinstance(child, dict):
                raise InvalidInput(f"'{_kebab(section)}' must be a table.", where="changefeed configuration")
            node = child
        node[leaf] = _from_text(get_type_hints(owner)[leaf], _field(owner, leaf), text, name)
    if sink_uri.scheme == "kafka+ssl":
        merged.setdefault("sink", {}).setdefault("kafka_config", {})["enable_tls"] = True
    return ReplicaConfig.from_json(merged)


def laid_over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Settings `base` (`ReplicaConfig.to_json`) with those of a file laid over them; lists are replaced."""
    merged = dict(base)
    for name, value in _snake(data).items():
        held = merged.get(name)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[name] = laid_over(held, value)
        else:
            merged[name] = value
    return merged


def with_secrets_of(data: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a client has read, changed and sent back: what stands for a secret is that of `held`."""
    return {
        name: with_secrets_of(value, held.get(name) or {})
        if isinstance(value, Mapping)
        else held.get(name, value)
        if value == REDACTED
        else value
        for name, value in data.items()
    }


def _snake(data: Any) -> Any:
    """Kebab-case keys to snake_case, all the way down; TiCDC's JSON has one key with hyphens."""
    if isinstance(data, Mapping):
        return {str(k).replace("-", "_"): _snake(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_snake(v) for v in data]
    return data


def _field(owner: type, name: str) -> dataclasses.Field[Any]:
    return next(f for f in dataclasses.fields(owner) if f.name == name)


def _key(f: dataclasses.Field[Any]) -> str:
    return str(f.metadata.get("key") or f.name)


def _load(owner: type, data: Mapping[str, Any], where: str) -> Any:
    """One section into its dataclass, recursively; `where` is the dotted path for messages."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"'{where}' must be a table.", where="changefeed configuration")
    fields = {_key(f): f for f in dataclasses.fields(owner)}
    hints = get_type_hints(owner)
    values: dict[str, Any] = {}
    for raw, value in data.items():
        name = str(raw).replace("-", "_")
        path = f"{where}.{name}" if where else name
        if name not in fields:
            _check_foreign(path, name, value, fields)
        elif value is not None:
            values[fields[name].name] = _value(hints[fields[name].name], fields[name], value, path)
    return owner(**values)


def _check_foreign(path: str, name: str, value: Any, valid: Iterable[str]) -> None:
    """Let through what asks for nothing, refuse the rest."""
    if name in TUNING or (path == "sink.dispatchers.dispatcher" and value == ""):
        return
    if path in TO_COME:
        inert = TO_COME[path]
        inner = {p.rpartition(".")[2]: ok for p, ok in TO_COME.items() if p.startswith(path + ".")}
        asked = [
            k for k, ok in inner.items() if isinstance(value, Mapping) and k in value and value[k] not in ok
        ]
        if not asked and (not inert or value in inert):
            return
        path = f"{path}.{asked[0]}" if asked else path
        raise InvalidInput(
            f"Option '{_kebab(path)}' is TiCDC's and not supported here yet.",
            where="changefeed configuration",
            fix="leave it out",
        )
    raise InvalidInput(
        f"Unknown option '{_kebab(path)}'.",
        where="changefeed configuration",
        fix=nearest(_kebab(name), (_kebab(v) for v in valid), label="options"),
    )


def _kebab(path: str) -> str:
    return path.replace("_", "-")


def _value(hint: Any, f: dataclasses.Field[Any], value: Any, path: str) -> Any:
    """A TOML or JSON value as the field's type."""
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return _load(hint, value, path)
    if f.metadata.get("kind") == "duration":
        return _duration(value, path)
    if hint is bool or hint is int or hint is str:
        return value if type(value) is hint else _refuse_type(path, value, hint.__name__)
    if not isinstance(value, list | tuple):
        _refuse_type(path, value, "list")
    item, _ = get_args(hint)
    if item is DispatchRule:
        return tuple(_dispatch_rule(v) for v in value)
    if dataclasses.is_dataclass(item):
        assert isinstance(item, type)
        return tuple(_load(item, v, path) for v in value)
    return tuple(v if type(v) is item else _refuse_type(path, v, item.__name__) for v in value)


def _dispatch_rule(value: Mapping[str, Any]) -> DispatchRule:
    """`dispatcher` is TiCDC's older name of `partition`."""
    entry = dict(value)
    if older := entry.pop("dispatcher", ""):
        entry.setdefault("partition", older)
    rule: DispatchRule = _load(DispatchRule, entry, "sink.dispatchers")
    return rule if rule.partition else dataclasses.replace(rule, partition="default")


def _refuse_type(path: str, value: Any, wanted: str) -> Any:
    raise InvalidInput(
        f"Option '{_kebab(path)}' must be {wanted}, not {type(value).__name__}.",
        where="changefeed configuration",
    )


def _from_text(hint: Any, f: dataclasses.Field[Any], text: str, name: str) -> Any:
    """A URI parameter as a value of the field's type."""
    readers: dict[Any, Callable[[str], Any]] = {
        bool: _bool,
        int: int,
        str: str,
        float: str,
    }
    if name == "required-acks" and text == "all":
        return -1
    try:
        return readers[hint](text)
    except ValueError as error:
        raise InvalidInput(
            f"Option '{name}' must be {hint.__name__}.",
            where="sink URI",
            why=str(error),
        ) from None


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"'{text}' is neither true nor false")
    return text.lower() in ("true", "1")


def _duration(value: Any, path: str) -> float:
    """Seconds from Go's text form ("1h30m") or from an integer of nanoseconds."""
    if type(value) is int and value >= 0:
        return value / 1e9
    if isinstance(value, str) and value:
        parts = DURATION_PART.findall(value)
        if "".join(n + u for n, u in parts) == value:
            return float(sum(float(n) * DURATION_UNITS[u] for n, u in parts))
    raise InvalidInput(
        f"Option '{_kebab(path)}' is not a duration.",
        where="changefeed configuration",
        fix='write "10m" or "1.5s"',
    )


def _dump(config: Any, redact: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value, kind = getattr(config, f.name), f.metadata.get("kind")
        if dataclasses.is_dataclass(value):
            value = _dump(value, redact)
        elif kind == "duration":
            value = round(value * 1e9)
        elif kind == "secret" and redact and value:
            value = REDACTED
        elif isinstance(value, tuple):
            value = [_dump(v, redact) if dataclasses.is_dataclass(v) else v for v in value]
        out[_key(f)] = value
    return out


def _canonical(config: ReplicaConfig) -> ReplicaConfig:
    """Aliases to the one name the rest of the program knows."""
    kafka = config.sink.kafka_config
    mechanism = kafka.sasl_mechanism.upper() or ("PLAIN" if kafka.sasl_user else "")
    kafka = dataclasses.replace(kafka, sasl_mechanism=mechanism)
    protocol = PROTOCOL_ALIASES.get(config.sink.protocol, config.sink.protocol)
    return dataclasses.replace(
        config,
        sink=dataclasses.replace(config.sink, protocol=protocol, kafka_config=kafka),
    )


def _check(config: ReplicaConfig) -> None:
    """What no single field shows; `from_json` calls it, so no unchecked config exists outside this module."""
    _check_protocol(config.sink.protocol)
    kafka, own = config.sink.kafka_config, config.tidegate
    _one_of("sink.kafka-config.compression", kafka.compression, COMPRESSIONS)
    _one_of("sasl-mechanism", kafka.sasl_mechanism, ("", *SASL_MECHANISMS))
    _one_of("tidegate.flavour", own.flavour, FLAVOURS)
    _one_of(
        "integrity.integrity-check-level",
        config.integrity.integrity_check_level,
        INTEGRITY_LEVELS,
    )
    _one_of(
        "integrity.corruption-handle-level",
        config.integrity.corruption_handle_level,
        CORRUPTION_LEVELS,
    )
    for rule in config.sink.dispatchers:
        _one_of("sink.dispatchers.partition", rule.partition, PARTITION_RULES)
    _check_force_replicate(config)
    if config.sink.column_selectors and config.integrity.integrity_check_level != "none":
        raise InvalidInput(
            "Column selectors and integrity checks exclude each other.",
            where="changefeed configuration",
            why="a row's checksum covers columns that would not travel",
            fix="remove [[sink.column-selectors]], or set integrity-check-level = 'none'",
        )
    if kafka.required_acks != -1:
        raise InvalidInput(
            f"required-acks = {kafka.required_acks} would lose rows.",
            where="sink configuration",
            why="rows travel in Kafka transactions, which always wait for all in-sync replicas",
            fix="leave required-acks out or set it to -1",
        )
    _at_least("partition-num", kafka.partition_num, 0)
    _at_least("replication-factor", kafka.replication_factor, 1)
    _at_least("max-message-bytes", kafka.max_message_bytes, 1024)
    _at_least("max-batch-size", kafka.codec_config.max_batch_size, 1)
    _at_least("tidegate.slots", own.slots, 0)
    _at_least("tidegate.max-batch-bytes", own.max_batch_bytes, 1 << 16)


def _check_force_replicate(config: ReplicaConfig) -> None:
    """Rows of tables without a key are known by their whole content, so all of it must travel."""
    sink = config.sink
    lacking = (
        "delete-only-output-handle-key-columns = true" if sink.delete_only_output_handle_key_columns else ""
    )
    if sink.protocol == "open-protocol" and not sink.open.output_old_value:
        lacking = "[sink.open] output-old-value = false"
    if config.force_replicate and lacking:
        raise InvalidInput(
            f"force-replicate = true does not go with {lacking}.",
            where="changefeed configuration",
            why="a row of a table without a key is found downstream by its whole old content",
            fix="leave one of the two out",
        )


def _check_protocol(name: str) -> None:
    if name in PROTOCOLS:
        return
    if not name:
        what = "A Kafka topic needs a protocol."
    elif name in PROTOCOLS_TO_COME:
        what = f"Protocol '{name}' is not supported yet."
    else:
        what = f"Unknown protocol '{name}'."
    fix = "add protocol=... to the sink URI; " + nearest(name, PROTOCOLS, label="supported")
    raise InvalidInput(what, where="sink configuration", fix=fix)


def _one_of(option: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        raise InvalidInput(
            f"'{value}' is not a value of option '{option}'.",
            where="changefeed configuration",
            fix=nearest(value, valid),
        )


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInput(
            f"Option '{option}' must be at least {least}, not {value}.",
            where="changefeed configuration",
        )
