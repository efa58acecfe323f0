"""Options and protocols are refused by name, with what is supported."""

from __future__ import annotations

import pytest

from tidegate.claim_check import ClaimStorage
from tidegate.codec.large import LargeOptions
from tidegate.codec.protocols.canal_json.plain import CanalOptions
from tidegate.codec.protocols.kv_json.plain import KvOptions
from tidegate.codec.registry import canonical, codec, codec_of, codec_options, key_codec_of
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.pipeline.worker.stages import stage_context


def test_options_are_read_from_texts_and_typed_values() -> None:
    options = codec_options(
        {"protocol": "canal-json", "enable-tidb-extension": "true", "max-message-bytes": 2048}
    )
    assert options == CanalOptions(enable_tidb_extension=True, max_message_bytes=2048)
    assert codec_options({"protocol": "default"}).protocol == "open-protocol"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"protocol": "craft"}, "open-protocol or canal-json"),
        ({"protocol": "canal-json", "compression": "lz4"}, "enable-tidb-extension"),
        ({"protocol": "open-protocol", "enable-tidb-extension": "true"}, "canal-json"),
        ({"protocol": "open-protocol", "max-batch-size": "many"}, "positive number"),
        ({"protocol": "open-protocol", "max-batch-size": "0"}, "1 to 65536"),
        ({"protocol": "canal-json", "content-compatible": "yes"}, "true or false"),
        ({"protocol": "avro", "avro-decimal-handling-mode": "exact"}, "precise or string"),
        ({"protocol": "open-protocol", "output-row-key": "true"}, "use protocol canal-json"),
        ({"protocol": "canal-json", "debezium-include-start-ts": "true"}, "use protocol debezium"),
        ({"protocol": "simple", "avro-include-before-value": "true"}, "use protocol avro"),
        ({"protocol": "avro", "topic": "t"}, "not known"),
        ({"protocol": "ticdc-mq", "flavour": "new"}, "classic"),
        ({"protocol": "canal-json", "flavour": "newer"}, "classic or new"),
        ({"protocol": "avro", "large-message-handle-option": "claim-check"}, "simple"),
        ({"protocol": "debezium", "large-message-handle-compression": "lz4"}, "simple"),
        ({"protocol": "simple", "large-message-handle-compression": "zstd"}, "none or snappy or lz4"),
        (
            {
                "protocol": "simple",
                "encoding-format": "avro",
                "large-message-handle-option": "handle-key-only",
            },
            "of whole rows only",
        ),
        (
            {"protocol": "canal-json", "large-message-handle-option": "handle-key-only"},
            "enable-tidb-extension=true",
        ),
        (
            {
                "protocol": "open-protocol",
                "large-message-handle-option": "claim-check",
                "claim-check-raw-value": "true",
            },
            "not its value alone",
        ),
        ({"protocol": "canal-json", "time-zone": "Mars/Olympus"}, "UTC"),
        ({"protocol": "canal-json", "time-zone": "../../etc/passwd"}, "UTC"),
    ],
)
def test_what_is_not_supported_is_refused_and_the_supported_named(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        codec_options(settings)


@pytest.mark.parametrize(
    ("uri", "section"),
    [
        ("avro&schema-registry=http%3A%2F%2Fr:1&avro-include-before-value=true", "avro_include_before_value"),
        ("canal-json&enable-tidb-extension=true&output-row-key=true", "output_row_key"),
        ("debezium&debezium-include-start-ts=true", "debezium_include_start_ts"),
    ],
)
def test_what_only_the_new_architecture_has_is_written_in_its_flavour_only(uri: str, section: str) -> None:
    where = parse_sink_uri(f"kafka://a:1/t?protocol={uri}")
    with pytest.raises(InvalidInput) as caught:
        canonical(merge_config({}, where))
    assert section.replace("_", "-") in caught.value.what
    assert 'flavour = "new"' in caught.value.fix
    new = canonical(merge_config({"tidegate": {"flavour": "new"}}, where))
    assert getattr(stage_context(new, "t", lambda _: 3).codec, section) is True
    read = canonical(merge_config({}, where), reading=True)
    assert getattr(codec_options(read.codec_settings()), section) is True


def test_a_switch_that_says_nothing_without_another_is_refused() -> None:
    uri = parse_sink_uri("kafka://a:1/t?protocol=canal-json&output-row-key=true")
    with pytest.raises(InvalidInput, match="output-row-key") as caught:
        canonical(merge_config({"tidegate": {"flavour": "new"}}, uri))
    assert caught.value.fix == "add enable-tidb-extension=true to the sink URI"


def test_unknown_protocols_have_no_codec() -> None:
    with pytest.raises(InvalidInput, match="open-protocol"):
        codec("craft")


@pytest.mark.parametrize(
    ("protocol", "why"),
    [
        ("canal", "canal's protobuf"),
        ("maxwell", "no watermarks and no types"),
        ("craft", "dropped it"),
        ("debezium-avro", "schema registry"),
        ("csv", "to storage, never to a topic"),
    ],
)
def test_unsupported_ticdc_protocols_are_rejected_with_the_reason(protocol: str, why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        canonical(merge_config({}, parse_sink_uri(f"kafka://a:1/t?protocol={protocol}")))
    assert why in error.value.why
    assert "open-protocol" in error.value.fix


def test_rows_and_keys_have_protocols_of_their_own() -> None:
    with pytest.raises(InvalidInput, match="it has keys, not rows"):
        codec_of(KvOptions())
    with pytest.raises(InvalidInput, match="it has rows, not keys"):
        key_codec_of(CanalOptions())


LARGE = "kafka://h/t?protocol=simple&large-message-handle-option="


@pytest.mark.parametrize(
    ("uri", "settings", "named"),
    [
        (LARGE + "claim-check", {}, "claim-check-storage-uri"),
        (LARGE + "claim-check&claim-check-storage-uri=here", {}, "s3://BUCKET/PREFIX"),
        (LARGE + "lz4", {}, "handle-key-only"),
        (LARGE + "handle-key-only", {"force_replicate": True}, "use claim-check"),
    ],
)
def test_large_messages_without_what_they_need_are_refused(
    uri: str, settings: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        canonical(merge_config(settings, parse_sink_uri(uri)))


def test_the_storage_of_claims_is_kept_as_a_secret() -> None:
    place = "claim-check-storage-uri=s3%3A%2F%2Fb%2Fp%3Fsecret-access-key%3Dhidden"
    uri = parse_sink_uri(f"{LARGE}claim-check&{place}")
    config = canonical(merge_config({}, uri))
    assert "hidden" not in f"{uri} {config} {config.to_json(redact=True)}"
    made = stage_context(config, "t", lambda _: 3).codec
    assert isinstance(made, LargeOptions)
    assert isinstance(made.claims, ClaimStorage)
    assert made.claims.location().startswith("s3://b/p/")
    assert "hidden" not in f"{made} {made.claims}"
