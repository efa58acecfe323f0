"""Whatever prints whatever holds a secret, the secret is not in it; and who must send it has it whole."""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import log
from tidegate.access import AccessToken
from tidegate.api.operations import _shown
from tidegate.config.reading import config_from_json, merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.config.values import Secret, revealed
from tidegate.control.grants import Grant
from tidegate.control.metadata import (
    FeedId,
    FeedInfo,
    KeyValue,
    feed_key,
)
from tidegate.errors import Fatal
from tidegate.server.changefeeds.new_feed import NewFeed
from tidegate.server.delivery.plan import FeedPlan, Paths
from tidegate.sink.kafka.client import client_settings

MARK = "q7Z"
SIGNS = "abc012,;'\"{}[]()\\ /@%:#=&+?!$~`|<>\n\t\r\u00e9\u4e2d\U0001f511-----BEGIN KEY-----"
SECRETS = st.text(st.sampled_from(SIGNS), max_size=40).map(lambda text: MARK + text + MARK)
FEED = FeedId("default", "one")


def printed(value: Any) -> list[str]:
    """A value in every way in which it gets into a text; alone, as a part, in an error and in a log line."""
    out = io.StringIO()
    log.setup(json_lines=True, stream=out)
    logger = logging.getLogger("tidegate.test")
    log.event(logger, logging.INFO, "noted", value=value)
    logger.warning("%s %r", value, value)
    log.setup(stream=out)
    log.event(logger, logging.INFO, "noted", value=value)
    try:
        raise Fatal("failed", where=f"{value}", why=f"{value!r}")
    except Fatal as error:
        traceback.print_exception(error, file=out)
    return [
        repr(value),
        str(value),
        f"{value}",
        f"{value!r:>9}",
        f"{[value]} {(value, {'a': value})}",
        out.getvalue(),
    ]


def holders(secret: str) -> tuple[list[Any], ReplicaConfig]:
    """Return all objects that hold a feed's secret, which is given in the URI or separately."""
    bare = "kafka://h:9092/t?protocol=open-protocol"
    uri = parse_sink_uri(f"{bare}&sasl-user=u&sasl-mechanism=PLAIN&sasl-password={quote(secret, safe='')}")
    config = merge_config({}, uri)
    separate = {"sasl_user": "u", "sasl_mechanism": "PLAIN", "sasl_password": secret}
    other = merge_config({"sink": {"kafka_config": separate}}, parse_sink_uri(bare))
    assert config.sink.kafka_config == other.sink.kafka_config
    info = FeedInfo(uri.render(redact=False), config.to_json(), 1, 0, 0, "normal", "i")
    grant = Grant("i", (1, 1), 1, 1)
    plan = FeedPlan(1, FEED, uri, config, "i", Paths(Path("d"), Path("s")), "c", grant=grant)
    stored = KeyValue(feed_key(1, FEED, "info"), info.to_bytes(), 1, 1)
    found = [
        uri, uri.options, uri.option("sasl-password"), uri.render(), config, config.sink,
        config.sink.kafka_config, config.sink.kafka_config.sasl_password, other,
        config.to_json(redact=True), info, NewFeed(FEED, uri, config, 0, 0), plan, _shown(stored),
        AccessToken("x" * 32 + secret),
    ]  # fmt: skip
    return found, config


@settings(max_examples=60)
@given(SECRETS)
def test_nothing_that_holds_a_secret_shows_it(secret: str) -> None:
    found, _ = holders(secret)
    for value in found:
        for text in printed(value):
            assert MARK not in text, type(value)


@settings(max_examples=60)
@given(SECRETS)
def test_who_must_send_or_store_a_secret_has_it_whole(secret: str) -> None:
    (uri, *_), config = holders(secret)
    assert parse_sink_uri(uri.render(redact=False)) == uri
    again = config_from_json(
        FeedInfo.from_bytes(
            FeedInfo(uri.render(redact=False), config.to_json(), 1, 0, 0, "normal", "i").to_bytes()
        ).config
    )
    for one in (config, again, pickle.loads(pickle.dumps(config))):
        sent = client_settings(uri, one.sink.kafka_config)["sasl.password"]
        assert (type(sent), sent) == (str, secret)


def test_a_secret_compares_as_a_text() -> None:
    secret = Secret("a")
    assert (secret == "a", hash(secret) == hash("a"), secret.encode()) == (True, True, b"a")
    assert type(revealed(secret)) is str
    assert (str(Secret("")), f"{Secret(''):>3}", f"{secret:>7}") == ("", "   ", "  xxxxx")
    with pytest.raises(AttributeError):
        secret.more = 1  # type: ignore[attr-defined]
