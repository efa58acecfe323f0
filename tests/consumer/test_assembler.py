"""The assembler: which events wait, which are handed out, where a restart begins: scenarios as scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.assembler_script import AssemblerScript
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "assembler"))
def test_the_assembler_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, AssemblerScript().run, rewrite=rewrite)
