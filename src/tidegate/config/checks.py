"""Checks beyond a single setting's type: resolves aliases, checks values and their combinations."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tidegate.config.settings import FilterConfig, ReplicaConfig
from tidegate.config.values import (
    COMPRESSIONS,
    CORRUPTION_LEVELS,
    FLAVOURS,
    IDS_PER_STRIPE_MAX,
    INTEGRITY_LEVELS,
    KV_MODES,
    LARGE_OPTIONS,
    MESSAGE_COMPRESSIONS,
    PARTITION_RULES,
    RAW_MODE,
    SASL_MECHANISMS,
    TABLE_CUTS_MAX,
    nearest,
    revealed,
)
from tidegate.errors import InvalidInput

_RECORD: Final = re.compile(rb"t.{8}_r.", re.DOTALL)
"""The beginning of a record key up to the handle. A region may begin inside a handle, so the end is open."""


def canonical(config: ReplicaConfig) -> ReplicaConfig:
    """Replace aliases by the one name that the rest of the program uses."""
    kafka = config.sink.kafka_config
    mechanism = kafka.sasl_mechanism.upper() or ("PLAIN" if kafka.sasl_user else "")
    large = kafka.large_message_handle
    large = dataclasses.replace(
        large,
        # TiCDC's answers have empty texts for what is not set.
        large_message_handle_option=large.large_message_handle_option or "none",
        large_message_handle_compression=large.large_message_handle_compression or "none",
    )
    kafka = dataclasses.replace(kafka, sasl_mechanism=mechanism, large_message_handle=large)
    rules = tuple(dataclasses.replace(r, partition=r.partition or "default") for r in config.sink.dispatchers)
    return dataclasses.replace(
        config,
        sink=dataclasses.replace(config.sink, dispatchers=rules, kafka_config=kafka),
    )


def check(config: ReplicaConfig) -> None:
    """Check values and combinations of settings; raises InvalidInput."""
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
    _check_keys(config)
    if config.sink.schema_registry:
        check_registry_url(revealed(config.sink.schema_registry))
    if config.sink.column_selectors and config.integrity.integrity_check_level != "none":
        raise InvalidInput(
            "column selectors and integrity checks exclude each other",
            where="changefeed configuration",
            why="a row's checksum covers columns that would not travel",
            fix="remove [[sink.column-selectors]], or set integrity-check-level = 'none'",
        )
    _check_large(config)
    _check_conflict(config)
    # docs/guarantees.md#nothing-is-lost
    if kafka.required_acks != -1:
        raise InvalidInput(
            f"required-acks = {kafka.required_acks} would lose rows",
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
    _at_least("tidegate.ids-per-stripe", own.ids_per_stripe, 0)
    if own.ids_per_stripe > IDS_PER_STRIPE_MAX or (own.has_stripes and not config.has_tables):
        raise InvalidInput(
            f"ids-per-stripe = {own.ids_per_stripe} cannot be used",
            where="[tidegate]",
            why=f"a stripe has {IDS_PER_STRIPE_MAX} table ids at most"
            if config.has_tables
            else f"a changefeed with kv-mode = '{own.kv_mode}' follows no tables",
            fix="leave it out, or choose a smaller number" if config.has_tables else "leave it out",
        )
    _check_pieces(config)
    _at_least("tidegate.max-batch-bytes", own.max_batch_bytes, 1 << 16)
    _at_least("tidegate.load-rows-per-second", own.load_rows_per_second, 0)
    _at_least("tidegate.load-bytes-per-second", own.load_bytes_per_second, 0)


def _check_pieces(config: ReplicaConfig) -> None:
    """Check the settings that cut tables into pieces."""
    scheduler, given = config.scheduler, config.tidegate.table_cuts
    _at_least("scheduler.region-threshold", scheduler.region_threshold, 1)
    _at_least("scheduler.region-count-per-span", scheduler.region_count_per_span, 1)
    if (given or scheduler.enable_table_across_nodes) and not config.has_tables:
        raise InvalidInput(
            "there are no tables to be cut into pieces",
            where="changefeed configuration",
            why=f"a changefeed with kv-mode = '{config.tidegate.kv_mode}' follows no tables",
            fix="leave enable-table-across-nodes and table-cuts out",
        )
    if len(given) > TABLE_CUTS_MAX:
        raise InvalidInput(
            f"{len(given)} table-cuts are too many",
            where="[tidegate]",
            why=f"{TABLE_CUTS_MAX} are allowed: each piece of a table costs something while it is quiet",
            fix="cut fewer tables, or into larger pieces",
        )
    previous = b""
    for text in given:
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        # Ascending, because pieces are made from neighbours, and inside a table's records: a cut elsewhere
        # would divide a stripe.
        if not _RECORD.match(key) or key <= previous:
            raise InvalidInput(
                f"'{text}' in table-cuts cannot be used",
                where="[tidegate]",
                why="each is the hex of a key inside a table's records (t, table id, _r, handle), "
                "above the one before it",
                fix="leave table-cuts out: enable-table-across-nodes in [scheduler] chooses them",
            )
        previous = key


def _check_conflict(config: ReplicaConfig) -> None:
    """Check dispatch by conflict: one writer must see all unique values of a table, and updates split."""
    rules = [rule for rule in config.sink.dispatchers if rule.partition == "conflict"]
    if not rules:
        return
    where = f"dispatch rule for {', '.join(rules[0].matcher)}"
    if config.scheduler.enable_table_across_nodes or config.tidegate.table_cuts:
        raise InvalidInput(
            "partition = 'conflict' cannot be used with tables in pieces",
            where=where,
            why="each piece of a table has a writer of its own: two rows that exchange a unique value may be "
            "in two pieces, and neither writer sees the conflict",
            fix="leave enable-table-across-nodes and table-cuts out, or choose partition = 'table'",
        )
    if not config.splits_updates:
        raise InvalidInput(
            "partition = 'conflict' cannot be used with output-raw-change-event = true",
            where=where,
            why="an update frees a unique value and takes another one: readers must be able to stop between"
            " the two",
            fix="leave output-raw-change-event out, or choose partition = 'table'",
        )
    for rule in rules:
        if rule.index or rule.columns:
            raise InvalidInput(
                "partition = 'conflict' takes no index and no columns",
                where=f"dispatch rule for {', '.join(rule.matcher)}",
                why="rows go where their handle key says, and all unique keys are tracked",
                fix="leave them out",
            )


def _check_large(config: ReplicaConfig) -> None:
    """Check the handling of rows that do not fit into a message; codecs check if their protocol has it."""
    large = config.sink.kafka_config.large_message_handle
    _one_of(
        "large-message-handle.large-message-handle-option", large.large_message_handle_option, LARGE_OPTIONS
    )
    _one_of(
        "large-message-handle.large-message-handle-compression",
        large.large_message_handle_compression,
        MESSAGE_COMPRESSIONS,
    )
    if large.large_message_handle_option == "claim-check" and not large.claim_check_storage_uri:
        raise InvalidInput(
            "large-message-handle-option = 'claim-check' needs a storage",
            where="changefeed configuration",
            why="rows that do not fit a message are put there",
            fix="set claim-check-storage-uri, for example to file:///DIRECTORY or s3://BUCKET/PREFIX",
        )
    if large.claim_check_storage_uri:
        claim_uri(revealed(large.claim_check_storage_uri))
    if large.large_message_handle_option == "handle-key-only" and config.force_replicate:
        raise InvalidInput(
            "force-replicate = true cannot be used with large-message-handle-option = 'handle-key-only'",
            where="changefeed configuration",
            why="nothing of a row would be sent if its table has no key",
            fix="use claim-check, or leave one of the two out",
        )


def claim_uri(uri: str) -> SplitResult:
    """The parts of a storage's URI, or absolute path; raises InvalidInput, which does not quote it."""
    try:
        parts = urlsplit(uri.strip())
        is_local = parts.scheme in ("", "file")
        usable = parts.path.startswith("/") and not parts.netloc if is_local else bool(parts.netloc)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(
            "the storage of claim-check cannot be used",
            where="claim-check-storage-uri",
            why="it is neither an absolute path nor a URI with a bucket",
            fix="write file:///DIRECTORY or s3://BUCKET/PREFIX",
        )
    return parts


def check_registry_url(url: str) -> None:
    """Raises InvalidInput, which does not quote it, unless it can be the address of a registry."""
    try:
        parts = urlsplit(url)
        # The port is parsed when it is read, and raises ValueError if it is no number.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidInput(
            "the address of the schema registry cannot be used",
            where="schema-registry",
            why="it is not a URL with scheme http or https and a host"
            if not usable
            else "it has a query or a fragment",
            fix="write schema-registry=http://HOST:PORT, or https://USER:PASSWORD@HOST:PORT",
        )


def _check_keys(config: ReplicaConfig) -> None:
    """Check that a feed of keys has no settings of tables, and a feed of tables no key range."""
    own = config.tidegate
    _one_of("tidegate.kv-mode", own.kv_mode, KV_MODES)
    for option, text in (
        ("start-key", own.start_key),
        ("end-key", own.end_key),
        ("key-prefix", own.key_prefix),
    ):
        if not _is_hex(text):
            raise InvalidInput(
                f"option 'tidegate.{option}' is not hex: '{text[:40]}'",
                where="changefeed configuration",
                fix="write two hex digits a byte, without 0x",
            )
    ranged = own.start_key or own.end_key
    if (ranged and own.key_prefix) or (own.end_key and own.end_key.lower() <= own.start_key.lower()):
        raise InvalidInput(
            "the keys of the changefeed are not a range",
            where="changefeed configuration",
            fix="give start-key below end-key, or key-prefix alone",
        )
    if not -1 <= own.keyspace_id < 1 << 24:
        raise InvalidInput(
            f"there is no keyspace {own.keyspace_id}",
            where="changefeed configuration",
            fix="give a keyspace-id of 0 to 16777215",
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
            f"kv-mode = '{own.kv_mode}' cannot be used with {', '.join(foreign)}",
            where="changefeed configuration",
            why=why,
            fix=fix,
        )
    if own.kv_mode == RAW_MODE and own.initial_load:
        raise InvalidInput(
            "kv-mode = 'rawkv' cannot be used with initial-load",
            where="changefeed configuration",
            why="raw keys have no snapshot: whatever ts is asked for, TiKV answers a key's newest value, and "
            "a scan returns neither its ts nor when it expires",
            fix="leave it out; with --start-ts 1 and check-gc-safe-point = false the stream itself begins "
            "with every key's newest version",
        )


def _of_tables(config: ReplicaConfig) -> list[str]:
    """The settings in the configuration that only make sense for tables."""
    rules, sink = config.filter, config.sink
    given = (
        ("[filter] rules", rules.rules != FilterConfig().rules),
        ("[filter] event-filters", bool(rules.event_filters or rules.ignore_txn_start_ts)),
        ("[[sink.dispatchers]]", bool(sink.dispatchers)),
        ("[[sink.column-selectors]]", bool(sink.column_selectors)),
        ("[integrity]", config.integrity.checks or config.integrity.verify_encoded),
    )
    return [name for name, is_given in given if is_given]


def _is_hex(text: str) -> bool:
    try:
        return bytes.fromhex(text).hex() == text.lower()
    except ValueError:
        return False


def _one_of(option: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        raise InvalidInput(
            f"'{value}' is not a value of option '{option}'",
            where="changefeed configuration",
            fix=nearest(value, valid),
        )


def _at_least(option: str, value: float, least: int) -> None:
    if value < least:
        raise InvalidInput(
            f"option '{option}' must be at least {least}, not {value}",
            where="changefeed configuration",
            fix=f"set it to {least} or more",
        )
