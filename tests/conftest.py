"""Plugins and options only: one plugin per resource."""

import pytest

pytest_plugins = [
    "tests.fixtures.golden",
    "tests.fixtures.kafka",
    "tests.fixtures.spark",
    "tests.fixtures.upstream",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=6, help="processes the kill test kills (default 6)")
    parser.addoption("--kill-seed", type=int, default=1, help="which ones, and when")
