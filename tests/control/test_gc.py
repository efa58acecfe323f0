"""The guard of upstream's history: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.gc_script import GcScript
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "gc"))
def test_the_guard_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, GcScript().run, rewrite=rewrite)
