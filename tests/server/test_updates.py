"""What an update of a changefeed refuses, and what a name that is taken is protected from."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.test_capture import Running, capture

from tidegate.config import REDACTED
from tidegate.control.metadata import FeedId, Put, feed_key
from tidegate.kvclient.pd import PdClient
from tidegate.server.reactor import FIXED

pytestmark = pytest.mark.integration

__all__ = ["capture"]


def test_where_a_feed_begins_and_which_keys_it_follows_cannot_be_updated(capture: Running) -> None:
    keys = {"kv_mode": "txnkv", "start_key": "6b", "end_key": "6c"}
    made = {
        "tables": capture.create("tables"),
        "keys": capture.create("keys", replica_config={"tidegate": keys}),
    }
    for name in made:
        assert capture.call("POST", f"/changefeeds/{name}/pause")["http"] == 200
    prefix = {"start_key": "", "end_key": "", "key_prefix": "6b"}
    tried: list[tuple[str, dict[str, Any], str]] = [
        ("tables", {"initial_load": True}, "initial-load"),
        ("keys", {"kv_mode": "rawkv"}, "kv-mode"),
        ("keys", {"keyspace": "tenant"}, "keyspace"),
        ("keys", {"keyspace_id": 3}, "keyspace-id"),
        ("keys", {"start_key": "6a"}, "start-key"),
        ("keys", {"end_key": "6d"}, "end-key"),
        ("keys", prefix, "start-key"),
    ]
    assert {word.replace("-", "_") for _, _, word in tried} | {"key_prefix"} == set(FIXED)
    for name, change, word in tried:
        config = made[name]["config"]
        refused = capture.call(
            "PUT",
            f"/changefeeds/{name}",
            {"replica_config": config | {"tidegate": config["tidegate"] | change}},
        )
        assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused"), change
        assert f"]{word} cannot be changed." in refused["error_msg"]
        assert "create another changefeed" in refused["error_msg"]
    assert capture.call("PUT", "/changefeeds/keys", {"replica_config": made["keys"]["config"]})["http"] == 200


def test_secrets_that_were_shown_redacted_and_sent_back_stay_what_they_are(capture: Running) -> None:
    secret = {"sasl_user": "u", "sasl_password": "hidden", "sasl_mechanism": "PLAIN"}
    made = capture.create("one", replica_config={"sink": {"kafka_config": secret}})
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    shown = made["config"]
    assert shown["sink"]["kafka_config"]["sasl_password"] == REDACTED
    shown["sink"]["kafka_config"]["sasl_mechanism"] = "SCRAM-SHA-256"
    assert capture.call("PUT", "/changefeeds/one", {"replica_config": shown})["http"] == 200
    (feed,) = capture.capture.reactor.feeds.values()
    kafka = feed.config.sink.kafka_config
    assert (kafka.sasl_password, kafka.sasl_mechanism) == ("hidden", "SCRAM-SHA-256")


def test_a_feed_that_only_the_metadata_store_knows_is_not_written_over(
    capture: Running, pd: PdClient
) -> None:
    key = feed_key(pd.cluster_id, FeedId("default", "one"), "info")
    metadata = capture.capture.node.metadata
    metadata.transact((), (Put(key, b"another's"),))
    refused = capture.create("one")
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrChangeFeedAlreadyExists")
    kept = metadata.get(key)
    assert kept is not None
    assert kept.value == b"another's"


def test_another_bootstrap_host_of_the_same_cluster_is_no_other_topic(capture: Running, kafka: str) -> None:
    """Under another instance the progress in Kafka would not count, and rows would go out twice."""
    port = kafka.rpartition(":")[2]
    uri = "kafka://{}/t?protocol=open-protocol"
    assert capture.create("one", sink_uri=uri.format(kafka))["http"] == 200
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    (feed,) = capture.capture.reactor.feeds.values()
    first = feed.info.instance
    for hosts, same in (
        (f"{kafka},localhost:{port}", True),
        (f"localhost:{port}", True),
        ("127.0.0.1:1", False),
    ):
        changed = capture.call("PUT", "/changefeeds/one", {"sink_uri": uri.format(hosts)})
        assert (changed["http"], changed["sink_uri"]) == (200, uri.format(hosts))
        assert (feed.info.instance == first) is same, hosts
