"""Warnings of a statement that writes: about a value they stop the consumer, about words they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.consumer.mysql.lanes import written
from tidegate.consumer.mysql.session import Connection
from tidegate.errors import Fatal

WORDS = ("Warning", 1287, "'BINARY expr' is deprecated")
VALUE = ("Warning", 1265, "Data truncated for column 'c' at row 1")


class Warned:
    """A connection whose statements give these warnings."""

    def __init__(self, count: int, *listed: tuple[Any, ...]) -> None:
        self._result, self._listed = SimpleNamespace(warning_count=count), listed

    def query(self, text: bytes) -> int:
        return len(text)

    def show_warnings(self) -> tuple[tuple[Any, ...], ...]:
        return self._listed


def run(count: int, *listed: tuple[Any, ...]) -> int:
    return written(cast("Connection", Warned(count, *listed)), b"INSERT")


def test_a_warning_about_words_is_passed_over() -> None:
    assert run(0) == run(2, WORDS, WORDS) == len("INSERT")


def test_a_warning_about_a_value_or_one_that_is_not_listed_stops_it() -> None:
    with pytest.raises(Fatal, match="truncated"):
        run(2, WORDS, VALUE)
    with pytest.raises(Fatal, match="3 warnings, of which the server lists 2"):
        run(3, WORDS, WORDS)
    with pytest.raises(Fatal, match="max_error_count"):
        run(1)
