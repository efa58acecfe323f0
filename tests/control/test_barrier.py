"""The barrier: scenarios as scripts. `test_processor.py` has it with the owner, in all orders of events."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.barrier_script import BarrierScript
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "barrier"))
def test_the_barrier_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, BarrierScript().run, rewrite=rewrite)
