"""All protocols; finds one by its name and settings, and refuses what is not supported, by name.

The API, the command line and the consumer call `canonical` on new settings. It sets the canonical
name of the protocol. Everywhere else, `options_of` and the entry (`codec_of`) describe a protocol fully.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from zoneinfo import ZoneInfo

from tidegate.codec.base import CodecOptions, Encoder
from tidegate.codec.entry import AnyCodec, DdlTo, KeyCodec, Loss, MarkEncoder, ReadCodec, RowCodec
from tidegate.codec.large import CLAIM_CHECK, LargeOptions
from tidegate.codec.protocols import (
    avro,
    canal_json,
    debezium,
    kv_json,
    maxwell,
    open_protocol,
    simple,
    ticdc_mq,
)
from tidegate.config.settings import ReplicaConfig
from tidegate.config.values import nearest
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message

CODECS: Final[dict[str, AnyCodec]] = {
    codec.name: codec
    for codec in (
        open_protocol.CODEC,
        canal_json.CODEC,
        simple.CODEC,
        ticdc_mq.CODEC,
        debezium.CODEC,
        avro.CODEC,
        maxwell.CODEC,
        kv_json.CODEC,
    )
}
"""Entries by name. To add a protocol, add its entry here."""

_REFUSED: Final = {
    "canal": "it is canal's protobuf; canal-json has the same content in JSON",
    "craft": "only TiCDC's classic architecture reads and writes it, and the new one has dropped it",
    "debezium-avro": "it needs a schema registry, and debezium has the same content in JSON",
    "csv": "TiCDC writes it to storage, never to a topic",
}
"""Protocols that are not supported, and why."""


_STRICT: Final = frozenset({"large-message-handle-option", "large-message-handle-compression"})
"""Options that are refused and not ignored for a protocol that does not have them: otherwise rows would be
lost, or messages written that a reader with the same settings could not read."""


def row_protocols() -> list[str]:
    """The names of the protocols of rows that can be written, the default one first."""
    return [name for name, codec in CODECS.items() if isinstance(codec, RowCodec)]


def read_protocols() -> list[str]:
    """The names of the protocols of rows that can be read."""
    return [name for name, codec in CODECS.items() if isinstance(codec, ReadCodec)]


def key_protocols() -> list[str]:
    """The names of the protocols of keys without tables."""
    return [name for name, codec in CODECS.items() if isinstance(codec, KeyCodec)]


def codec(name: str) -> AnyCodec:
    """The entry of a protocol by its canonical name."""
    found = CODECS.get(name)
    if found is None:
        raise _refuse("protocol", name, "no such protocol here", "use " + " or ".join(row_protocols()))
    return found


def reader_of(options: CodecOptions) -> ReadCodec[Any]:
    """The entry of a protocol of rows, for readers; InvalidInput for a protocol of keys."""
    found = codec(options.protocol)
    if not isinstance(found, ReadCodec):
        raise _refuse("protocol", found.name, "it has keys, not rows", "use " + " or ".join(row_protocols()))
    return found


def codec_of(options: CodecOptions) -> RowCodec[Any]:
    """The entry of a protocol of rows, for writers; InvalidInput if it has keys, or can only be read."""
    found = reader_of(options)
    if not isinstance(found, RowCodec):
        raise _refuse("protocol", found.name, found.unwritten, "use " + " or ".join(row_protocols()))
    return found


def key_codec_of(options: CodecOptions) -> KeyCodec[Any]:
    """The entry of a protocol of keys; InvalidInput for one of rows."""
    found = codec(options.protocol)
    if not isinstance(found, KeyCodec):
        raise _refuse("protocol", found.name, "it has rows, not keys", "use " + " or ".join(key_protocols()))
    return found


def encoder(options: CodecOptions) -> Encoder:
    """The plain encoder of a protocol of rows."""
    return codec_of(options).encoder(options)


@dataclass(frozen=True, slots=True)
class OwnerMarks:
    """The owner's messages and the partitions they go to: the `sink.base.Marks` of a protocol."""

    encoder: MarkEncoder
    ddl_to: DdlTo
    admin: Callable[[int], Message] | None = None

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """The DDL message; None if the options leave it out."""
        return self.encoder.encode_ddl(event, build_ms)

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None if the options leave it out."""
        return self.encoder.encode_resolved(ts, build_ms)

    def encode_admin(self, partitions: int) -> Message | None:
        """The message that from here on rows go to so many partitions; None if the protocol has none."""
        return self.admin(partitions) if self.admin is not None else None

    def ddl_to_all_partitions(self) -> bool:
        """Whether a DDL message goes to every partition of its topic, or to partition 0 only."""
        return self.ddl_to is DdlTo.ALL


def marks(options: CodecOptions) -> OwnerMarks:
    """How a protocol, of rows or of keys, encodes DDL and Resolved."""
    found = codec(options.protocol)
    made = found.marks(options) if isinstance(found, KeyCodec) else encoder(options)
    return OwnerMarks(made, found.ddl_to, found.admin)


# --- settings


def canonical(config: ReplicaConfig, *, reading: bool = False) -> ReplicaConfig:
    """The settings with the protocol's canonical name. InvalidInput unless such a feed can be encoded.

    `reading`: it is enough that its messages can be decoded.
    """
    kind = KeyCodec if not config.has_tables else ReadCodec if reading else RowCodec
    found = _named(config.sink.protocol, kind)
    if found is None:
        raise _unsupported(config)
    config = dataclasses.replace(config, sink=dataclasses.replace(config.sink, protocol=found.name))
    options = codec_options(config.codec_settings())
    if isinstance(found, RowCodec):
        if not reading:
            _check_switches(options)
        _check_images(found, options, config)
        _check_schemas(found, options, config)
        _check_read_back(found, options, config)
        if not reading:
            _check_alignment(options, config)
    return config


def options_of(config: ReplicaConfig) -> CodecOptions:
    """The options of a changefeed's protocol; raises the errors of `canonical`."""
    return codec_options(canonical(config).codec_settings())


def has_marks(options: CodecOptions) -> bool:
    """Whether messages contain resolved marks, so that a reader knows up to which ts it has everything."""
    unmarked = codec(options.protocol).unmarked
    return unmarked is None or not unmarked.without(options)


def _named(name: str, kind: type[AnyCodec]) -> AnyCodec | None:
    """The protocol of that kind with this name or alias."""
    for found in CODECS.values():
        if isinstance(found, kind) and name in (found.name, *found.aliases):
            return found
    return None


def _unsupported(config: ReplicaConfig) -> InvalidInput:
    name = config.sink.protocol
    if not config.has_tables:
        own = " or ".join(key_protocols())
        return InvalidInput(
            f"a changefeed of keys cannot be written as '{name}'",
            where="sink configuration",
            why="there is one form for keys without tables, TiKV-CDC's",
            fix=f"leave protocol out, or write {own} or, as TiKV-CDC names it, open-protocol",
        )
    if name in key_protocols():
        rows = " or ".join(row_protocols())
        return InvalidInput(
            f"protocol '{name}' is for keys without tables",
            where="sink configuration",
            fix=f"use {rows}, or create the changefeed with --kv-mode txnkv or rawkv",
        )
    only_read = _named(name, ReadCodec)
    why = only_read.unwritten if isinstance(only_read, ReadCodec) else _REFUSED.get(name, "")
    if not name:
        what = "a topic needs a protocol"
    elif only_read is not None:
        what = f"protocol '{name}' is read, but not written"
    elif why:
        what = f"protocol '{name}' is not supported"
    else:
        what = f"there is no protocol '{name}'"
    fix = "add protocol=... to the sink URI; " + nearest(name, row_protocols(), label="supported")
    return InvalidInput(what, where="sink configuration", why=why, fix=fix)


def _check_switches(options: CodecOptions) -> None:
    """Refuse options of one architecture in the flavour of the other. Readers accept both flavours."""
    for option, field in _options(type(options)).items():
        flavour = field.metadata.get("flavour", options.flavour)
        if flavour != options.flavour and getattr(options, field.name) != field.default:
            why = "TiCDC's classic architecture has no such option, and no reader of its messages expects it"
            fix = f'add [tidegate] flavour = "{flavour}" to the changefeed file, or leave the option out'
            raise _refuse(option, "true", why, fix)
        needs = field.metadata.get("needs")
        if needs and getattr(options, field.name) and not getattr(options, needs):
            other = f"{needs.replace('_', '-')}=true"
            raise _refuse(option, "true", f"it has no effect without {other}", f"add {other} to the sink URI")


def _check_images(found: RowCodec[Any], options: CodecOptions, config: ReplicaConfig) -> None:
    """Readers identify rows of tables without a key by their whole content, so all of it must be sent."""
    lacking = found.lacks_old(options)
    if not lacking and config.sink.delete_only_output_handle_key_columns:
        lacking = "delete-only-output-handle-key-columns = true"
    if config.force_replicate and lacking:
        raise InvalidInput(
            f"force-replicate = true cannot be used with {lacking}",
            where="changefeed configuration",
            why="a row of a table without a key is found downstream by its whole old content",
            fix="leave one of the two out",
        )
    if found.splits_updates(options) and not config.splits_updates:
        raise InvalidInput(
            f"output-raw-change-event = true cannot be used with protocol {found.name}",
            where="changefeed configuration",
            why="its updates have no old values: the row under the old key would stay downstream for ever",
            fix="leave output-raw-change-event out",
        )


def _check_schemas(found: RowCodec[Any], options: CodecOptions, config: ReplicaConfig) -> None:
    """Check that a protocol with a schema registry has one, and that its checksums are possible."""
    if found.schemas is not None and not config.sink.schema_registry:
        raise InvalidInput(
            f"protocol {found.name} needs a schema registry",
            where="sink configuration",
            why="its messages name their schemas by the numbers that a registry gives",
            fix="add schema-registry=http://HOST:PORT to the sink URI, percent-encoded",
        )
    if config.integrity.checks and found.no_checksums(options):
        raise InvalidInput(
            f"integrity-check-level = 'correctness' cannot be used with protocol {found.name}",
            where="changefeed configuration",
            why=found.no_checksums(options),
            fix="add what is missing to the sink URI, or leave integrity-check-level out",
        )


def _check_read_back(found: RowCodec[Any], options: CodecOptions, config: ReplicaConfig) -> None:
    """Messages can be compared with their rows only if they contain types."""
    if config.integrity.verify_encoded and (why := unverified(found, options)):
        raise InvalidInput(
            f"verify-encoded = true cannot be used with protocol {found.name}",
            where="changefeed configuration",
            why=why,
            fix="add what is missing to the sink URI, choose another protocol, or leave verify-encoded out",
        )


def _check_alignment(options: CodecOptions, config: ReplicaConfig) -> None:
    """Dispatch by conflict needs Resolved messages, because its marks are Resolved messages with a header."""
    if has_marks(options) or all(rule.partition != "conflict" for rule in config.sink.dispatchers):
        return
    unmarked = codec(options.protocol).unmarked
    option = unmarked.option if unmarked is not None else ""
    raise InvalidInput(
        f"partition = 'conflict' cannot be used with protocol {options.protocol} and these options",
        where="dispatch rules",
        why="its messages have no Resolved, so that no alignment mark can show readers where to wait",
        fix=(f"add {option} to the sink URI, or " if option else "") + "choose another protocol or partition",
    )


def unverified(found: ReadCodec[Any], options: CodecOptions) -> str:
    """Why messages written with these options cannot be compared with their rows; empty: they can."""
    if setting := found.unread(options):
        return f"with {setting} its messages do not have the types of their columns"
    if Loss.TYPES in found.losses(options):
        option = f" without {found.unmarked.option}" if found.unmarked is not None else ""
        return f"its messages do not have the types of their columns{option}"
    return ""


def codec_options(settings: Mapping[str, str | int | bool]) -> CodecOptions:
    """Options from a sink URI's texts or typed values; InvalidInput says what is supported.

    The text of a switch is `true` or `false`. An option of another protocol is accepted and has no effect,
    unless it is a switch that is turned on, or ignoring it would be harmful (`_STRICT`).
    """
    name = str(settings.get("protocol") or row_protocols()[0]).lower()
    found = _named(name, ReadCodec) or codec(name)
    own, known = (
        _options(found.options),
        {k: v for c in CODECS.values() for k, v in _options(c.options).items()},
    )
    given: dict[str, Any] = {}
    for option, value in settings.items():
        if option == "protocol":
            continue
        if option not in known:
            raise _refuse(option, value, "this option is not known", "use " + ", ".join(["protocol", *known]))
        typed = _typed(option, value, str(known[option].type))
        if option in own:
            given[own[option].name] = typed
        # TiCDC ignores options of other protocols, so a URI that is made for it must still be accepted.
        elif typed != known[option].default and (option in _STRICT or typed is True):
            others = [c.name for c in CODECS.values() if option in _options(c.options)]
            raise _refuse(
                option, value, f"{found.name} has no such option", "use protocol " + " or ".join(others)
            )
    options: CodecOptions = found.options(**given)
    _check(options)
    return options


def _options(kind: type[CodecOptions]) -> dict[str, dataclasses.Field[Any]]:
    """The fields by the options' names, except those that users cannot set."""
    return {f.name.replace("_", "-"): f for f in fields(kind) if not f.metadata.get("placed")}


def _typed(name: str, value: str | int | bool, kind: str) -> str | int | bool:
    text = str(value).lower()
    if kind == "bool":
        if text not in ("true", "false"):
            raise _refuse(name, value, "it is a switch", "use true or false")
        return text == "true"
    if kind == "int":
        # `isdigit` is also true of other scripts' digits. Numbers of 18 digits fit 64 bits.
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise _refuse(name, value, "it is a count", "use a positive number")
        return int(text)
    return str(value)


def _check(options: CodecOptions) -> None:
    """Refuse values that none of our codecs supports."""
    found = codec(options.protocol)
    flavours = found.flavours if isinstance(found, RowCodec) else ("classic",)
    if options.flavour not in flavours:
        why = f"{found.name} is not written in it"
        raise _refuse("flavour", options.flavour, why, "use " + " or ".join(flavours))
    if isinstance(found, RowCodec) and options.flavour != "classic" and (why := found.classic_only(options)):
        raise _refuse("flavour", options.flavour, why, "use classic")
    for option, field in _options(type(options)).items():
        value = getattr(options, field.name)
        least, most = field.metadata.get("bounds", (value, value))
        if not least <= value <= most:
            raise _refuse(option, value, "out of range", f"use {least} to {most}")
        words = field.metadata.get("words", (value,))
        if value not in words:
            raise _refuse(
                option, value, f"{options.protocol} is not written in it", "use " + " or ".join(words)
            )
    if isinstance(options, LargeOptions):
        _check_large(options)
    try:
        ZoneInfo(options.time_zone)
    except (ValueError, OSError, KeyError) as error:
        raise _refuse(
            "time-zone", options.time_zone, str(error), "use a name such as UTC or Asia/Shanghai"
        ) from error


def _check_large(options: LargeOptions) -> None:
    """The same checks as TiCDC's `LargeMessageHandleConfig.AdjustAndValidate`."""
    option, name = options.large_message_handle_option, "large-message-handle-option"
    unmarked, raw = codec(options.protocol).unmarked, options.claim_check_raw_value
    if options.reduces and unmarked is not None and unmarked.without(options):
        why = f"only with {unmarked.option} can a message of {options.protocol} say that it is not whole"
        raise _refuse(name, option, why, f"add {unmarked.option}, or leave it out")
    large = reader_of(options).large
    if options.reduces and large is not None and (why := large.refuses(options)):
        raise _refuse(name, option, why, "leave one of the two out")
    if option == CLAIM_CHECK and raw and large is not None and large.framed:
        why = f"a message of {options.protocol} is not its value alone"
        raise _refuse("claim-check-raw-value", "true", why, "leave it out")


def _refuse(name: str, value: object, why: str, fix: str) -> InvalidInput:
    return InvalidInput(
        f"codec option {name} cannot be {str(value)[:100]!r}", where="sink URI", why=why, fix=fix
    )
