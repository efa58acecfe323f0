"""The client of schema registries, against a real one; and what it says when there is none."""

from __future__ import annotations

import pickle
import socket
import uuid

import pytest

from tests.fixtures.registry import Registry
from tidegate.config.checks import check_registry_url
from tidegate.errors import InvalidInput, Retryable
from tidegate.schema_registry import ATTEMPTS, HttpRegistry

SCHEMA = '{"type":"record","name":"t","namespace":"default.s","fields":[{"name":"a","type":"int"}]}'
OTHER = '{"type":"record","name":"t","namespace":"default.s","fields":[{"name":"b","type":"string"}]}'


@pytest.mark.integration
def test_a_schema_is_registered_once_and_found_by_its_id(schema_registry: str) -> None:
    registry = HttpRegistry(schema_registry + "/")
    registry.check()
    subject = f"tøpic/{uuid.uuid4().hex}-value"
    first, second = registry.register(subject, SCHEMA), registry.register(subject, OTHER)
    assert first != second
    assert registry.register(subject, SCHEMA) == first
    for number, schema in ((first, SCHEMA), (second, OTHER)):
        assert pickle.loads(pickle.dumps(registry)).look_up(number) == schema
    assert registry.look_up(2_000_000_000) is None


@pytest.mark.integration
def test_what_the_registry_refuses_is_no_outage(schema_registry: str) -> None:
    with pytest.raises(InvalidInput, match="refuses a schema"):
        HttpRegistry(schema_registry).register("s", "{")
    with pytest.raises(InvalidInput, match="base of a registry"):
        HttpRegistry(schema_registry + "/nothing/here").look_up(1)


@pytest.mark.integration
def test_an_outage_is_retried_named_and_passes(registry_service: Registry) -> None:
    pauses: list[float] = []
    secret = registry_service.url.replace("://", "://me:s3cret%40x@")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == ATTEMPTS:  # in the second call
            registry_service.start()

    registry = HttpRegistry(secret, sleep)
    registry_service.kill()
    with pytest.raises(Retryable) as caught:
        registry.register("s-value", SCHEMA)
    assert len(pauses) == ATTEMPTS - 1
    assert registry_service.url in caught.value.render()
    for text in (caught.value.render(), repr(registry), str(caught.value.__context__)):
        assert "s3cret" not in text
    assert registry.register("s-value", SCHEMA) > 0


def test_a_port_where_nobody_listens_is_an_outage() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        registry = HttpRegistry(f"http://127.0.0.1:{taken.getsockname()[1]}", lambda seconds: None)
        with pytest.raises(Retryable, match="does not answer"):
            registry.check()


@pytest.mark.parametrize(
    "url", ["", "localhost:8081", "ftp://a", "http://", "http://a:b", "http://u:pw@a?x=1"]
)
def test_an_address_that_cannot_be_one_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_registry_url(url)
    assert "pw" not in caught.value.render()
