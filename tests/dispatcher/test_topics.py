"""Topics are named as TiCDC names them: every recorded expression, rule and DDL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden_folder import count, lines
from tests.mounter.jobs import DDL_CASES, finished
from tidegate.codec.registry import codec_of, codec_options
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.router import Router
from tidegate.dispatcher.topics import NAME_MAX, topic_name
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.mounter.schema_store import SchemaStore

DEFAULT = "default-topic"
NO_SUCH_TOPICS = (".", "..")
"""TiCDC takes these expressions and fails at its first message: Kafka has no such topics."""


def router(expression: str, protocol: str = "open-protocol") -> Router:
    by_subject = codec_of(codec_options({"protocol": protocol})).schemas is not None
    return Router([DispatchRule(topic=expression)], DEFAULT, names_subjects=by_subject)


def event(schema: str, table: str, *, old: tuple[str, str] = ("", ""), before: bool = False) -> DdlEvent:
    known: dict[str, Any] | None = {} if before else None
    names = schema, table, *(old if any(old) else (schema, table))
    return DdlEvent(1, 0, 1, 2, 3, "", *names, 1, known, None, (), ())


@pytest.mark.golden
def test_recorded_expressions_name_the_recorded_topics_or_are_refused() -> None:
    for record in lines("partitions/topics"):
        if record["kind"] != "topic" or record["scheme"] != "kafka":
            continue
        expression, protocol = record["expression"], record["protocol"]
        if "error" in record or expression in NO_SUCH_TOPICS:
            with pytest.raises(InvalidInput) as refused:
                router(expression, protocol)
            if "error" in record:
                assert refused.value.what == record["error"].split(" %!")[0].rstrip()
            assert refused.value.where
            assert refused.value.why
            assert refused.value.fix
            count("partitions", f"topic expressions refused, {protocol}")
            continue
        rules = router(expression, protocol)
        for one in record["topics"]:
            assert rules.topic_of(one["schema"], one["table"]) == one["topic"], (expression, one)
        count("partitions", f"topics of tables, {protocol}", len(record["topics"]))


@pytest.mark.golden
def test_the_first_matching_recorded_rule_names_the_topic() -> None:
    kinds = {"TsDispatcher": "ts", "TableDispatcher": "table", "IndexValueDispatcher": "index-value"}
    for record in lines("partitions/topics"):
        if record["kind"] != "rules":
            continue
        rules = Router(
            [
                DispatchRule(tuple(r["matcher"]), r["partition"] or "default", topic=r["topic"])
                for r in record["rules"]
            ],
            DEFAULT,
            case_sensitive=record["case_sensitive"],
        )
        for one in record["topics"]:
            name = one["schema"], one["table"]
            assert rules.topic_of(*name) == one["topic"], name
            assert rules.rule_of(*name).partition == kinds.get(one["dispatcher"].split(".")[-1], "default")
        count("partitions", "topics by rules", len(record["topics"]))


@pytest.mark.golden
def test_a_ddl_goes_to_the_recorded_topic() -> None:
    """That of its table, of the old one when it is renamed, the default one when it is about a schema."""
    rules = router("{schema}_{table}")
    recorded = {
        (r["case"], r["job_id"], r["event_index"]): r
        for r in lines("partitions/topics")
        if r["kind"] == "ddl_topic"
    }
    for case in DDL_CASES:
        store = SchemaStore()
        for job, _ in finished(case):
            for emitted in store.apply(job).emitted:
                wanted = recorded.get((case, job.id, emitted.event.seq))
                if wanted is not None:
                    assert rules.topic_of_ddl(emitted.event) == wanted["topic"], wanted
                    count("partitions", "topics of DDL")


def test_a_name_is_cut_at_kafkas_limit_and_not_looked_at_again() -> None:
    assert topic_name("{schema}_{table}", "s" * 200, "t" * 60) == "s" * 200 + "_" + "t" * 48
    assert topic_name("a{schema}", "{table}", "t") == "a_table_"
    assert topic_name("{schema}", ".", "t") == "_"
    assert topic_name("{schema}", "..", "t") == "__"
    assert topic_name("{schema}..", "", "t") == "__"


@pytest.mark.parametrize("expression", [".", "..", "x" * (NAME_MAX + 1)])
@pytest.mark.parametrize("protocol", ["open-protocol", "avro"])
def test_a_constant_that_kafka_has_no_topic_for_is_refused(expression: str, protocol: str) -> None:
    with pytest.raises(InvalidInput, match="ErrKafkaTopicExprInvalid"):
        router(expression, protocol)
    assert router("x" * NAME_MAX, protocol).topic_of("s", "t") == "x" * NAME_MAX


@pytest.mark.parametrize("protocol", ["simple", "debezium", "ticdc-mq", "canal-json"])
def test_other_protocols_than_avro_take_one_placeholder(protocol: str) -> None:
    assert router("{table}", protocol).topic_of("s", "t") == "t"
    assert router("a.{schema}", protocol).topic_of("s", "t") == "a.s"


def test_a_rename_without_the_old_definition_goes_to_exactly_one_topic() -> None:
    rules = router("{table}")
    assert rules.topic_of_ddl(event("s", "new", old=("s", "old"), before=True)) == "old"
    assert rules.topic_of_ddl(event("s", "new")) == "new"
    assert rules.topic_of_ddl(event("s", "")) == DEFAULT
    assert Router([], DEFAULT).topic_of_ddl(event("s", "t")) == DEFAULT
    assert not Router([DispatchRule(partition="ts")], DEFAULT).has_topics
    assert rules.has_topics
