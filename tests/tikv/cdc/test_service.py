"""The way a connection was opened decides what it can do."""

from __future__ import annotations

import pytest

from tidegate.errors import InvalidInput
from tidegate.tikv.cdc.service import Connection, parse_features, parse_version


def test_the_only_known_feature_is_stream_multiplexing() -> None:
    assert not parse_features("")
    assert parse_features(" stream-multiplexing ,")
    with pytest.raises(InvalidInput, match="time-travel"):
        parse_features("stream-multiplexing,time-travel")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.5.0", (8, 5, 0)),
        ("v4.0.8-alpha+x", (4, 0, 8)),
        ("", (0, 0, 0)),
        ("8.5", (0, 0, 0)),
        ("a.b.c", (0, 0, 0)),
    ],
)
def test_a_version_is_semantic_or_none(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


def test_only_the_first_version_of_a_connection_counts() -> None:
    connection = Connection(multiplexing=True)
    connection.set_client_version("4.0.8")
    connection.set_client_version("8.5.0")
    assert connection.batches_resolved_ts
    assert not connection.checks_cluster_id
    old = Connection(multiplexing=False)
    old.set_client_version("4.0.7")
    assert not old.batches_resolved_ts
