"""The reaction to each kind of failure: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.puller.region_feed_script import RegionFeedScript
from tests.scripts import run_script, scripts
from tidegate.puller.region_feed import PAUSES, pause_s


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "region_feed"))
def test_a_registration_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, RegionFeedScript().run, rewrite=rewrite)


def test_pauses_of_every_kind_differ_by_chance_and_stay_below_their_cap() -> None:
    random = Random(3)
    for reason, pause in PAUSES.items():
        waits = [pause_s(reason, 12, random) for _ in range(20)]
        assert all(pause.cap_ms / 2000 <= wait <= pause.cap_ms / 1000 for wait in waits)
        assert len(set(waits)) == 20, reason
