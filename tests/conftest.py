"""Plugins and options only: one plugin per resource."""

import faulthandler
import gc
import sys

import pytest
from hypothesis import HealthCheck, settings

from tidegate.program import starting

starting()

# A busy machine is no failure.
settings.register_profile("tidegate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidegate")

END_S = 120
"""For the process to end after the last test."""
NEW_OBJECTS = 10_000
"""Between two collections while tests run. A test that needs one collects itself."""

pytest_plugins = [
    "tests.fixtures.filler",
    "tests.fixtures.golden",
    "tests.fixtures.kafka",
    "tests.fixtures.etcd",
    "tests.fixtures.mariadb",
    "tests.fixtures.registry",
    "tests.fixtures.rewritten",
    "tests.fixtures.s3",
    "tests.fixtures.spark",
    "tests.fixtures.stuck_grpc",
    "tests.fixtures.upstream",
    "tests.fixtures.wall_clock",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--filler", action="store_true", help="the last process takes only pure tests")
    parser.addoption("--rewrite", action="store_true", help="write what scripts print now into them")
    parser.addoption("--kills", type=int, default=6, help="processes the kill test kills (default 6)")
    parser.addoption("--bank", type=int, default=6, help="processes the bank test kills (default 6)")
    parser.addoption("--every", type=int, default=10, help="compare each n-th snapshot of a log (default 10)")
    parser.addoption(
        "--hangs",
        type=int,
        default=0,
        help="processes the hang test stops, with the default patience (default 0)",
    )
    parser.addoption("--seeds", type=int, default=10, help="runs of the chaos test (default 10)")
    parser.addoption(
        "--feed-seeds", type=int, default=1, help="runs of the chaos test with feeds (default 1)"
    )
    parser.addoption("--first-seed", type=int, default=1, help="the seed of its first run (default 1)")
    parser.addoption("--chaos-seconds", type=float, default=1.2, help="trouble in one run (default 1.2 s)")
    parser.addoption("--isolation-seeds", type=int, default=100, help="isolation histories (default 100)")
    parser.addoption("--cuts", type=int, default=1, help="states a write leaves on a disk, times (default 1)")
    parser.addoption("--disk-rounds", type=int, default=1, help="times a small disk is filled (default 1)")
    parser.addoption("--giant", type=int, default=0, help="megabytes of the giant transaction (default 0)")
    parser.addoption(
        "--recuts", type=int, default=0, help="changes of spans and rules under load (default 0)"
    )
    parser.addoption(
        "--captures-for", type=float, default=0, help="seconds of faults of captures (default 0: none)"
    )
    parser.addoption("--cluster-kills", type=int, default=0, help="of a Spark cluster (default 0: quick)")
    parser.addoption("--auto-cdc", action="store_true", help="run the example of Spark's AUTO CDC")
    parser.addoption("--kill-seed", type=int, default=1, help="which ones, and when")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether scripts are written instead of compared: `tests/scripts.py`."""
    return bool(request.config.getoption("--rewrite"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The whole product first, then other files with slow tests: with several workers, what is long must not
    begin last. Files whose tests share a capture come before all others, so that it need not run for longer
    than they do."""
    sharing = {item.path for item in items if "share" in getattr(item, "fixturenames", ())}
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        return item.path not in sharing, "tests/integration/" not in item.nodeid, item.path not in slow

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end, so no collection needs to walk through their many objects."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def pytest_unconfigure() -> None:
    """A thread that a test has left must not keep the process: it is shown, and the run has failed."""
    faulthandler.dump_traceback_later(END_S, exit=True, file=sys.__stderr__)
