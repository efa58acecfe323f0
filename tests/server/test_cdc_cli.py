"""The HTTP API as TiCDC's own `cdc cli` drives it: the bodies it sends, the JSON types it parses.

Its client is strict: a number where it expects a string ends the command. Types are those of tiflow's
`cdc/api/v2/model.go`.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from typing import Any, ClassVar

import httpx
import pytest
from tests.server.test_capture import Running, bank, capture, work
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.config.fields import duration_text
from tidegate.kvclient.pd import PdClient
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]

PD_FIELDS: dict[str, Any] = {"ca_path": "", "cert_path": "", "key_path": ""}
REPLICA_CONFIG: dict[str, Any] = {
    "memory_quota": 1073741824,
    "case_sensitive": False,
    "force_replicate": False,
    "ignore_ineligible_table": True,
    "check_gc_safe_point": True,
    "enable_sync_point": False,
    "enable_table_monitor": False,
    "bdr_mode": False,
    "sync_point_interval": 600000000000,
    "sync_point_retention": 86400000000000,
    "filter": {"rules": ["*.*"]},
    "mounter": {"worker_num": 16},
    "sink": {
        "csv": {
            "delimiter": ",", "quote": '"', "null": "\\N", "include_commit_ts": False,
            "binary_encoding_method": "base64", "output_old_value": False, "output_handle_key": False,
            "output_field_header": False,
        },
        "encoder_concurrency": 32,
        "terminator": "\r\n",
        "date_separator": "day",
        "enable_partition_separator": True,
        "enable_kafka_sink_v2": False,
        "only_output_updated_columns": False,
        "delete_only_output_handle_key_columns": False,
        "content_compatible": False,
        "advance_timeout": 150,
        "send_bootstrap_interval_in_sec": 120,
        "send_bootstrap_in_msg_count": 10000,
        "send_bootstrap_to_all_partition": True,
        "send-all-bootstrap-at-start": False,
        "debezium_disable_schema": False,
        "debezium": {"output_old_value": True},
        "open": {"output_old_value": True},
    },
    "consistent": {
        "level": "none", "max_log_size": 64, "flush_interval": 2000, "meta_flush_interval": 200,
        "encoding_worker_num": 16, "flush_worker_num": 8, "use_file_backend": False,
        "memory_usage": {"memory_quota_percentage": 50},
    },
    "scheduler": {"enable_table_across_nodes": False, "region_threshold": 100000, "write_key_threshold": 0},
    "integrity": {"integrity_check_level": "none", "corruption_handle_level": "warn"},
    "changefeed_error_stuck_duration": 1800000000000,
    "synced_status": {"synced_check_interval": 300, "checkpoint_interval": 15},
}  # fmt: skip
"""The configuration that the client sends with every `create` without a file."""

TS, STATE, TEXT, COUNT, FLAG = int, str, str, int, bool
TIME = "checkpoint time"
RFC3339 = "RFC 3339"
ERROR = {"time": RFC3339, "addr": TEXT, "code": TEXT, "message": TEXT}
INFO: dict[str, Any] = {
    "upstream_id": COUNT, "namespace": TEXT, "id": TEXT, "sink_uri": TEXT, "create_time": RFC3339,
    "start_ts": TS, "target_ts": TS, "admin_job_type": COUNT, "state": STATE, "creator_version": TEXT,
    "resolved_ts": TS,    "checkpoint_ts": TS, "checkpoint_time": TIME, "error?": ERROR,
    "config": {
        "case_sensitive": FLAG, "force_replicate": FLAG, "ignore_ineligible_table": FLAG,
        "check_gc_safe_point": FLAG, "changefeed_error_stuck_duration": COUNT,
        "filter": {"rules": [TEXT], "ignore_txn_start_ts": [TS]},
        "integrity": {"integrity_check_level": TEXT, "corruption_handle_level": TEXT},
        "synced_status": {"synced_check_interval": COUNT, "checkpoint_interval": COUNT},
        "sink": {
            "protocol": TEXT, "dispatchers": [dict], "column_selectors": [dict],
            "only_output_updated_columns": FLAG, "delete_only_output_handle_key_columns": FLAG,
            "content_compatible": FLAG, "open": {"output_old_value": FLAG},
            "debezium_disable_schema": FLAG, "debezium": {"output_old_value": FLAG},
            "kafka_config": {
                "partition_num": COUNT, "replication_factor": COUNT, "max_message_bytes": COUNT,
                "compression": TEXT, "kafka_client_id": TEXT, "auto_create_topic": FLAG,
                "dial_timeout": TEXT, "write_timeout": TEXT, "read_timeout": TEXT, "required_acks": COUNT,
                "enable_tls": FLAG, "ca": TEXT, "cert": TEXT, "key": TEXT, "insecure_skip_verify": FLAG,
                "sasl_user": TEXT, "sasl_password": TEXT, "sasl_mechanism": TEXT,
                "output_raw_change_event": FLAG,
                "codec_config": {"enable_tidb_extension": FLAG, "max_batch_size": COUNT},
            },
        },
    },
}  # fmt: skip
"""Name to type; `name?`: may be null or missing."""


def check(found: Any, wanted: Any, where: str = "") -> None:
    """Every wanted field is there and of the type the client parses it into."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        for name, kind in wanted.items():
            bare = name.rstrip("?")
            if name != bare and found.get(bare) is None:
                continue
            assert bare in found, f"{where}.{bare} is missing"
            check(found[bare], kind, f"{where}.{bare}")
    elif isinstance(wanted, list):
        assert isinstance(found, list), where
        for one in found:
            check(one, wanted[0], f"{where}[]")
    elif wanted is TIME:
        assert datetime.strptime(found, "%Y-%m-%d %H:%M:%S.%f"), where
        assert re.fullmatch(r".*\.\d{3}", found), where
    elif wanted is RFC3339:
        assert datetime.fromisoformat(found).tzinfo is not None, where
    else:
        assert type(found) is wanted, f"{where}: {found!r} is not {wanted.__name__}"


class Client:
    """Sends what `cdc cli` sends, its headers included."""

    HEADERS: ClassVar = {
        "Accept": "application/json",
        "X-client-version": "v8.5.0",
        "Authorization": "Basic Og==",
    }

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = httpx.request(
            method,
            f"http://{self._address}{path}",
            json=body,
            headers=self.HEADERS,
            timeout=120,
            trust_env=False,
            verify=False,
        )
        assert answer.status_code == status, answer.text
        return answer.json()


def held(upstream: EmbeddedUpstream, service: str) -> list[int]:
    services = upstream._safe_points.services(upstream.tso.present())
    return [each.safe_point for each in services if each.service_id.startswith(service)]


@pytest.fixture
def client(capture: Running) -> Client:
    return Client(capture.address)


@pytest.mark.integration
def test_every_command_of_the_client_finds_the_types_it_parses(
    upstream: EmbeddedUpstream, bank: BankWorkload, capture: Running, client: Client, pd: PdClient
) -> None:
    v2, feed = "/api/v2", "/api/v2/changefeeds/one"
    status = {
        "version": TEXT,
        "git_hash": TEXT,
        "id": TEXT,
        "cluster_id": TEXT,
        "pid": COUNT,
        "is_owner": FLAG,
    }
    check(client("GET", f"{v2}/status"), status | {"liveness": COUNT})
    # create
    tso = client("POST", f"{v2}/tso", {"id": 0, **PD_FIELDS})
    check(tso, {"timestamp": COUNT, "logic_time": COUNT})
    start_ts = tso["timestamp"] << 18 | tso["logic_time"]
    uri = "kafka://127.0.0.1:1/one?protocol=open-protocol"
    tables = client(
        "POST", f"{v2}/verify_table",
        {**PD_FIELDS, "replica_config": REPLICA_CONFIG, "start_ts": start_ts, "sink_uri": uri},
    )  # fmt: skip
    table = {"database_name": TEXT, "table_name": TEXT, "table_id": COUNT, "is_partition": FLAG}
    check(tables, {"ineligible_tables": [table], "eligible_tables": [table]})
    assert tables["eligible_tables"]
    assert tables["tidegate"] == {"weak_orders": [], "cut_tables": ""}
    by_ts = {"sink": {"dispatchers": [{"matcher": ["bank.*"], "partition": "ts"}]}}
    (weak,) = client(
        "POST", f"{v2}/verify_table", {"replica_config": by_ts, "start_ts": start_ts, "sink_uri": uri}
    )["tidegate"]["weak_orders"]  # fmt: skip
    assert (weak["dispatcher"], "bank.accounts" in weak["tables"], weak["more"]) == ("ts", True, 0)
    rules = [{"matcher": ["bank.accounts"], "topic": "{schema}-x"}, {"matcher": ["bank.*"], "topic": "one"}]
    (apart,) = client(
        "POST", f"{v2}/verify_table",
        {"replica_config": {"sink": {"dispatchers": rules}}, "start_ts": start_ts, "sink_uri": uri},
    )["tidegate"]["weak_orders"]  # fmt: skip
    assert (apart["dispatcher"], apart["tables"]) == ("default, topic {schema}-x", ["bank.accounts"])
    assert "in several topics" in apart["what"]
    pieces = {"scheduler": {"enable_table_across_nodes": True}}
    (in_pieces,) = client(
        "POST", f"{v2}/verify_table", {"replica_config": pieces, "start_ts": start_ts, "sink_uri": uri}
    )["tidegate"]["weak_orders"]  # fmt: skip
    assert "bank.accounts" in in_pieces["tables"]
    assert "delivered in pieces" in in_pieces["what"]
    wrong = {"sink": {"dispatchers": [{"matcher": ["bank.*"], "topic": "{table}_{schema}"}]}}
    refused = client(
        "POST", f"{v2}/changefeeds", {"changefeed_id": "wrong", "sink_uri": uri, "replica_config": wrong}, 400
    )
    assert refused["error_code"] == "CDC:ErrKafkaTopicExprInvalid"
    assert "{table}_{schema}" in refused["error_msg"]
    body = {
        "namespace": "default", "changefeed_id": "one", "start_ts": start_ts, "target_ts": 0, "sink_uri": uri,
        "replica_config": REPLICA_CONFIG, **PD_FIELDS,
    }  # fmt: skip
    made = client("POST", f"{v2}/changefeeds", body)
    check(made, INFO, "create")
    kafka = made["config"]["sink"]["kafka_config"]
    assert [kafka[name] for name in ("dial_timeout", "write_timeout", "read_timeout")] == ["10s"] * 3
    work(bank, 200)
    capture.wait_checkpoint("one", pd.tso())
    # list, query, statistics
    item = {
        "upstream_id": COUNT, "namespace": TEXT, "id": TEXT, "state": STATE, "checkpoint_tso": TS,
        "checkpoint_time": TIME, "error?": ERROR,
    }  # fmt: skip
    check(client("GET", f"{v2}/changefeeds?namespace=default&state=all"), {"total": COUNT, "items": [item]})
    shown = client("GET", f"{feed}?namespace=default")
    check(shown, INFO | {"task_status": [{"capture_id": TEXT, "table_ids": [COUNT]}]}, "query")
    check(client("GET", f"{feed}/meta_info?namespace=default"), INFO, "meta_info")
    synced = {
        "synced": FLAG,
        "sink_checkpoint_ts": TIME,
        "puller_resolved_ts": TIME,
        "now_ts": TIME,
        "info": TEXT,
    }
    check(client("GET", f"{feed}/synced?namespace=default"), synced | {"last_synced_ts": TIME})
    # capture list, processor list and query
    captures = client("GET", f"{v2}/captures")
    check(captures, {"items": [{"id": TEXT, "is_owner": FLAG, "address": TEXT, "cluster_id": TEXT}]})
    check(
        client("GET", f"{v2}/processors"),
        {"items": [{"namespace": TEXT, "changefeed_id": TEXT, "capture_id": TEXT}]},
    )
    one = client("GET", f"{v2}/processors/one/{captures['items'][0]['id']}?namespace=default")
    check(one, {"table_ids": [COUNT]})
    assert one["table_ids"] == shown["task_status"][0]["table_ids"] != []
    missing = client("GET", f"{v2}/processors/one/nobody?namespace=default", status=400)
    assert missing["error_code"] == "CDC:ErrCaptureNotExist"
    # pause, update as the client does (what it was shown, with its changes), resume
    assert client("POST", f"{feed}/pause?namespace=default") == {}
    config = shown["config"]
    config["sink"]["kafka_config"]["dial_timeout"] = "1m30s"
    body = {"namespace": "", "changefeed_id": "", "start_ts": 0, "target_ts": 0, "sink_uri": "", **PD_FIELDS}
    changed = client("PUT", f"{feed}?namespace=default", body | {"replica_config": config})
    check(changed, INFO, "update")
    assert changed["config"]["sink"]["kafka_config"]["dial_timeout"] == "1m30s"
    assert (
        client("POST", f"{feed}/resume?namespace=default", {**PD_FIELDS, "overwrite_checkpoint_ts": 0}) == {}
    )
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    # unsafe, log, owner
    stored = client("GET", f"{v2}/unsafe/metadata")
    check(stored, [{"key": TEXT, "value": TEXT}])
    assert any(entry["key"].endswith("/changefeed/info/one") for entry in stored)
    region = pd.scan_regions(b"", b"", 1)[0].id
    assert (
        client("POST", f"{v2}/unsafe/resolve_lock", {"region_id": region, "ts": pd.tso(), **PD_FIELDS}) == {}
    )
    refused = client("POST", f"{v2}/unsafe/resolve_lock", {"region_id": 1 << 40, "ts": 1}, status=400)
    assert "no region" in refused["error_msg"]
    service = f"tidegate-{pd.cluster_id}-"
    assert held(upstream, service)
    assert client("DELETE", f"{v2}/unsafe/service_gc_safepoint", {"id": 0, **PD_FIELDS}) == {}
    assert not held(upstream, service)
    before = client("GET", f"{v2}/status"), capture.capture.node.owner_rev
    assert client("POST", f"{v2}/owner/resign", status=202) == {}
    assert capture.capture.node.owner_rev > before[1]
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    (running,) = capture.capture.reactor.feeds.values()
    assert running.replication.shares._grant is not None
    assert running.replication.shares._grant.token[0] == capture.capture.node.owner_rev
    # remove: the last request must fail with a text that says so
    assert client("DELETE", f"{feed}?namespace=default") == {}
    gone = client("GET", f"{feed}?namespace=default", status=400)
    assert "ErrChangeFeedNotExists" in gone["error_msg"]


@pytest.mark.integration
def test_a_checkpoint_is_overwritten_at_a_resume(bank: BankWorkload, capture: Running, pd: PdClient) -> None:
    start_ts = pd.tso()
    capture.create("one", start_ts=start_ts)
    work(bank, 100)
    capture.wait_checkpoint("one", middle := pd.tso())
    work(bank, 100)
    capture.wait_checkpoint("one", end := pd.tso())
    first = {(line["row"], line["key"]) for line in capture.lines("one") if "row" in line}
    assert (
        capture.call("POST", "/changefeeds/one/resume", {"overwrite_checkpoint_ts": start_ts})["http"] == 400
    )
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    body = {"overwrite_checkpoint_ts": pd.tso() + (1 << 40)}
    refused = capture.call("POST", "/changefeeds/one/resume", body)
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert capture.feed("one")["state"] == "stopped"
    # Back: what came since then is sent again, and nothing of before.
    sent = len(capture.lines("one"))
    run = CliRunner().invoke(
        command_line,
        [
            "changefeed",
            "resume",
            "--server",
            capture.address,
            "-c",
            "one",
            "--overwrite-checkpoint-ts",
            str(middle),
        ],
    )
    assert run.exit_code == 0, run.output
    capture.wait_checkpoint("one", end)
    again = {(line["row"], line["key"]) for line in capture.lines("one")[sent:] if "row" in line}
    assert again == {row for row in first if row[0] > middle} != set()
    # Forward, to now: what came in between is left out.
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    work(bank, 60)
    sent, now = len(capture.lines("one")), pd.tso()
    run = CliRunner().invoke(
        command_line,
        [
            "changefeed",
            "resume",
            "--server",
            capture.address,
            "-c",
            "one",
            "--overwrite-checkpoint-ts",
            "now",
        ],
    )
    assert run.exit_code == 0, run.output
    work(bank, 60)
    capture.wait_checkpoint("one", pd.tso())
    rows = [line["row"] for line in capture.lines("one")[sent:] if "row" in line]
    assert rows
    assert min(rows) > now


@pytest.mark.integration
def test_unknown_routes_methods_and_levels_are_refused_in_json(capture: Running, client: Client) -> None:
    for method, path, status in (
        ("GET", "/api/v2/nothing", 404),
        ("GET", "/api/v1/changefeeds", 404),
        ("GET", "/", 404),
        ("DELETE", "/api/v2/captures", 405),
    ):
        refused = client(method, path, status=status)
        assert refused["error_code"] == "CDC:ErrAPINotFound"
        assert path in refused["error_msg"]
    before = logging.getLogger().level
    try:
        assert client("POST", "/api/v2/log", {"log_level": "debug"}) == {}
        assert logging.getLogger().level == logging.DEBUG
        assert (
            "not a log level" in client("POST", "/api/v2/log", {"log_level": "loud"}, status=400)["error_msg"]
        )
        assert logging.getLogger().level == logging.DEBUG
    finally:
        logging.getLogger().setLevel(before)


@pytest.mark.integration
def test_stored_secrets_are_not_shown(capture: Running, client: Client) -> None:
    secret = {"sasl_user": "u", "sasl_password": "hunter2", "sasl_mechanism": "PLAIN"}
    capture.create("one", replica_config={"sink": {"kafka_config": secret}, "ignore_ineligible_table": True})
    text = json.dumps(client("GET", "/api/v2/unsafe/metadata"))
    assert "/changefeed/info/one" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (10, "10s"),
        (90, "1m30s"),
        (3600, "1h0m0s"),
        (86400, "24h0m0s"),
        (1.5, "1.5s"),
        (60.01, "1m0.01s"),
        (0.25, "250ms"),
        (0.0000015, "1.5µs"),
        (3e-9, "3ns"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
