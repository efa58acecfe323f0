"""The engine of a source with watermarks: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.engine_script import EngineScript
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "engine"))
def test_the_engine_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, EngineScript().run, rewrite=rewrite)
