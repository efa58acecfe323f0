"""Updates of a changefeed that are refused, and the protection of a name that is taken."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work
from tests.small_tables import ID, SmallTables, number
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.config.values import REDACTED
from tidegate.control.metadata import (
    FeedId,
    FeedStatus,
    GuardedWrites,
    Put,
    WriteResult,
    feed_key,
)
from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue import stripes
from tidegate.server.changefeeds.updates import FIXED
from tidegate.server.metadata.sqlite import SqliteMetadata
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration

__all__ = ["bank", "capture"]


def test_where_a_feed_begins_and_which_keys_it_follows_cannot_be_updated(
    bank: BankWorkload, capture: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert f"]{word} cannot be changed" in refused["error_msg"]
        assert "create another changefeed" in refused["error_msg"]
    assert capture.call("PUT", "/changefeeds/keys", {"replica_config": made["keys"]["config"]})["http"] == 200
    # A setting chosen at create stays if a later configuration leaves it out.
    assert made["tables"]["config"]["tidegate"]["ids_per_stripe"] == 1
    assert capture.call("PUT", "/changefeeds/tables", {"replica_config": {}})["http"] == 200
    assert capture.feed("tables")["config"]["tidegate"]["ids_per_stripe"] == 1
    # If the tables need too many spans by now, it is chosen again, unless the update sets it.
    for bound in ("SPANS_MAX", "TABLES_APART", "SPARSE_APART"):
        monkeypatch.setattr(stripes, bound, 0)
    for sent, kept in (({}, 2), ({"tidegate": {"ids_per_stripe": 1}}, 1)):
        assert capture.call("PUT", "/changefeeds/tables", {"replica_config": sent})["http"] == 200
        assert capture.feed("tables")["config"]["tidegate"]["ids_per_stripe"] == kept
    wider = {"replica_config": {"tidegate": {"ids_per_stripe": 64}}}
    assert capture.call("PUT", "/changefeeds/tables", wider)["http"] == 200
    assert capture.feed("tables")["config"]["tidegate"]["ids_per_stripe"] == 64


def test_secrets_that_were_shown_redacted_and_sent_back_stay_what_they_are(capture: Running) -> None:
    secret = {"sasl_user": "u", "sasl_password": "hidden", "sasl_mechanism": "PLAIN"}
    made = capture.create("one", replica_config={"sink": {"kafka_config": secret}})
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    shown = made["config"]
    assert shown["sink"]["kafka_config"]["sasl_password"] == REDACTED
    shown["sink"]["kafka_config"]["sasl_mechanism"] = "SCRAM-SHA-256"
    assert capture.call("PUT", "/changefeeds/one", {"replica_config": shown})["http"] == 200
    (feed,) = capture.capture.reactor.feeds.values()
    kafka = feed.record.config.sink.kafka_config
    assert (kafka.sasl_password, kafka.sasl_mechanism) == ("hidden", "SCRAM-SHA-256")


def test_a_password_that_is_stored_goes_nowhere_else_unasked(capture: Running) -> None:
    secret = {"sasl_user": "u", "sasl_password": "hidden", "sasl_mechanism": "PLAIN", "enable_tls": True}
    made = capture.create("one", replica_config={"sink": {"kafka_config": secret}})
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    elsewhere = made["sink_uri"].replace("127.0.0.1:1/", "127.0.0.2:1/")
    plain = {"sink": {"kafka_config": {**made["config"]["sink"]["kafka_config"], "enable_tls": False}}}
    for body, words in (
        ({"sink_uri": elsewhere}, "the hosts of the sink URI would change"),
        ({"sink_uri": elsewhere, "replica_config": made["config"]}, "the hosts of the sink URI would change"),
        ({"replica_config": made["config"] | plain}, "enable_tls would change"),
    ):
        refused = capture.call("PUT", "/changefeeds/one", body)
        assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
        assert words in refused["error_msg"]
        assert "give sasl-password again" in refused["error_msg"]
    again = capture.call("PUT", "/changefeeds/one", {"sink_uri": f"{elsewhere}&sasl-password=hidden"})
    assert again["http"] == 200, again
    assert "hidden" not in json.dumps(again)


def test_what_the_command_says_of_an_update_holds_no_password(capture: Running, tmp_path: Path) -> None:
    secret = {"sasl_user": "u", "sasl_password": "old, secret", "sasl_mechanism": "PLAIN"}
    made = capture.create("one", replica_config={"sink": {"kafka_config": secret}})
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    config = tmp_path / "feed.toml"
    config.write_text("[sink.kafka-config]\nsasl-password = 'new; secret'\n")
    uri = made["sink_uri"] + "&sasl-password=new%3B%20secret"
    command = ["changefeed", "update", "-c", "one", "--server", capture.address, "--no-confirm"]
    done = CliRunner().invoke(command_line, [*command, "--config", str(config), "--sink-uri", uri])
    assert done.exit_code == 0, done.output
    assert "sasl-password" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("place", "method", "path"),
    [
        ("tidegate.api.changefeeds.check_new", "POST", "/changefeeds"),
        ("tidegate.api.changefeeds.merge_config", "POST", "/verify_table"),
        ("tidegate.server.changefeeds.updates.check_new", "PUT", "/changefeeds/one"),
        ("tidegate.server.changefeeds.new_feed.split_tables", "POST", "/get_all_tables"),
    ],
)
def test_others_are_answered_while_a_request_is_checked(
    capture: Running, monkeypatch: pytest.MonkeyPatch, place: str, method: str, path: str
) -> None:
    """However long that takes: here it waits for the others."""
    made = capture.create("one")
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    checking, answered = threading.Event(), threading.Event()
    module, _, name = place.rpartition(".")
    check = getattr(importlib.import_module(module), name)

    def slowly(*arguments: Any) -> Any:
        checking.set()
        assert answered.wait(120)
        return check(*arguments)

    monkeypatch.setattr(place, slowly)
    body = {"changefeed_id": "two", "sink_uri": made["sink_uri"], "replica_config": made["config"]}
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(capture.call(method, path, body)))
    asking.start()
    assert checking.wait(120)
    assert capture.call("GET", "/status")["http"] == 200
    answered.set()
    asking.join(120)
    assert [answer["http"] for answer in answers] == [200]


def test_a_cluster_without_tidb_is_refused_unless_it_is_our_own(
    capture: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keyspaces TiDB's tables lie elsewhere: a feed of tables would advance and deliver nothing."""

    def is_real(pd: PdClient) -> None:
        raise InvalidInput("the upstream does not offer Info")

    monkeypatch.setattr(PdClient, "upstream_info", is_real)
    refused = capture.create("one")
    assert refused["http"] == 400
    assert "upstream holds no tables of TiDB" in refused["error_msg"]
    assert "keyspaces" in refused["error_msg"]
    assert capture.create("keys", replica_config={"tidegate": {"kv_mode": "txnkv"}})["http"] == 200
    monkeypatch.undo()
    assert capture.create("one")["http"] == 200


@pytest.fixture
def private() -> Iterator[None]:
    """As `tidegate server` sets it for itself and its children."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def open_to_others(paths: Iterable[Path]) -> list[Path]:
    """Those that others may read or write. A capture that runs removes some while they are looked at."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            if path.lstat().st_mode & 0o077:
                found.append(path)
    return found


def test_nobody_else_reads_what_a_capture_keeps(private: None, capture: Running, pd: PdClient) -> None:
    """Every file, folder and socket, of the puller too."""
    assert capture.create("one")["http"] == 200
    capture.wait_checkpoint("one", pd.tso())
    kept = [capture.data_dir, capture.capture.node.paths.socket, *capture.data_dir.rglob("*")]
    assert {"lock", "metadata.db", "catalogue"} <= {path.name for path in kept}
    assert open_to_others(kept) == []


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
    first = feed.record.info.instance
    for hosts, same in (
        (f"{kafka},localhost:{port}", True),
        (f"localhost:{port}", True),
        ("127.0.0.1:1", False),
    ):
        changed = capture.call("PUT", "/changefeeds/one", {"sink_uri": uri.format(hosts)})
        assert (changed["http"], changed["sink_uri"]) == (200, uri.format(hosts))
        assert (feed.record.info.instance == first) is same, hosts


def stored(running: Running, name: str) -> FeedStatus:
    node = running.capture.node
    value = node.metadata.get(feed_key(node.cluster, FeedId("default", name), "status"))
    assert value is not None
    return FeedStatus.from_bytes(value.value)


def test_what_a_feed_follows_by_an_update_begins_above_all_that_was_sent(
    upstream: EmbeddedUpstream, bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    """Also if the checkpoint that is stored is from long before, as it may be after a crash."""
    start_ts = pd.tso()
    capture.create("one", replica_config={"filter": {"rules": ["bank.accounts"]}}, start_ts=start_ts)
    work(bank, 100)
    written = pd.tso()
    # The stand-in asks its records under other rules for nothing: all its rows must be below a Resolved.
    wait_for(
        lambda: any(line.get("resolved", 0) >= written for line in capture.lines("one")),
        "Resolved of all rows",
    )
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    status = max(line["resolved"] for line in capture.lines("one") if "resolved" in line)
    before = stored(capture, "one")
    assert capture.feed("one")["checkpoint_ts"] == before.checkpoint_ts >= status
    capture.stop()

    metadata = SqliteMetadata(capture.data_dir / "metadata.db")
    (key,) = (kv.key for kv in metadata.under("/tidegate/") if kv.key.endswith("/changefeed/status/one"))
    assert metadata.transact((), (Put(key, replace(before, checkpoint_ts=start_ts).to_bytes()),)).succeeded
    metadata.close()
    again = Running(upstream.pd_addr, capture.data_dir, capture.out)
    try:
        assert again.feed("one")["checkpoint_ts"] == start_ts
        rules = {"filter": {"rules": ["bank.*"]}}
        assert again.call("PUT", "/changefeeds/one", {"replica_config": rules})["http"] == 200
        assert again.call("POST", "/changefeeds/one/resume")["http"] == 200
        work(bank, 100)
        again.wait_checkpoint("one", pd.tso())
        lines = again.lines("one")
        check_order(lines)
        rows = [line for line in lines if "row" in line]
        assert {line["table"] for line in rows if line["row"] <= status} == {"bank.accounts"}
        assert len({line["table"] for line in rows}) > 1
        assert stored(again, "one").settings not in ("", before.settings)
    finally:
        again.stop()


def test_rows_of_a_table_without_ddl_wait_until_its_arrival_is_stored(
    capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other rules the feed would otherwise begin below, and send older rows of the table after them."""
    shop = SmallTables(pd, "shop", {"orders": [ID, number("total")]})
    quiet = {"matcher": ["shop.*"], "ignore_event": ["create table"]}
    made = capture.create("one", replica_config={"filter": {"event_filters": [quiet]}})
    assert made["http"] == 200
    capture.wait_checkpoint("one", pd.tso())
    metadata, proceed = capture.capture.node.metadata, threading.Event()
    transact_all = metadata.transact_all

    def held(asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        if any("/changefeed/status/" in write.key for one in asked for write in one.writes):
            assert proceed.wait(120)
        return transact_all(asked)

    monkeypatch.setattr(metadata, "transact_all", held)
    try:
        ts = shop.ddl(lambda tables: tables.create_table("late", "CREATE TABLE late", [ID], ["id"]))
        shop.put("late", {1: (1,)})
        running = capture.capture.reactor.feeds[FeedId("default", "one")].replication
        wait_for(lambda: running.owner is not None and running.owner.ranges.durable >= ts, "the DDL")
        threading.Event().wait(0.5)
        assert running.owner is not None
        assert running.owner.barrier.next is not None, "rows above the DDL may be sent"
        assert not [line for line in capture.lines("one") if line.get("table") == "shop.late"]
    finally:
        proceed.set()
    wait_for(lambda: [line for line in capture.lines("one") if line.get("table") == "shop.late"], "the row")
    assert not [line for line in capture.lines("one") if "ddl" in line]
    assert stored(capture, "one").checkpoint_ts >= ts - 1


def test_a_feed_stopped_as_it_reached_its_target_continues_to_a_later_one(
    capture: Running, bank: BankWorkload
) -> None:
    """It had nothing more to do when it was paused, which says nothing of what it has to do now."""
    capture.create("one")
    work(bank, 20)
    last = capture.capture.pd.tso()
    wait_for(lambda: capture.feed("one")["checkpoint_ts"] >= last, "it delivers")
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    capture.capture.reactor.feeds[FeedId("default", "one")].replication._effects.is_target_reached = True
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    work(bank, 20)
    last = capture.capture.pd.tso()
    wait_for(
        lambda: capture.feed("one")["checkpoint_ts"] >= last or _state(capture) == "finished",
        "it to continue",
    )
    assert _state(capture) == "normal"


def _state(capture: Running) -> str:
    found: str = capture.feed("one")["state"]
    return found
