"""Options and protocols are refused by name, with what is supported."""

from __future__ import annotations

import pytest

from tidegate.codec.base import CodecOptions
from tidegate.codec.registry import codec_options, decoder, encoder
from tidegate.errors import InvalidInput


def test_options_are_read_from_texts_and_typed_values() -> None:
    options = codec_options(
        {"protocol": "canal-json", "enable-tidb-extension": "true", "max-message-bytes": 2048}
    )
    assert options == CodecOptions("canal-json", enable_tidb_extension=True, max_message_bytes=2048)
    assert codec_options({"protocol": "default"}).protocol == "open-protocol"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"protocol": "avro"}, "open-protocol or canal-json"),
        ({"protocol": "canal-json", "compression": "lz4"}, "enable-tidb-extension"),
        ({"protocol": "open-protocol", "enable-tidb-extension": "true"}, "canal-json"),
        ({"protocol": "open-protocol", "max-batch-size": "many"}, "positive number"),
        ({"protocol": "open-protocol", "max-batch-size": "0"}, "1 to 65536"),
        ({"protocol": "canal-json", "content-compatible": "yes"}, "true or false"),
        ({"protocol": "canal-json", "flavour": "new"}, "classic"),
        ({"protocol": "canal-json", "time-zone": "Mars/Olympus"}, "UTC"),
        ({"protocol": "canal-json", "time-zone": "../../etc/passwd"}, "UTC"),
    ],
)
def test_what_is_not_supported_is_refused_and_the_supported_named(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        codec_options(settings)


def test_unknown_protocols_have_no_codec() -> None:
    for maker in (encoder, decoder):
        with pytest.raises(InvalidInput, match="open-protocol"):
            maker(CodecOptions("maxwell"))
