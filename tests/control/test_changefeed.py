"""The life of a changefeed: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.changefeed_script import ChangefeedScript
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "changefeed"))
def test_a_changefeed_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, ChangefeedScript().run, rewrite=rewrite)
