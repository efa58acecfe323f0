"""From a protocol's name and options to its codec; refuses what is not supported, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final
from zoneinfo import ZoneInfo

from tidegate.codec.base import CANAL_JSON, KV_JSON, OPEN_PROTOCOL, PROTOCOLS, CodecOptions, Decoder, Encoder
from tidegate.codec.canal_json import CanalJsonDecoder, CanalJsonEncoder
from tidegate.codec.decode import BatchDecoder
from tidegate.codec.open_protocol import OpenProtocolDecoder, OpenProtocolEncoder
from tidegate.errors import InvalidInput

_ALIASES: Final = {"default": OPEN_PROTOCOL, "open_protocol": OPEN_PROTOCOL, "canal_json": CANAL_JSON}
_FIELDS: Final = {
    "protocol": "protocol",
    "flavour": "flavour",
    "enable-tidb-extension": "enable_tidb_extension",
    "max-message-bytes": "max_message_bytes",
    "max-batch-size": "max_batch_size",
    "only-output-updated-columns": "only_output_updated_columns",
    "delete-only-output-handle-key-columns": "delete_only_output_handle_key_columns",
    "output-old-value": "open_output_old_value",
    "content-compatible": "content_compatible",
    "time-zone": "time_zone",
}
"""Option as TiCDC spells it -> field."""

OPTION_NAMES: Final = tuple(_FIELDS)
"""The options `codec_options` takes."""

_ONLY_FOR: Final = {
    "enable-tidb-extension": CANAL_JSON,
    "content-compatible": CANAL_JSON,
    "max-batch-size": OPEN_PROTOCOL,
    "output-old-value": OPEN_PROTOCOL,
}


def codec_options(settings: Mapping[str, str | int | bool]) -> CodecOptions:
    """Options from a sink URI's texts or typed values; InvalidInput says what is supported.

    A text for a switch is `true` or `false`. An option of the other protocol is accepted and has no effect
    when it is switched off, and refused when it is on.
    """
    kinds = {field.name: field.type for field in fields(CodecOptions)}
    found: dict[str, str | int | bool] = {}
    for name, value in settings.items():
        if name not in _FIELDS:
            raise _refuse(name, value, "this option is not known", "use " + ", ".join(OPTION_NAMES))
        found[_FIELDS[name]] = _typed(name, value, str(kinds[_FIELDS[name]]))
    protocol = str(found.get("protocol", OPEN_PROTOCOL)).lower()
    found["protocol"] = _ALIASES.get(protocol, protocol)
    options = CodecOptions(**found)  # type: ignore[arg-type]
    _check(options, settings)
    return options


def _typed(name: str, value: str | int | bool, kind: str) -> str | int | bool:
    text = str(value).lower()
    if kind == "bool":
        if text not in ("true", "false"):
            raise _refuse(name, value, "it is a switch", "use true or false")
        return text == "true"
    if kind == "int":
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise _refuse(name, value, "it is a count", "use a positive number")
        return int(text)
    return str(value)


def _check(options: CodecOptions, settings: Mapping[str, str | int | bool]) -> None:
    """Refuse values and combinations that no codec of ours has."""
    if options.protocol not in (*PROTOCOLS, KV_JSON):
        raise _refuse("protocol", options.protocol, "no such protocol here", "use " + " or ".join(PROTOCOLS))
    if options.flavour != "classic":
        raise _refuse("flavour", options.flavour, "only TiCDC's classic bytes are written", "use classic")
    if not 1 <= options.max_batch_size <= 65_536:
        raise _refuse("max-batch-size", options.max_batch_size, "out of range", "use 1 to 65536")
    if not 1024 <= options.max_message_bytes <= 1 << 30:
        raise _refuse(
            "max-message-bytes", options.max_message_bytes, "out of range", "use 1024 to 1073741824"
        )
    for name, protocol in _ONLY_FOR.items():
        on = str(settings.get(name, "false")).lower() == "true"
        if on and options.protocol != protocol and name != "output-old-value":
            raise _refuse(
                name, settings[name], f"{options.protocol} has no such option", f"use protocol {protocol}"
            )
    try:
        ZoneInfo(options.time_zone)
    except (ValueError, OSError, KeyError) as error:
        raise _refuse(
            "time-zone", options.time_zone, str(error), "use a name such as UTC or Asia/Shanghai"
        ) from error


def _check_rows(options: CodecOptions) -> None:
    _check(options, {})
    if options.protocol == KV_JSON:
        raise _refuse("protocol", KV_JSON, "it has keys, not rows", "use " + " or ".join(PROTOCOLS))


def _refuse(name: str, value: object, why: str, fix: str) -> InvalidInput:
    return InvalidInput(
        f"codec option {name} cannot be {str(value)[:100]!r}", where="sink URI", why=why, fix=fix
    )


def encoder(options: CodecOptions) -> Encoder:
    """The plain encoder of a protocol."""
    _check_rows(options)
    return OpenProtocolEncoder(options) if options.protocol == OPEN_PROTOCOL else CanalJsonEncoder(options)


def decoder(options: CodecOptions) -> Decoder:
    """The decoder of a protocol; it learns tables as it goes, so keep one per topic."""
    _check_rows(options)
    if options.protocol == OPEN_PROTOCOL:
        return BatchDecoder(OpenProtocolDecoder(), framed=True)
    return BatchDecoder(CanalJsonDecoder(), framed=False)
