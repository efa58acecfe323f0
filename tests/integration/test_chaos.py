"""Splits, merges, leader moves, store restarts and more under load: nothing lost, doubled, or late.

`make chaos` runs the long form: `pytest tests/integration/test_chaos.py --seeds 300 --chaos-seconds 6`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import chaos, chaos_feeds
from tidegate.eventstore import kernels as store_kernels
from tidegate.puller.match import block_matcher

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]


def test_the_event_store_is_the_commit_history_at_every_resolved_ts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    block_matcher.warm()
    store_kernels.warm()
    seconds = request.config.getoption("--chaos-seconds")
    first = request.config.getoption("--first-seed")
    deeds = refused = collected = 0
    for seed in range(first, first + request.config.getoption("--seeds")):
        outcome = chaos.run(seed, tmp_path / str(seed), seconds)
        print(f"seed {seed}: {outcome}", flush=True)
        assert not outcome.findings, f"seed {seed}: " + "\n".join(outcome.findings)
        assert outcome.changes > 20
        assert outcome.marks > 1
        deeds += outcome.deeds.total()
        refused += outcome.refused
        collected += outcome.collected
    assert deeds > 10
    assert refused > 10, "the safepoint moves, and who asks for more than is held does not get it"
    assert collected > 2, "upstream removes what it may"


def test_two_feeds_of_one_start_end_with_equal_catalogues_during_gc(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = request.config.getoption("--first-seed")
    for seed in range(first, first + request.config.getoption("--feed-seeds")):
        outcome = chaos_feeds.run(seed, tmp_path / str(seed), request.config.getoption("--chaos-seconds"))
        print(f"seed {seed}: {outcome}", flush=True)
        assert not outcome.findings, f"seed {seed}: " + "\n".join(outcome.findings)
        assert outcome.ddls > 3
        assert outcome.collected
