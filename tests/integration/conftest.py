"""The capture that whole-feed tests share: started by the first one, stopped after the last one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import Namespace, SharedCapture, reserve_ids, start_cluster

SHARED = pytest.StashKey[SharedCapture]()
FAILED = pytest.StashKey[bool]()
FIXTURE = "share"
"""The fixture by which a test says that it shares the capture."""


@pytest.fixture(scope="session")
def shared_capture(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SharedCapture]:
    """This process's; not started yet."""
    running = SharedCapture(lambda: start_cluster(tmp_path_factory.mktemp("shared")), reserve_ids)
    pytestconfig.stash[SHARED] = running
    yield running
    running.stop()


@pytest.fixture
def share(
    shared_capture: SharedCapture, tmp_path: Path, kafka: str, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Namespace]]:
    """A function that gives the test a namespace with a schema of its own."""
    given: list[Namespace] = []

    def make(schema: str, protocol: str = "open-protocol", options: str = "") -> Namespace:
        given.append(shared_capture.namespace(tmp_path, kafka, schema, protocol, options))
        return given[-1]

    yield make
    shared_capture.take_back(given, failed=request.node.stash.get(FAILED, False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the capture's logs."""
    report = yield
    if report.failed and shares(item):
        item.stash[FAILED] = True
        if running := item.config.stash.get(SHARED, None):
            report.sections.extend(running.logs())
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """An idle capture costs memory. Files with such tests come first and one after another, so that none
    follows here when the next file has none."""
    running = item.config.stash.get(SHARED, None)
    if running is not None and not sharing_follows(nextitem):
        running.stop()


def shares(item: pytest.Item) -> bool:
    """Whether a test uses the shared capture."""
    return FIXTURE in getattr(item, "fixturenames", ())


def sharing_follows(nextitem: pytest.Item | None) -> bool:
    """Whether the next test, or a later one of its file, uses the shared capture."""
    if nextitem is None:
        return False
    items = nextitem.session.items
    later = items[items.index(nextitem) :]
    return any(shares(item) for item in later if item.path == nextitem.path)
