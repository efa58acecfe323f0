import json
from pathlib import Path

import pytest

from tidegate.codec.registry import canonical
from tidegate.config.reading import config_from_json, load_config, merge_config
from tidegate.config.settings import KafkaConfig
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.config.values import REDACTED
from tidegate.errors import InvalidInput

PLAIN = "kafka://127.0.0.1:9092/topic?protocol=open-protocol"


def refused(uri: str, data: dict[str, object] | None = None) -> str:
    with pytest.raises(InvalidInput) as error:
        canonical(merge_config(data or {}, parse_sink_uri(uri)))
    return error.value.render()


def test_a_uri_is_taken_apart() -> None:
    uri = parse_sink_uri("kafka://a:9092,b:9093,c/my.topic?protocol=canal-json&max-batch-size=3")
    assert uri.hosts == ("a:9092", "b:9093", "c:9092")
    assert (uri.topic, uri.option("max-batch-size")) == ("my.topic", "3")
    assert uri.bootstrap == "a:9092,b:9093,c:9092"


def test_uri_values_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "feed.toml"
    path.write_text(
        """
        case-sensitive = true
        changefeed-error-stuck-duration = "1h30m"
        [filter]
        rules = ["bank.*", "!bank.tmp"]
        [sink]
        protocol = "canal-json"
        dispatchers = [
          {matcher = ["bank.*"], dispatcher = "ts"}, {matcher = ["*.*"], partition = "index-value"},
        ]
        [sink.kafka-config]
        partition-num = 7
        [sink.kafka-config.codec-config]
        enable-tidb-extension = true
        """
    )
    config = load_config(path, parse_sink_uri(PLAIN + "&partition-num=3&dial-timeout=1500ms"))
    assert config.sink.protocol == "open-protocol"
    assert config.sink.kafka_config.partition_num == 3
    assert config.sink.kafka_config.dial_timeout == 1.5
    assert config.sink.kafka_config.codec_config.enable_tidb_extension
    assert [rule.partition for rule in config.sink.dispatchers] == ["ts", "index-value"]
    assert (config.case_sensitive, config.error_stuck_s) == (True, 5400.0)


def test_json_gives_the_same_settings_back() -> None:
    config = load_config(None, parse_sink_uri(PLAIN + "&sasl-user=u&sasl-password=p%26q"))
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_secrets_are_shown_nowhere() -> None:
    uri = parse_sink_uri(PLAIN + "&sasl-user=u&sasl-password=hidden%26me")
    config = load_config(None, uri)
    assert "hidden" not in str(uri)
    assert "hidden" not in json.dumps(config.to_json(redact=True))
    assert REDACTED in uri.render()
    assert parse_sink_uri(uri.render(redact=False)) == uri


def test_a_user_without_mechanism_means_plain() -> None:
    config = load_config(None, parse_sink_uri(PLAIN + "&sasl-user=u"))
    assert config.sink.kafka_config.sasl_mechanism == "PLAIN"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("kafk://a/b", "did you mean 'kafka'?"),
        ("mysql://a/b", "not supported yet"),
        ("kafka://a/b?protcol=x", "did you mean 'protocol'?"),
        ("kafka://a/b?protocol=open-protocl", "did you mean 'open-protocol'?"),
        ("kafka://a/b?protocol=craft", "'craft' is not supported"),
        ("kafka://a/b?protocol=avro", "schema-registry=http"),
        ("kafka://a/b?protocol=avro&schema-registry=u%3Apw%40host", "scheme http or https"),
        (
            "kafka://a/b?protocol=avro&schema-registry=http%3A%2F%2Fx&force-replicate=true",
            "there is no option",
        ),
        (
            "kafka://a/b?protocol=avro&schema-registry=http%3A%2F%2Fu%3Apw%40h&avro-decimal-handling-mode=x",
            "precise or string",
        ),
        ("kafka://a/b", "needs a protocol"),
        ("kafka:///b?protocol=open", "names no broker"),
        ("kafka://a:9x/b?protocol=open", "not a broker address"),
        ("kafka://a/?protocol=open", "not a Kafka topic name"),
        ("kafka://a/b%20c?protocol=open", "not a Kafka topic name"),
        ("kafka://a/b?protocol=open&max-batch-size=x", "'max-batch-size' must be int"),
        ("kafka://a/b?protocol=open&max-batch-size=0", "at least 1"),
        ("kafka://a/b?protocol=open&enable-tls=maybe", "'enable-tls' must be bool"),
        ("kafka://a/b?protocol=open&required-acks=1", "required-acks = 1 would lose rows"),
        ("kafka://a/b?protocol=open&safe-mode=true", "not supported here yet"),
        ("kafka://u:pw@a/b?protocol=open", "no user before the host"),
    ],
)
def test_a_wrong_uri_is_refused_with_what_is_right(uri: str, words: str) -> None:
    text = refused(uri)
    assert words in text
    assert "pw" not in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sink": {"protocl": "x"}}, "did you mean 'protocol'?"),
        ({"sink": {"dispatchers": [{"matcher": ["a.b"], "partition": "tss"}]}}, "did you mean 'ts'?"),
        ({"filter": {"rules": "*.*"}}, "'filter.rules' must be list"),
        ({"case-sensitive": "yes"}, "'case-sensitive' must be bool"),
        ({"enable-sync-point": True}, "'enable-sync-point' is TiCDC's"),
        ({"scheduler": {"region-threshold": 0}}, "scheduler.region-threshold"),
        ({"scheduler": {"region-treshold": 9}}, "did you mean 'region-threshold'?"),
        ({"consistent": {"level": "eventual"}}, "'consistent.level'"),
        ({"tidegate": {"retention": "10 m"}}, "not a duration"),
        ({"tidegate": {"flavour": "newer"}}, "did you mean 'new'?"),
        ({"tidegate": {"ids-per-stripe": -1}}, "at least 0"),
        ({"tidegate": {"ids-per-stripe": 4097}}, "4096 table ids at most"),
        ({"tidegate": {"ids-per-stripe": 64, "kv-mode": "txnkv", "key-prefix": "6b"}}, "follows no tables"),
        ({"sink": 3}, "'sink' must be a table"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_right(data: dict[str, object], words: str) -> None:
    assert words in refused(PLAIN, data)


def test_filters_and_column_selectors_are_read_as_ticdc_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "feed.toml"
    path.write_text(
        """
        force-replicate = true
        [filter]
        rules = ["bank.*"]
        ignore-txn-start-ts = [439432134171947040]
        [[filter.event-filters]]
        matcher = ["bank.accounts"]
        ignore-event = ["drop table", "delete"]
        ignore-sql = ["^drop"]
        ignore-insert-value-expr = "balance < 0"
        [[filter.event-filters]]
        matcher = ["bank.orders"]
        ignore-update-only-columns = ["seen_at"]
        [[sink.column-selectors]]
        matcher = ["bank.*"]
        columns = ["*", "!note"]
        """
    )
    config = load_config(path, parse_sink_uri(PLAIN))
    first, second = config.filter.event_filters
    assert (first.matcher, first.ignore_event) == (("bank.accounts",), ("drop table", "delete"))
    assert (first.ignore_sql, first.ignore_insert_value_expr) == (("^drop",), "balance < 0")
    assert second.ignore_update_only_columns == ("seen_at",)
    assert config.filter.ignore_txn_start_ts == (439432134171947040,)
    assert config.sink.column_selectors[0].columns == ("*", "!note")
    assert config.force_replicate
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"force-replicate": True, "sink": {"delete-only-output-handle-key-columns": True}},
            "cannot be used with delete-only-output-handle-key-columns = true",
        ),
        (
            {"force-replicate": True, "sink": {"open": {"output-old-value": False}}},
            "cannot be used with [sink.open] output-old-value = false",
        ),
        (
            {
                "sink": {"column-selectors": [{"matcher": ["*.*"], "columns": ["*"]}]},
                "integrity": {"integrity-check-level": "correctness"},
            },
            "column selectors and integrity checks exclude each other",
        ),
        ({"filter": {"event-filters": [{"ignore-events": ["insert"]}]}}, "did you mean 'ignore-event'?"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(data: dict[str, object], words: str) -> None:
    assert words in refused(PLAIN, data)


def test_what_ticdc_sends_by_default_changes_nothing() -> None:
    sent = {
        "memory_quota": 1073741824, "case_sensitive": False, "force_replicate": False,
        "check_gc_safe_point": True, "enable_sync_point": False, "sync_point_interval": 600000000000,
        "bdr_mode": False, "filter": {"rules": ["*.*"]}, "mounter": {"worker_num": 16},
        "sink": {
            "csv": {"delimiter": ","}, "encoder_concurrency": 32, "terminator": "\r\n",
            "send-all-bootstrap-at-start": False, "debezium": {"output_old_value": True},
            "open": {"output_old_value": True}, "advance_timeout": 150,
        },
        "consistent": {"level": "none", "max_log_size": 64},
        "scheduler": {"enable_table_across_nodes": False, "region_threshold": 100000},
        "integrity": {"integrity_check_level": "none", "corruption_handle_level": "warn"},
        "changefeed_error_stuck_duration": 1800000000000,
        "synced_status": {"synced_check_interval": 300},
    }  # fmt: skip
    uri = parse_sink_uri(PLAIN)
    assert merge_config(sent, uri) == load_config(None, uri)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    uri = parse_sink_uri(PLAIN)
    with pytest.raises(InvalidInput, match="the changefeed configuration cannot be read"):
        load_config(tmp_path / "absent.toml", uri)
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InvalidInput, match="is not TOML"):
        load_config(tmp_path / "bad.toml", uri)


def test_tls_comes_with_the_scheme() -> None:
    uri = parse_sink_uri("kafka+ssl://a/b?protocol=open")
    assert load_config(None, uri).sink.kafka_config.enable_tls
    assert not KafkaConfig().enable_tls
