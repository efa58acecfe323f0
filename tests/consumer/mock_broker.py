"""The broker that librdkafka has for its own tests, in this process: it starts in milliseconds.

It keeps messages with headers, and serves fetches. It knows no transactions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import cimpl

_TEXT_BYTES = 512


@contextmanager
def mock_broker(topic: str) -> Iterator[str]:
    """Its address; it has one topic, with one partition."""
    library: Any = ctypes.CDLL(cimpl.__file__)
    pointer = ctypes.c_void_p
    for name, returned, arguments in (
        ("conf_new", pointer, ()),
        ("new", pointer, (ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t)),
        ("destroy", None, (pointer,)),
        ("mock_cluster_new", pointer, (pointer, ctypes.c_int)),
        ("mock_cluster_bootstraps", ctypes.c_char_p, (pointer,)),
        ("mock_topic_create", ctypes.c_int, (pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)),
        ("mock_cluster_destroy", None, (pointer,)),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = returned, arguments
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    owner = library.rd_kafka_new(0, library.rd_kafka_conf_new(), text, _TEXT_BYTES)
    assert owner is not None, text.value
    cluster = library.rd_kafka_mock_cluster_new(owner, 1)
    try:
        assert library.rd_kafka_mock_topic_create(cluster, topic.encode(), 1, 1) == 0
        yield library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(owner)
