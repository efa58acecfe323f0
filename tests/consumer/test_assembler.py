"""The assembler: which events wait, which are handed out, where a restart begins: scenarios as scripts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.consumer.assembler_script import AssemblerScript, segment
from tests.scripts import run_script, scripts
from tidegate.consumer.engine.assembler import Assembler, StagedRun


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "assembler"))
def test_the_assembler_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, AssemblerScript().run, rewrite=rewrite)


class ByTable(Assembler):
    """With TiCDC's filter: a row that is not above the largest ts seen of its table counts as a duplicate."""

    largest = 0

    def add(self, segments: Iterable[StagedRun]) -> None:
        for one in segments:
            if one.max_ts > self.largest:
                super().add([one])
            self.largest = max(one.max_ts, self.largest)


@pytest.mark.parametrize(("kind", "handed_out"), [(Assembler, [1, 2]), (ByTable, [1])])
def test_rows_of_a_second_writer_of_a_table_are_no_duplicates(
    kind: type[Assembler], handed_out: list[int]
) -> None:
    """A table may have several writers, whose rows come in one partition: 50 after 100 is in order."""
    held = kind({0: 5})
    held.add([segment(0, 90, 100, 1)])
    held.add([segment(0, 40, 50, 2)])
    assert [piece.segment.first_offset for piece in held.take({0: 100})[("s", "t")]] == handed_out
