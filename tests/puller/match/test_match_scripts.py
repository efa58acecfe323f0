"""The plain matcher and the compiled one run the same scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.puller.match.match_script import BlockRegistration, MatchScript, PlainRegistration
from tests.scripts import run_script, scripts


@pytest.mark.parametrize("kind", [PlainRegistration, BlockRegistration])
@pytest.mark.parametrize("path", scripts(Path(__file__).parents[1] / "testdata" / "match"))
def test_a_matcher_does_what_the_script_says(
    path: Path, kind: type[PlainRegistration] | type[BlockRegistration], *, rewrite: bool
) -> None:
    run_script(path, MatchScript(kind).run, rewrite=rewrite)
