"""What no single setting shows: aliases resolved, values and their combinations checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tidegate.config.settings import FilterConfig, ReplicaConfig
from tidegate.config.values import (
    COMPRESSIONS,
    CORRUPTION_LEVELS,
    FLAVOURS,
    INTEGRITY_LEVELS,
    KEY_PROTOCOL,
    KV_MODES,
    PARTITION_RULES,
    PROTOCOL_ALIASES,
    PROTOCOLS,
    PROTOCOLS_TO_COME,
    RAW_MODE,
    SASL_MECHANISMS,
    nearest,
)
from tidegate.errors import InvalidInput


def canonical(config: ReplicaConfig) -> ReplicaConfig:
    """Aliases to the one name the rest of the program knows."""
    kafka = config.sink.kafka_config
    mechanism = kafka.sasl_mechanism.upper() or ("PLAIN" if kafka.sasl_user else "")
    kafka = dataclasses.replace(kafka, sasl_mechanism=mechanism)
    rules = tuple(dataclasses.replace(r, partition=r.partition or "default") for r in config.sink.dispatchers)
    protocol = PROTOCOL_ALIASES.get(config.sink.protocol, config.sink.protocol)
    if not config.has_tables and protocol in ("", "open-protocol"):
        protocol = KEY_PROTOCOL
    return dataclasses.replace(
        config,
        sink=dataclasses.replace(config.sink, protocol=protocol, dispatchers=rules, kafka_config=kafka),
    )


def check(config: ReplicaConfig) -> None:
    """What no single field shows; raises InvalidInput."""
    _check_protocol(config)
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
    _check_keys(config)
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
    _at_least("tidegate.stall-timeout", own.stall_timeout, 1)
    _at_least("tidegate.start-timeout", own.start_timeout, 1)
    _at_least("tidegate.max-batch-bytes", own.max_batch_bytes, 1 << 16)
    _at_least("tidegate.load-rows-per-second", own.load_rows_per_second, 0)
    _at_least("tidegate.load-bytes-per-second", own.load_bytes_per_second, 0)


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


def _check_keys(config: ReplicaConfig) -> None:
    """A feed of keys knows neither tables nor rows; one of tables has no key range."""
    own = config.tidegate
    _one_of("tidegate.kv-mode", own.kv_mode, KV_MODES)
    for option, text in (
        ("start-key", own.start_key),
        ("end-key", own.end_key),
        ("key-prefix", own.key_prefix),
    ):
        if not _is_hex(text):
            raise InvalidInput(
                f"Option 'tidegate.{option}' is not hex: '{text[:40]}'",
                where="changefeed configuration",
                fix="write two hex digits a byte, without 0x",
            )
    ranged = own.start_key or own.end_key
    if (ranged and own.key_prefix) or (own.end_key and own.end_key.lower() <= own.start_key.lower()):
        raise InvalidInput(
            "The keys of the changefeed are no range.",
            where="changefeed configuration",
            fix="give start-key below end-key, or key-prefix alone",
        )
    if not -1 <= own.keyspace_id < 1 << 24:
        raise InvalidInput(
            f"There is no keyspace {own.keyspace_id}.", where="changefeed configuration", fix="0 to 16777215"
        )
    if config.has_tables:
        foreign = [
            name
            for name, given in (
                ("start-key", own.start_key),
                ("end-key", own.end_key),
                ("key-prefix", own.key_prefix),
                ("keyspace", own.keyspace),
                ("keyspace-id", own.keyspace_id != -1),
            )
            if given
        ]
        why = "they say which keys a changefeed of keys follows"
        fix = "set kv-mode to txnkv or rawkv, or leave them out"
    else:
        foreign = _of_tables(config)
        why, fix = "they speak of tables, and a changefeed of keys has none", "leave them out"
    if foreign:
        raise InvalidInput(
            f"kv-mode = '{own.kv_mode}' does not go with {', '.join(foreign)}.",
            where="changefeed configuration",
            why=why,
            fix=fix,
        )
    if own.kv_mode == RAW_MODE and own.initial_load:
        raise InvalidInput(
            "kv-mode = 'rawkv' does not go with initial-load.",
            where="changefeed configuration",
            why="raw keys have no snapshot: whatever ts is asked for, TiKV answers a key's newest value, and "
            "a scan tells neither its ts nor when it expires",
            fix="leave it out; with --start-ts 1 and check-gc-safe-point = false the stream itself begins "
            "with every key's newest version",
        )


def _of_tables(config: ReplicaConfig) -> list[str]:
    """Settings in force that make sense for tables only."""
    rules, sink = config.filter, config.sink
    given = (
        ("[filter] rules", rules.rules != FilterConfig().rules),
        ("[filter] event-filters", bool(rules.event_filters or rules.ignore_txn_start_ts)),
        ("[[sink.dispatchers]]", bool(sink.dispatchers)),
        ("[[sink.column-selectors]]", bool(sink.column_selectors)),
        ("[integrity]", config.integrity.checks),
    )
    return [name for name, is_given in given if is_given]


def _is_hex(text: str) -> bool:
    try:
        return bytes.fromhex(text).hex() == text.lower()
    except ValueError:
        return False


def _check_protocol(config: ReplicaConfig) -> None:
    name = config.sink.protocol
    if not config.has_tables:
        if name != KEY_PROTOCOL:
            raise InvalidInput(
                f"A changefeed of keys cannot be written as '{name}'.",
                where="sink configuration",
                why="there is one form for keys without tables, TiKV-CDC's",
                fix=f"leave protocol out, or write {KEY_PROTOCOL} or, as TiKV-CDC names it, open-protocol",
            )
        return
    if name in PROTOCOLS:
        return
    if name == KEY_PROTOCOL:
        raise InvalidInput(
            f"Protocol '{name}' is for keys without tables.",
            where="sink configuration",
            fix="use open-protocol or canal-json, or create the changefeed with --kv-mode txnkv or rawkv",
        )
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


def _at_least(option: str, value: float, least: int) -> None:
    if value < least:
        raise InvalidInput(
            f"Option '{option}' must be at least {least}, not {value}.",
            where="changefeed configuration",
        )
