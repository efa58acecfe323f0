"""Topics whose messages name schemas: what the consumer needs to know of them, and how it waits."""

from __future__ import annotations

import socket

import pytest

from tests.test_config import refused
from tidegate.codec.base import Batch
from tidegate.codec.registry import codec_of, options_of
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.consumer.running.checks import check_timed
from tidegate.errors import InvalidInput, Retryable

MARKS = "&enable-tidb-extension=true&avro-enable-watermark=true"


def topic(options: str, registry: str = "http%3A%2F%2Fu%3Apw%40127.0.0.1%3A1") -> Topic:
    return Topic(f"kafka://127.0.0.1/t?protocol=avro&schema-registry={registry}{options}")


@pytest.mark.parametrize("options", ["", "&enable-tidb-extension=true", "&avro-enable-watermark=true"])
def test_a_topic_whose_changes_do_not_say_when_is_not_consumed(options: str) -> None:
    with pytest.raises(InvalidInput, match="does not have its commit ts") as caught:
        check_timed(topic(options))
    assert "avro-enable-watermark=true" in caught.value.fix
    assert "pw" not in caught.value.render()


def test_a_topic_with_watermarks_is_consumed() -> None:
    check_timed(topic(MARKS))


CHECKED = ("enable-tidb-extension=true", "avro-decimal-handling-mode=string",
           "avro-bigint-unsigned-handling-mode=string")  # fmt: skip


@pytest.mark.parametrize("lacking", CHECKED)
def test_an_integrity_check_needs_what_its_checksums_are_of(lacking: str) -> None:
    uri = "&".join(["kafka://a/b?protocol=avro&schema-registry=http%3A%2F%2Fa", *CHECKED])
    checks = {"integrity": {"integrity_check_level": "correctness"}}
    text = refused(uri.replace("&" + lacking, ""), checks)
    assert "cannot be used with protocol avro" in text
    assert f"{lacking} is missing" in text
    options = options_of(merge_config(checks, parse_sink_uri(uri)))
    assert codec_of(options).checksums(options)


def test_only_what_names_an_unknown_schema_needs_the_registry() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        decoder = TopicDecoder(topic(MARKS, f"http%3A%2F%2F127.0.0.1%3A{taken.getsockname()[1]}"))
        (decoded,) = decoder.pieces(Batch([None], [b"\x02" + (77).to_bytes(8, "big")], [0]))
        assert decoded.resolved == [(77, 0)]
        with pytest.raises(Retryable, match="does not answer"):
            list(decoder.pieces(Batch([b"\0\0\0\0\1\2"], [None], [1])))
