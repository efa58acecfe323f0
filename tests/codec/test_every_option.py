"""Every option of TiCDC that touches the bytes of a Kafka message: read from URI and file, and of effect.

One line an option: how a URI and a file give it, what it needs, and for which protocol. That the bytes are
TiCDC's own is `test_golden_messages`' affair.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import pytest

from tests.codec.test_fitting import OnePlace
from tests.contracts.codec_rows import golden_rows
from tidegate.codec.entry import RowCodec
from tidegate.codec.large import LargeOptions
from tidegate.codec.registry import CODECS, encoder, options_of
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput

BUILD_MS = 1_795_246_227_000
PLACE = "claim-check-storage-uri=file%3A%2F%2F%2Fclaims"
CODEC, LARGE = "sink.kafka-config.codec-config.", "sink.kafka-config.large-message-handle."
REGISTRY = "schema-registry=http%3A%2F%2Fr:1"
SUMMED = (
    "enable-tidb-extension=true&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string"
)


@dataclass(frozen=True)
class Given:
    """An option of a protocol."""

    protocol: str
    option: str
    """As `registry.codec_options` names it, and the URI."""
    value: str
    section: str
    """Where a file has it, with a dot at the end."""
    companions: str = ""
    """Parameters that it takes."""
    leaf: str = ""
    """Its name in the file, where it has another one than in the URI."""
    flavours: tuple[str, ...] = ("classic", "new")
    in_uri: bool = True

    def __str__(self) -> str:
        return f"{self.protocol}, {self.option}"


EXTENDED, NEW_ONLY = "enable-tidb-extension=true", ("new",)
EVERY = [
    Given("open-protocol", "max-message-bytes", "1100", "sink.kafka-config."),
    Given("open-protocol", "max-batch-size", "2", CODEC),
    Given("open-protocol", "only-output-updated-columns", "true", "sink."),
    Given("open-protocol", "delete-only-output-handle-key-columns", "true", "sink.", in_uri=False),
    Given("open-protocol", "output-old-value", "false", "sink.open.", in_uri=False),
    Given("open-protocol", "large-message-handle-option", "handle-key-only", LARGE, "max-message-bytes=1100"),
    Given("open-protocol", "large-message-handle-compression", "lz4", LARGE),
    Given("canal-json", "max-message-bytes", "1100", "sink.kafka-config."),
    Given("canal-json", "enable-tidb-extension", "true", CODEC),
    Given("canal-json", "only-output-updated-columns", "true", "sink."),
    Given("canal-json", "delete-only-output-handle-key-columns", "true", "sink.", in_uri=False),
    Given("canal-json", "content-compatible", "true", "sink."),
    Given("canal-json", "output-row-key", "true", CODEC, EXTENDED, flavours=NEW_ONLY),
    Given(
        "canal-json", "large-message-handle-option", "claim-check", LARGE,
        f"{EXTENDED}&{PLACE}&max-message-bytes=1100",
    ),
    Given("canal-json", "large-message-handle-compression", "snappy", LARGE),
    Given(
        "canal-json", "claim-check-raw-value", "true", LARGE,
        f"{EXTENDED}&{PLACE}&max-message-bytes=1100&large-message-handle-option=claim-check",
    ),
    Given("simple", "max-message-bytes", "1100", "sink.kafka-config."),
    Given("simple", "encoding-format", "avro", CODEC),
    Given("simple", "integrity-check-level", "correctness", "integrity.", in_uri=False),
    Given("simple", "large-message-handle-option", "handle-key-only", LARGE, "max-message-bytes=1100"),
    Given("simple", "large-message-handle-compression", "lz4", LARGE),
    Given(
        "simple", "claim-check-raw-value", "true", LARGE,
        f"{PLACE}&max-message-bytes=1100&large-message-handle-option=claim-check",
    ),
    Given("debezium", "max-message-bytes", "4000", "sink.kafka-config."),
    Given("debezium", "enable-tidb-extension", "true", CODEC),
    Given("debezium", "debezium-disable-schema", "true", "sink."),
    Given(
        "debezium", "debezium-output-old-value", "false", "sink.debezium.", leaf="output-old-value",
        in_uri=False,
    ),
    Given(
        "debezium", "debezium-include-start-ts", "true", "sink.debezium.", leaf="include-start-ts",
        flavours=NEW_ONLY,
    ),
    Given("avro", "max-message-bytes", "1024", "sink.kafka-config.", REGISTRY),
    Given("avro", "enable-tidb-extension", "true", CODEC, REGISTRY),
    Given("avro", "avro-enable-watermark", "true", CODEC, f"{REGISTRY}&{EXTENDED}"),
    Given("avro", "avro-decimal-handling-mode", "string", CODEC, REGISTRY),
    Given("avro", "avro-bigint-unsigned-handling-mode", "string", CODEC, REGISTRY),
    Given("avro", "avro-include-before-value", "true", CODEC, REGISTRY, flavours=NEW_ONLY),
    Given("avro", "integrity-check-level", "correctness", "integrity.", f"{REGISTRY}&{SUMMED}", in_uri=False),
]  # fmt: skip
CASES = [(given, flavour) for given in EVERY for flavour in given.flavours]
ELSEWHERE = {
    ("open-protocol", "claim-check-raw-value"): "refused: a message of it is not its value alone",
}


def settings_of(given: Given, flavour: str, *, in_file: bool = False, in_uri: bool = False) -> Any:
    """The options of a changefeed, with the option in its file, its URI, or in neither."""
    data: dict[str, Any] = {"tidegate": {"flavour": flavour}}
    if in_file:
        node = data
        for part in given.section.strip(".").split("."):
            node = node.setdefault(part, {})
        typed: Any = given.value
        if given.value in ("true", "false"):
            typed = given.value == "true"
        elif given.value.isdigit():
            typed = int(given.value)
        node[given.leaf or given.option] = typed
    parameters = [f"protocol={given.protocol}", *filter(None, [given.companions])]
    parameters += [f"{given.option}={given.value}"] if in_uri else []
    uri = parse_sink_uri("kafka://a:1/t?" + "&".join(parameters))
    return options_of(merge_config(data, uri))


@cache
def sent(options: Any) -> list[Any]:
    """All that goes out of the recorded rows under these options, a mark, and what is put into a storage."""
    storage = OnePlace()
    if isinstance(options, LargeOptions):
        options = replace(options, claims=storage)
    found: list[Any] = []
    for rows in golden_rows()[::2]:
        try:
            found.append(encoder(options).encode_rows(rows[::3], BUILD_MS))
        except InvalidInput as error:
            found.append(error.what)
    return [*found, encoder(options).encode_resolved(5, BUILD_MS), sorted(storage.stored)]


@pytest.mark.parametrize(("given", "flavour"), CASES, ids=[f"{g}, {flavour}" for g, flavour in CASES])
def test_an_option_is_read_from_uri_and_file_and_of_effect(given: Given, flavour: str) -> None:
    without, by_file = settings_of(given, flavour), settings_of(given, flavour, in_file=True)
    name = given.option.replace("-", "_")
    assert str(getattr(by_file, name)).lower() == given.value
    assert by_file == replace(without, **{name: getattr(by_file, name)})
    assert sent(by_file) != sent(without)
    if given.in_uri:
        assert settings_of(given, flavour, in_uri=True) == by_file
    else:
        with pytest.raises(InvalidInput, match="there is no option"):
            settings_of(given, flavour, in_uri=True)


def test_the_uri_wins_over_the_file() -> None:
    uri = parse_sink_uri("kafka://a:1/t?protocol=canal-json&enable-tidb-extension=false")
    file = {"sink": {"kafka-config": {"codec-config": {"enable-tidb-extension": True}}}}
    assert options_of(merge_config(file, uri)).enable_tidb_extension is False  # type: ignore[attr-defined]


def test_no_option_is_without_its_line() -> None:
    common = {"flavour", "time_zone"}
    for codec in CODECS.values():
        if isinstance(codec, RowCodec) and codec.flavours != ("classic",):
            own = [f for f in fields(codec.options) if not f.metadata.get("placed")]
            listed = {given.option for given in EVERY if given.protocol == codec.name}
            listed |= {option for protocol, option in ELSEWHERE if protocol == codec.name}
            assert {f.name.replace("_", "-") for f in own if f.name not in common} == listed, codec.name
